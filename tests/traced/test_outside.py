"""Where an op cannot go: under an axis name that its body uses, and into a function that XLA combines values with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.shared.util import numpy_function, py_function, run, run_python

F = jnp.float32


def _summed(x):
    return lax.psum(x, "i")


def _numbered(x):
    return x + lax.axis_index("i")


def _vmapped(body, wrap=lambda f: f, **options):
    return wrap(jax.vmap(lambda x: py_function(body, [x], F, **options), axis_name="i"))


USES = {
    "direct": _vmapped,
    "jit": lambda body, **options: _vmapped(body, jax.jit, **options),
    "grad": lambda body, **options: _vmapped(body, lambda f: jax.grad(lambda x: f(x).sum()), **options),
    "unbatched": lambda body, **options: jax.vmap(lambda x: x + py_function(body, [1.0], F, **options), axis_name="i"),
    "a program inside": lambda body, **options: jax.vmap(
        lambda x: x + jax.jit(lambda: py_function(body, [1.0], F, **options))(), axis_name="i"
    ),
}


@pytest.mark.parametrize("options", [{}, {"vmap_method": "expand_dims"}, {"vmap_method": "parallel"}], ids=str)
@pytest.mark.parametrize("body", [_summed, _numbered])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_body_is_outside_of_the_axes_around_it(use, body, options):
    with pytest.raises(NameError, match=r"(?s)unbound axis name.*collectives \(psum, axis_index, ...\) go outside"):
        run(use(body, **options), jnp.arange(3.0))


def test_a_numpy_body_is_outside_too():
    f = jax.vmap(lambda x: numpy_function(lambda x: np.asarray(lax.psum(x, "i")), [x], F), axis_name="i")
    with pytest.raises(NameError, match="go outside"):
        f(jnp.arange(3.0))


def test_a_body_has_axes_of_its_own_and_the_caller_keeps_his():
    def body(x):
        return jax.vmap(_summed, axis_name="i")(x)

    def f(x):
        return lax.psum(py_function(body, [x], F), "i")

    np.testing.assert_array_equal(jax.vmap(f, axis_name="i")(jnp.ones((3, 2))), np.full((3, 2), 6))


def test_what_is_advised_works():
    x = jnp.arange(3.0)
    f = jax.vmap(lambda x: py_function(lambda s: s + 1, [lax.psum(x, "i")], F), axis_name="i")
    np.testing.assert_array_equal(f(x), [4, 4, 4])
    np.testing.assert_array_equal(_vmapped(_summed, mode="traced")(x), [3, 3, 3])


def _add(x, y):
    return numpy_function(np.add, [x, y], F, output_shapes=())


WHERE = lax.ScatterDimensionNumbers((), (0,), (0,))
COMBINED = {
    "reduce": lambda op, x: lax.reduce(x, 0.0, op, (0,)),
    "a program in reduce": lambda op, x: lax.reduce(x, 0.0, jax.jit(op), (0,)),
    "a program in reduce that runs before": lambda op, x: (
        lambda jitted: jitted(x[0], x[1]) + lax.reduce(x, np.float32(0), jitted, (0,))
    )(jax.jit(op)),
    "a branch in reduce": lambda op, x: lax.reduce(x, 0.0, lambda a, b: lax.cond(a > b, op, jnp.add, a, b), (0,)),
    "reduce_window": lambda op, x: lax.reduce_window(x, 0.0, op, (2,), (1,), "VALID"),
    "apply": lambda op, x: x.at[1].apply(lambda v: op(v, v)),
}


@pytest.mark.parametrize("use", COMBINED.values(), ids=COMBINED)
def test_a_combiner_is_refused(use, transport):
    """XLA ends the process."""
    with pytest.raises(NotImplementedError, match=r"'add': the function of .* cannot call Python.*jax\.lax\.scan"):
        jax.jit(lambda x: use(_add, x))(jnp.arange(5.0))


def test_a_combiner_is_refused_outside_of_jit():
    code = """
import jax, jax.numpy as jnp, numpy as np, jaxpyop
op = lambda a, b: jaxpyop.numpy_function(np.add, [a, b], jnp.float32, output_shapes=())
try:
    jax.lax.reduce(jnp.arange(5.0), 0.0, op, (0,))
except NotImplementedError as error:
    print(error)
"""
    assert "cannot call Python" in run_python(code).stdout


def test_instead_of_a_combiner():
    x = jnp.arange(5.0)
    assert jax.jit(lambda x: lax.scan(lambda total, v: (_add(total, v), None), 0.0, x)[0])(x) == 10
    add = lambda x, y: py_function(jnp.add, [x, y], F, mode="traced")
    assert jax.jit(lambda x: lax.reduce(x, 0.0, add, (0,)))(x) == 10
