"""Where the arrays of a cut program are, and which threads run it: in processes of their own."""

import pytest

from tests.shared.processes import on_devices, run_python

pytestmark = pytest.mark.slow

START = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np, concurrent.futures
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
F = jnp.float32
"""
EIGHT = """
def same(f, *args):
    cut = jaxpyop.jit(f)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), cut(*args), jax.jit(f)(*args))
    return cut

looks = lambda x: jaxpyop.py_function(lambda x: x * 2 if float(x[0]) < 5 else -x, [x], F)
stateful = lambda x: jaxpyop.py_func(lambda x: x * 2, [x], F)
pure = lambda x: jaxpyop.numpy_function(lambda x: x * 2, [x], F)
total = lambda x: jaxpyop.py_function(lambda x: (x * 2).sum(), [x], F, output_shapes=())
mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.{kind},))
x = jax.device_put(jnp.arange(1 << 15, dtype=F), NamedSharding(mesh, P("d")))
"""


def run_on_eight(code, kind="Auto"):
    run_python(START + EIGHT.replace("{kind}", kind) + code, **on_devices(8))


SHARDED = """
for op in (looks, stateful, pure, jax.vmap(stateful), jax.grad(total)):
    program = lambda x: op(x * 2) + 1
    out, said = same(program, x)(x), jaxpyop.jit(program).explain(x)
    assert out.committed
    assert {check}, (out.sharding, said)
same(lambda x: (op(x), jaxpyop.py_func(lambda: np.ones(3, np.float32), [], F, output_shapes=(3,))), x)
"""


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_over_eight_devices_a_result_keeps_its_sharding_or_a_program_stays_whole(kind):
    checks = {"Auto": '(out.sharding == x.sharding and "segment" in said)', "Explicit": '("Explicit" in said)'}
    run_on_eight(SHARDED.replace("{check}", checks[kind]), kind=kind)


def test_results_are_where_jit_has_them():
    code = """
place = lambda tree: [(x.devices(), x.committed) for x in jax.tree.leaves(tree)]
constant = lambda: jaxpyop.py_func(lambda: np.float32(1), [], F, output_shapes=())
cut = lambda y: (stateful(y) + 1, stateful(y), jnp.arange(3.0), constant(), looks(y))
plain = lambda y: (y * 2 + 1, y * 2, jnp.arange(3.0), jnp.float32(1), y * 2)
devices, own = jax.devices(), jnp.ones(3)
for y in (np.ones(3, np.float32), own, jax.device_put(own, devices[3])):
    for default in (None, devices[2]):
        with jax.default_device(default):
            assert place(jaxpyop.jit(cut)(y)) == place(jax.jit(plain)(y)), (type(y), default)
for y in (jax.device_put(own, devices[3]), jax.device_put(own, NamedSharding(mesh, P()))):
    for program in (lambda op: lambda x, y: (op(x), x + 1, y), lambda op: lambda x, y: (op(y), op(x * 2))):
        assert place(jaxpyop.jit(program(stateful))(own, y)) == place(jax.jit(program(lambda x: x * 2))(own, y))
moves = lambda x: jaxpyop.py_function(lambda x: jax.device_put(x * 2, devices[5]), [x], F, output_shapes=(3,))
for y in (own, jax.device_put(own, devices[3])):
    for program in (lambda op: lambda x: op(x) + x, lambda op: lambda x: op(x), lambda op: lambda x: op(x) * op(x + 1)):
        assert place(same(program(moves), y)(y)) == place(jax.jit(program(lambda x: x * 2))(y))
with jax.set_mesh(mesh):
    assert place(same(lambda x: looks(x) + 1, own)(own)) == place(jax.jit(lambda x: x * 2 + 1)(own))
"""
    run_on_eight(code)


def test_one_thread_of_jaxs_pool_serves_four_callers():
    """Under `jax.jit` bodies that use JAX hold the pool's threads, and wait for each other's."""
    code = """
w = jnp.ones((300, 300))
op = lambda x: jaxpyop.py_function(lambda x: (w @ w)[0, 0] * jnp.sum(x) * x if float(x[0]) >= 0 else -x, [x], F)
step = jaxpyop.jit(jax.value_and_grad(lambda x: jnp.sum(op(jnp.sin(op(x) / 1e4)))))

with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(step, [jnp.full(3, 1.0 + k) for _ in range(10) for k in range(4)]))
"""
    run_python(START + code, NPROC="1")


def test_inputs_on_different_devices_are_refused_as_by_jax():
    code = """
other = jax.make_mesh((4,), ("e",), devices=jax.devices()[4:], axis_types=(AxisType.Auto,))
def error(jit, f, *args):
    try:
        jit(f)(*args)
    except ValueError as found:
        return str(found)

for size, op in ((8, stateful), (1 << 15, looks), (1 << 15, pure)):
    x = jax.device_put(jnp.ones(size), NamedSharding(mesh, P("d")))
    for y in (jax.device_put(jnp.ones(size), NamedSharding(other, P("e"))), jax.device_put(x, jax.devices()[2])):
        for f in (lambda x, y: (op(x), op(y)), lambda x, y: op(x) + op(y)):
            expected = error(jax.jit, f, x, y)
            assert expected.startswith("Received incompatible devices")
            assert error(jaxpyop.jit, f, x, y) == expected
    same(lambda x, y: op(x) + op(y), x, np.ones(size, np.float32))
"""
    run_on_eight(code)
