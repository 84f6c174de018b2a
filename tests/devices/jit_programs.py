"""Programs under `jit` over four devices: the function runs once, on the whole array."""

# ruff: noqa: B023, PT017  # what a loop makes is called in the same turn

import concurrent.futures
import contextlib
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpyop import numerical
from tests.devices.common import FULL, OPS, STATEFUL, F, Log, finish, program, programs_of_an_op, same
from tests.shared.functions import numpy_function, py_func, py_function

WHOLE = FULL.tolist()
POOL = concurrent.futures.ThreadPoolExecutor(1)
jit = lambda f: lambda on, op: jax.jit(lambda x: f(op, x))
batched = lambda method: jit(lambda op, x: jax.vmap(lambda x: op(x, vmap_method=method))(x))
scan = jit(lambda op, x: lax.scan(lambda c, _: (op(c), None), x, None, length=2)[0])
programs_of_an_op(
    {
        "jit": (jit(lambda op, x: op(x)), 2 * FULL, [WHOLE]),
        "jit, result unused": (jit(lambda op, x: (op(x), x)[1]), FULL, [WHOLE]),
        "jit of a constant": (jit(lambda op, x: (op(7.0), x)[1]), FULL, [7.0]),
        "jit, when": (jit(lambda op, x: op(x, when=x.sum() > 4)), 2 * FULL, [WHOLE]),
        "jit, when not": (jit(lambda op, x: op(x, when=x.sum() < 4)), 0 * FULL, []),
        "jit of sequential": (batched("sequential"), 2 * FULL, WHOLE),
        "jit of parallel": (batched("parallel"), 2 * FULL, WHOLE),
        "jit of scan": (scan, 4 * FULL, [WHOLE, (2 * FULL).tolist()]),
        "jit of cond": (jit(lambda op, x: lax.cond(x.sum() > 0, op, lambda x: x, x)), 2 * FULL, [WHOLE]),
        "jit on a thread": (jit(lambda op, x: op(x, executor=POOL)), 2 * FULL, [WHOLE]),
        "direct": (lambda on, op: op, 2 * FULL, [WHOLE]),
        "direct vmap": (lambda on, op: jax.vmap(op), 2 * FULL, WHOLE),
    }
)


@program
def several_results(on):
    for name, op in OPS.items():
        log = Log(lambda x: (x * 2, x.sum(), np.zeros((0, 2))))
        f = jax.jit(lambda x: op(log, [x], (F, F, F), output_shapes=((8,), (), (0, 2))))
        y, total, empty = finish(f(on.x))
        same(y + total * on.x, FULL * 30)
        assert empty.shape == (0, 2)
        assert len(log.seen) == 1 or name not in STATEFUL


@program
def ordered_is_one_whole_call_or_refused(on):
    """JAX 0.10 to 0.12 refuse ordered effects on more than one device."""
    log = Log()
    f = jax.jit(lambda x: py_func(log, [py_func(log, [x], F, ordered=True)], F, ordered=True))
    try:
        finish(f(on.x))
    except (ValueError, jax.errors.JaxRuntimeError) as error:  # the latter of XLA's, in 0.10.0
        text = "rdered effects are not supported for more than 1 device|side-effect HLO cannot have a replicated"
        assert re.search(text, str(error))
        assert log.seen == []
    else:
        assert log.seen == [WHOLE, (2 * FULL).tolist()]


@program
def arrays_in_other_places(on):
    """On each device, on another device, on two of the four, over two axes."""
    two = Mesh(np.array(jax.devices()[1:3]), ("d",), axis_types=(AxisType[on.kind],))
    axes = NamedSharding(on.make_mesh((2, 2), ("a", "b")), P("a", "b"))
    for op, place in itertools.product(
        OPS.values(), [NamedSharding(on.mesh, P()), jax.devices()[2], NamedSharding(two, P("d")), axes]
    ):
        value = FULL.reshape(2, 4) if place is axes else FULL
        x, log = jax.device_put(value, place), Log()
        y = finish(jax.jit(lambda x: op(log, [x], F, output_shapes=x.shape))(x))
        same(y + x, 3 * value)
        assert log.seen == [value.tolist()]
    there = jax.device_put(FULL, jax.devices()[2])
    assert all(op(Log(), [there], F).devices() == {jax.devices()[2]} for op in OPS.values())
    sharding = NamedSharding(on.mesh, P("d"))
    f = jax.jit(lambda x: numpy_function(Log(), [x], F), in_shardings=sharding, out_shardings=sharding)
    assert f(on.x).sharding.is_equivalent_to(sharding, 1)


@program
def gradients_of_whole_arrays(on):
    seen = []
    body = lambda x: (seen.append(np.asarray(lax.stop_gradient(x)).tolist()), x**3 if float(x.sum()) > 0 else -x)[1]
    loss = lambda x, **options: (py_function(body, [x], F, output_shapes=(8,), **options) * x + x).sum()
    # JAX asks for the mesh to sum over an explicit one in a gradient outside jit.
    with jax.set_mesh(on.mesh) if on.kind == "Explicit" else contextlib.nullcontext():
        same(finish(jax.jit(jax.grad(lambda x: loss(x, stateful=True)))(on.x)) + on.x, 4 * FULL**3 + 1 + FULL)
        assert seen == [WHOLE]
        for gradient in (jax.jit(jax.grad(loss)), jax.grad(loss), jax.grad(jax.jit(loss))):
            same(gradient(on.x), 4 * FULL**3 + 1)


# Functions of a number, in plain JAX, and with an op.
CUBE = {"vjp": lambda i, o, c: 3 * i[0] ** 2 * c}
DOUBLE = {"transpose": lambda c: 2 * c}
KINDS = {
    "on values": (
        lambda x: jnp.where(x > 1, jnp.sin(x), x) * x,
        lambda x: py_function(lambda x: (jnp.sin(x) if float(x) > 1 else x) * x, [x], F),
    ),
    "vjp": (lambda x: x**3, lambda x: numpy_function(lambda x: x**3, [x], F, **CUBE)),
    "blocks": (lambda x: x**3, lambda x: numpy_function(lambda x: x**3, [x], F, vmap_method="expand_dims", **CUBE)),
    "numerical": (lambda x: x**3, lambda x: numpy_function(lambda x: x**3, [x], F, vjp=numerical())),
    "transpose": (lambda x: x * x * 2, lambda x: x * numpy_function(lambda x: x * 2, [x], F, **DOUBLE)),
}


@program
def gradients_inside_and_outside_of_set_mesh(on):
    """JAX refuses a gradient outside of `jit` and of `jax.set_mesh`, with or without an op."""
    near = functools.partial(same, rtol=5e-3, atol=1e-2)
    forms = [lambda f: jax.vmap(jax.grad(f)), lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum())]
    for (plain, op), form in zip(KINDS.values(), itertools.cycle(forms)):
        wanted = form(plain)(FULL)
        near(jax.jit(form(op))(on.x), wanted)
        with jax.set_mesh(on.mesh):
            near(form(op)(on.x), wanted)
        near(jax.grad(op)(1.5), jax.grad(plain)(1.5))  # what is not on the mesh
