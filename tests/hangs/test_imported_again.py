"""jaxpyop reloaded, or imported once more: programs of the old and of the new one work side by side."""

import pytest

from tests.shared.processes import run_python

pytestmark = pytest.mark.slow

PROGRAMS = """
import jaxpyop, jax, jax.numpy as jnp, gc, importlib, sys, warnings
warnings.simplefilter("error")
F = jnp.float32
def programs(module):
    square = lambda x: module.py_function(lambda x: x * x, [x], F)
    count = lambda x: module.py_func(lambda x: x + 1, [x], F, ordered=True)
    pull = jax.jit(lambda x: jax.vjp(square, x))(F(3))[1]
    return square, jax.jit(square), jax.jit(jax.grad(square)), jax.jit(count), pull
def check(square, f, g, count, pull):
    assert f(3.0) == 9 and g(3.0) == 6 and count(1.0) == 2 and pull(F(1))[0] == 6
    assert jax.grad(square)(4.0) == 8 and jax.vmap(f)(jnp.ones(2)).sum() == 2
old = jaxpyop
first = programs(old)
check(*first)
"""

RELOADED = """
for name in [name for name in sys.modules if name.startswith("jaxpyop")]:
    importlib.reload(sys.modules[name])
check(*first)
check(*programs(jaxpyop))
"""

AFRESH = """
for name in [name for name in sys.modules if name.startswith("jaxpyop")]:
    del sys.modules[name]
gc.collect()
import jaxpyop as new
assert new.py_function is not old.py_function
second = programs(new)
check(*first)
check(*second)
# One in the other, and both in one program.
square, cube = first[0], lambda x: new.py_function(lambda x: square(x) * x, [x], F)
assert jax.grad(cube)(2.0) == jax.jit(jax.grad(cube))(2.0) == 12
both = jax.jit(lambda x: second[3](first[3](x)))  # ordered
assert both(1.0) == 3
"""


def test_old_and_new_work_side_by_side():
    assert run_python(PROGRAMS + RELOADED + AFRESH).stderr == ""
