"""The main programs on four devices, every kind of mesh."""

from __future__ import annotations

import pytest

from tests.shared.util import on_devices, run_python

# ---------------------------------------------------------------- many devices

MANY_DEVICES = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np, functools
from jax.sharding import PartitionSpec as P, NamedSharding, Mesh, AxisType
jaxpyop.config.transport = {transport!r}
F = jnp.float32
mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.{kind},))
sharded = NamedSharding(mesh, P("d"))
x = jax.device_put(jnp.arange(8.0), sharded)
body = lambda x: x * 2 + 1
expected = np.arange(8.0) * 2 + 1
assert len(jax.devices()) == 4
"""

DEVICE_PROGRAMS = {
    "jit": """
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    f = jax.jit(lambda x: api(body, [x], F))
    y = f(x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(y + 1, expected + 1)
    np.testing.assert_array_equal(f(x) + x, expected + np.arange(8.0))
    np.testing.assert_array_equal(jax.jit(lambda x: api(body, [x * 2], F) + x)(x), np.arange(8.0) * 5 + 1)
""",
    "direct": """
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    np.testing.assert_array_equal(api(body, [x], F), expected)
""",
    "vmap": """
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    f = jax.vmap(lambda x: api(body, [x], F))
    np.testing.assert_array_equal(f(x), expected)
    np.testing.assert_array_equal(jax.jit(f)(x), expected)
""",
    "shard_map": """
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    shapes = []
    def body(x):
        if not isinstance(x, jax.core.Tracer):
            shapes.append(x.shape)
        return x * 2 + 1
    f = jax.shard_map(lambda x: api(body, [x], F), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    for g in (f, jax.jit(f)):
        del shapes[:]
        np.testing.assert_array_equal(g(x), expected)
        assert shapes == [(2,)] * 4, shapes
    # two inputs, one of them the same on every device; a result reduced
    f = jax.shard_map(lambda x, y: jax.lax.psum(api(lambda x, y: x.sum() * y, [x, y], F, output_shapes=()), "d"),
                      mesh=mesh, in_specs=(P("d"), P()), out_specs=P())
    assert float(jax.jit(f)(x, 2.0)) == 56
""",
    "shard_map of vmap and scan": """
for api in (jaxpyop.py_function, jaxpyop.numpy_function):
    f = jax.shard_map(jax.vmap(lambda x: api(body, [x], F)), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    np.testing.assert_array_equal(jax.jit(f)(x), expected)
    f = jax.shard_map(lambda x: jax.lax.scan(lambda c, _: (api(body, [c], F), None), x, None, length=2)[0],
                      mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    np.testing.assert_array_equal(jax.jit(f)(x), expected * 2 + 1)
""",
    "gradients": """
op = lambda x: jaxpyop.py_function(lambda x: x ** 3, [x], F)
loss = lambda x: op(x).sum()
with jax.set_mesh(mesh):  # as JAX asks for a gradient of a sum over an explicit mesh
    np.testing.assert_allclose(jax.grad(loss)(x), 3 * np.arange(8.0) ** 2)
np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), 3 * np.arange(8.0) ** 2)
def sharded_loss(x, w):
    op = lambda x, w: jaxpyop.py_function(lambda x, w: (w * x ** 3).sum(), [x, w], F, output_shapes=())
    f = jax.shard_map(lambda x, w: jax.lax.psum(op(x, w), "d"), mesh=mesh, in_specs=(P("d"), P()), out_specs=P())
    return f(x, w)
gx, gw = jax.jit(jax.grad(sharded_loss, (0, 1)))(x, 2.0)
np.testing.assert_allclose(gx, 6 * np.arange(8.0) ** 2)
np.testing.assert_allclose(gw, (np.arange(8.0) ** 3).sum())
square = lambda x: jaxpyop.numpy_function(lambda x: x ** 2, [x], F, vjp=lambda i, o, c: 2 * i[0] * c[0])
np.testing.assert_allclose(jax.jit(jax.grad(lambda x: square(x).sum()))(x), 2 * np.arange(8.0))
f = jax.shard_map(square, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
np.testing.assert_allclose(jax.jit(jax.grad(lambda x: f(x).sum()))(x), 2 * np.arange(8.0))
""",
    "scan, cond": """
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    f = jax.jit(lambda x: jax.lax.scan(lambda c, _: (api(body, [c], F), None), x, None, length=2)[0])
    np.testing.assert_array_equal(f(x), expected * 2 + 1)
    f = jax.jit(lambda x, p: jax.lax.cond(p, lambda x: api(body, [x], F), lambda x: x, x))
    np.testing.assert_array_equal(f(x, True), expected)
""",
    "errors": """
def bad(x):
    raise KeyError("mine")
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    f = jax.jit(lambda x: api(bad, [x], F, output_shapes=(8,)))
    for _ in range(3):
        try:
            with jaxpyop.reraise():
                jax.block_until_ready(f(x))
        except KeyError as error:
            assert error.args == ("mine",)
        else:
            raise AssertionError("no error")
    np.testing.assert_array_equal(jax.jit(lambda x: api(body, [x], F))(x), expected)
""",
    "large arrays": """
big = jax.device_put(jnp.ones((8, 100_000)), sharded)
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    np.testing.assert_array_equal(jax.jit(lambda x: api(body, [x], F))(big)[:, ::1000], 3.0)
""",
}


RUN_EACH = """
import traceback
failed = []
for name, program in PROGRAMS.items():
    try:
        exec(program, dict(globals()))
    except Exception:
        failed.append(f"{{name}}: {{traceback.format_exc()}}")
assert not failed, "\\n".join(failed)
"""


@pytest.mark.parametrize(("kind", "transport"), [("Auto", "auto"), ("Explicit", "auto"), ("Explicit", "callback")])
def test_on_four_devices(kind, transport):
    code = MANY_DEVICES + f"PROGRAMS = {DEVICE_PROGRAMS!r}".replace("{", "{{").replace("}", "}}") + RUN_EACH
    run_python(code.format(transport=transport, kind=kind), timeout=90, **on_devices(4))


def test_every_op_inside_and_outside_of_set_mesh():
    run_python("import runpy; runpy.run_module('tests.shared.mesh_programs', run_name='__main__')", **on_devices(8))
