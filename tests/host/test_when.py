"""`when=`: func is called where it is true, and the results are zeros elsewhere; and `vmap` of `cond`."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from tests.shared.util import (
    APIS,
    Counter,
    close,
    every_api,
    numpy_function,
    on_devices,
    py_func,
    py_function,
    run_python,
)
from tests.shared.ways import every_way

F = jnp.float32
XS = jnp.arange(4.0)
POOL = concurrent.futures.ThreadPoolExecutor(2)


def seen(body):
    return sorted(float(args[0]) for args in body.seen)


def counted():
    # Of a py_function a call under jit is traced once for its shapes: give them.
    return Counter(lambda x: x * 2 + 1)


@every_way
@every_api
def test_it_decides_for_each_element(api, way, route):
    body = counted()
    op = lambda x: api(body, [x], F, output_shapes=(), when=x % 2 == 1)
    close(route(lambda xs: way(op, xs), XS), [0, 3, 0, 7])
    assert seen(body) == [1, 3]


@pytest.mark.parametrize("when", [True, np.True_, np.array(True), jnp.array(True)], ids=lambda w: type(w).__name__)
@every_api
def test_constants(api, when, route):
    body = counted()
    op = lambda x, w: api(body, [x], F, output_shapes=(), when=w)
    close(route(lambda x: op(x, when), 1.0), 3.0)
    close(route(lambda x: op(x, ~when if when is not True else False), 1.0), 0.0)
    close(route(op, 1.0, when), 3.0)
    assert seen(body) == [1, 1]


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_zeros_have_the_promised_structure(api, route):
    tout = {"a": F, "n": [jnp.int32, jnp.bool_]}
    shapes = {"a": (2, 3), "n": [(), (4,)]}
    out = route(lambda w: api(lambda: 1 / 0, [], tout, output_shapes=shapes, when=w), False)
    assert jax.tree.map(lambda a: (a.shape, a.dtype.name), out) == {
        "a": ((2, 3), "float32"),
        "n": [((), "int32"), ((4,), "bool")],
    }
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(out))


def test_without_a_shape_zeros_have_the_shape_that_jit_would_take(route):
    close(route(lambda x: py_function(lambda x: x.sum(), [x], F, when=False), XS), np.zeros(()))
    close(route(lambda x: numpy_function(np.sinh, [x], F, when=False), XS), np.zeros(4))


def test_without_a_result(route):
    log = []
    route(lambda xs: jax.vmap(lambda x: py_func(lambda x: log.append(float(x)), [x], None, when=x > 1))(xs), XS)
    assert log == [2, 3]


METHODS = {"sequential": {}, "parallel": {"vmap_method": "parallel", "executor": POOL}}


@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "lent"])
def test_batches_of_numpy_bodies(options, copy, route):
    body = counted()
    f = jax.vmap(lambda x, w: numpy_function(body, [x], F, when=w, copy=copy, **options))
    close(route(f, XS[:, None] * jnp.ones(3), XS > 1), [[0] * 3, [0] * 3, [5] * 3, [7] * 3])
    assert body.count == 2


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
@pytest.mark.parametrize("when", [True, False])
def test_one_decision_for_a_whole_batch(method, when, route):
    body = Counter(lambda x, y: x + y)
    op = lambda x, y, w: numpy_function(body, [x, y], F, when=w, vmap_method=method, output_shapes=())
    f = jax.vmap(jax.vmap(op, (0, None, None)), (0, 0, None))
    close(route(f, XS.reshape(2, 2), XS[:2], jnp.array(when)), np.array([[0, 1], [3, 4]]) * when)
    assert body.count == when


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_a_whole_batch_cannot_be_left_out_in_part(method, route):
    f = jax.vmap(lambda x: numpy_function(np.sin, [x], F, when=x > 0, vmap_method=method))
    with pytest.raises(ValueError, match=r"when= differs by element .*vmap_method='sequential'"):
        route(f, XS)


# ------------------------------------------------------------------- gradients

DERIVATIVES = {
    "py_function": lambda x: py_function(lambda x: x**3, [x], F, when=x > 1),
    "traced": lambda x: py_function(lambda x: x**3, [x], F, when=x > 1, mode="traced"),
    "on values": lambda x: py_function(lambda x: x**3 if float(x) > 0 else x, [x], F, when=x > 1),
    "vjp=": lambda x: numpy_function(
        lambda x: x**3, [x], F, when=x > 1, vjp=lambda i, o, c: 3 * i[0] ** 2 * c[0], output_shapes=()
    ),
    "stateful": lambda x: py_function(lambda x: x**3, [x], F, when=x > 1, stateful=True),
}


@every_way
@pytest.mark.parametrize("op", DERIVATIVES.values(), ids=DERIVATIVES)
def test_gradients(op, way, route):
    close(route(lambda xs: way(jax.grad(op), xs), XS), [0, 0, 12, 27])


def test_higher_orders_and_forward_mode(route):
    op = DERIVATIVES["py_function"]
    close(route(jax.vmap(jax.grad(jax.grad(op))), XS), [0, 0, 12, 18])
    close(route(jax.vmap(jax.jacfwd(op)), XS), [0, 0, 12, 27])
    close(route(jax.vmap(jax.jacfwd(jax.grad(op))), XS), [0, 0, 12, 18])


def test_neither_pass_runs_where_it_is_false(route):
    forward, backward = Counter(lambda x: x**2), Counter(lambda i, o, c: 2 * i[0] * c[0])
    op = lambda x: numpy_function(forward, [x], F, when=x > 1, vjp=lambda *a: backward(*a), output_shapes=())
    close(route(jax.vmap(jax.grad(op)), XS), [0, 0, 4, 6])
    assert (forward.count, backward.count) == (2, 2)


# ---------------------------------------------------------------------- errors

BAD = {
    "a number": (1, TypeError, r"when is 1; expected one boolean"),
    "text": ("yes", TypeError, r"when is 'yes'; expected one boolean"),
    "a function": (lambda x: True, TypeError, r"when is <function .*expected one boolean"),
    "an array": (np.array([True, False]), TypeError, r"when is array\(\[.*expected one boolean"),
    "an integer array": (jnp.int32(1), TypeError, r"when is int32 of shape \(\); expected one boolean"),
    "a vector": (jnp.array([True]), TypeError, r"when is bool of shape \(1,\); expected one boolean"),
}


@pytest.mark.parametrize(("when", "kind", "text"), BAD.values(), ids=BAD)
@every_api
def test_what_is_no_boolean_is_an_error(api, when, kind, text, route):
    with pytest.raises(kind, match=text):
        route(lambda x: api(lambda x: x, [x], F, when=when), 1.0)


# ---------------------------------------------------------------- vmap of cond


@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
@pytest.mark.parametrize("nested", [False, True], ids=["vmap", "vmap of vmap"])
def test_a_cond_on_one_predicate_for_the_whole_batch(ordered, nested, route):
    """A log at every second step of a batch of simulations, as people write it first."""
    log = []

    def simulate(x):
        def step(x, i):
            write = lambda: py_func(lambda i, x: log.append((int(i), float(x))), [i, x], None, ordered=ordered)
            lax.cond(i % 2 == 0, write, lambda: None)
            return x + 1, x

        return lax.scan(step, x, jnp.arange(4))[0]

    f = jax.vmap(jax.vmap(simulate)) if nested else jax.vmap(simulate)
    close(route(f, XS[None, :2] if nested else XS[:2]), [[4, 5]] if nested else [4, 5])
    assert log == [(0, 0), (0, 1), (2, 2), (2, 3)]


def test_a_switch_on_one_index(route):
    log = []
    branches = [lambda x, k=k: py_func(lambda x: log.append((k, float(x))) or x * k, [x], F) for k in range(3)]
    close(route(jax.vmap(lambda k, x: lax.switch(k, branches, x), (None, 0)), 2, XS), XS * 2)
    assert log == [(2, k) for k in range(4)]


def test_results_and_gradients_of_such_a_cond(route):
    f = lambda x, w: lax.cond(w, lambda: py_function(lambda x: x**2, [x], F, stateful=True), lambda: x * 0)
    for w, wanted in ((True, XS * 2), (False, XS * 0)):
        close(route(jax.vmap(jax.grad(f), (0, None)), XS, w), wanted)


PLACES = {
    "cond": lambda op: lambda x: lax.cond(x > 1, op, lambda x: x, x),
    "switch": lambda op: lambda x: lax.switch(x.astype(int), [op, lambda x: x], x),
    "cond in a cond on one predicate": lambda op: (
        lambda x: lax.cond(jnp.array(True), lambda x: lax.cond(x > 1, op, lambda x: x, x), lambda x: x, x)
    ),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
def test_a_predicate_that_differs_is_refused_and_the_error_names_when(place, ordered, route):
    f = jax.vmap(place(lambda x: py_func(lambda x: x, [x], F, ordered=ordered, name="log")))
    with pytest.raises(NotImplementedError, match=r"cannot hold the stateful py_func 'log': .*as when=, which decides"):
        route(f, XS)


def test_a_while_loop_of_different_lengths_is_refused_and_the_error_names_when(route):
    f = jax.vmap(lambda n: lax.while_loop(lambda i: i < n, lambda i: py_func(lambda i: i + 1, [i], F), 0.0))
    with pytest.raises(NotImplementedError, match="fori_loop, and pass as when= a boolean"):
        route(f, XS)


def test_a_bar_in_a_vmapped_scan(route):
    """The whole batch counts as one, and the bar moves at every hundredth step."""
    bar = []

    def simulate(x):
        def step(x, i):
            jaxpyop.py_func(lambda i: bar.append(int(i)), [i], None, when=i % 100 == 0)
            return x * 0.99, None

        return lax.scan(step, x, jnp.arange(300))[0]

    close(route(jax.vmap(simulate), XS), XS * 0.99**300)
    assert bar == [0, 100, 200]


ON_FOUR = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
jaxpyop.config.transport = {transport!r}
mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.{kind},))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("d")))
log = []
op = lambda x: jaxpyop.py_func(lambda x: log.append(x.tolist()) or x * 2, [x], jnp.float32, when=x.sum() > 4)
np.testing.assert_array_equal(jax.jit(op)(x), np.arange(8.0) * 2)
assert log == [list(range(8))], log
np.testing.assert_array_equal(jax.jit(lambda x: op(x - 9))(x), np.zeros(8))
assert len(log) == 1, log
del log[:]
f = jax.jit(jax.shard_map(op, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
np.testing.assert_array_equal(f(x), [0, 0, 4, 6, 8, 10, 12, 14])
assert sorted(log) == [[2, 3], [4, 5], [6, 7]], log
op = lambda x: jaxpyop.py_function(lambda x: x**2, [x], jnp.float32, when=x > 3)
g = jax.jit(jax.vmap(jax.grad(op)))
np.testing.assert_array_equal(g(x), [0, 0, 0, 0, 8, 10, 12, 14])
"""


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_on_four_devices(kind, transport):
    code = ON_FOUR.format(kind=kind, transport=transport)
    run_python(code, **on_devices(4))
