"""The values of derivatives under `vmap`: each element takes its own path, and gets its own gradient."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpyop import numpy_function, py_function
from tests.gradients.bodies import TRANSFORMS, X3, F
from tests.shared.checks import Counter, trees_close
from tests.shared.tables import in_turn, rows

X = jnp.asarray(X3)


def looks(x):
    return x * x if float(x.sum()) > 0 else x * x * x


def plain(x):
    return jnp.where(x.sum() > 0, x * x, x * x * x)


def op(x):
    return py_function(looks, [x], F, output_shapes=x.shape)


def with_rules(x):
    """The same of NumPy."""
    slope = lambda x: np.where(x.sum() > 0, 2 * x, 3 * x**2)
    rules = {"vjp": lambda i, o, c: slope(i[0]) * c, "jvp": lambda i, o, t: slope(i[0]) * t[0]}
    return numpy_function(looks, [x], F, **rules)


def reversed_pullbacks(f):
    pull = lambda x: jax.tree.map(lambda a: a[::-1], jax.vmap(lambda x: jax.vjp(f, x)[1])(x))
    return lambda x: jax.vmap(lambda pull: pull(jnp.ones(3)))(pull(x))


XX = jnp.stack([X, -X, 2 * X])
# Programs of a function of an array with any shape, each with its argument.
PROGRAMS = {
    "vmap of grad": (lambda f: jax.vmap(jax.grad(f)), X),
    "of no elements": (lambda f: jax.vmap(jax.grad(f)), X[:0]),
    "grad of vmap": (lambda f: jax.grad(lambda x: (jax.vmap(f)(x) ** 2).sum()), XX),
    "vmap over the last axis": (lambda f: jax.vmap(jax.grad(lambda x: f(x).sum()), 1, 1), XX[:2]),
    "grad of vmap of vmap": (lambda f: jax.grad(lambda x: (jax.vmap(jax.vmap(f))(x) ** 2).sum()), XX),
    "jacrev of vmap": (lambda f: jax.jacrev(jax.vmap(f)), XX[:2]),
    "jvp of vmap": (lambda f: lambda x: jax.jvp(jax.vmap(f), (x,), (x + 1,)), XX),
    "vmap of jvp": (lambda f: jax.vmap(lambda x, t: jax.jvp(f, (x,), (t,)), (None, 0)), (X, XX)),
    "vmap of linearize": (lambda f: lambda x: jax.vmap(jax.linearize(f, x)[1])(jnp.eye(3)), X),
    "pullbacks by element, reversed": (reversed_pullbacks, XX),
    "vmap of grad of cond": (lambda f: jax.vmap(jax.grad(lambda s: lax.cond(s > 0, f, lambda s: 2 * s, s))), X),
    "vmap of grad of scan": (
        lambda f: jax.vmap(jax.grad(lambda s: lax.scan(lambda c, v: (c + f(v * s), None), 0.0, jnp.arange(3.0))[0])),
        X,
    ),
    "an input that elements share": (
        lambda f: jax.grad(lambda x, w: jax.vmap(lambda x, w: f(x * w), (0, None))(x, w).sum(), (0, 1)),
        (X, F(2)),
    ),
}
FAST = [(name, op, "direct") for name in ("vmap of grad", "of no elements") for op in ("automatic", "rules")]
FAST += [(name, "automatic", "direct") for name in ("pullbacks by element, reversed", "an input that elements share")]
FAST += [(name, "rules", "direct") for name in ("vmap over the last axis", "vmap of jvp")]
FAST += [("an input that elements share", "rules", "direct")]
OPS = {"automatic": op, "rules": with_rules}
ROWS = in_turn(itertools.product(PROGRAMS, OPS), TRANSFORMS, and_also=FAST)


@pytest.mark.parametrize(("name", "op", "transform"), rows(ROWS, FAST))
def test_equal_to_jax(name, op, transform):
    program, inputs = PROGRAMS[name]
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    trees_close(TRANSFORMS[transform](program(OPS[op]))(*inputs), jax.jit(program(plain))(*inputs))


@pytest.mark.parametrize("method", rows(["expand_dims", "broadcast_all"], ["expand_dims"]))
def test_block_methods(method):
    """A recorded function runs element by element in a derivative, whatever its method."""
    plain = lambda x, w: x * x * w
    body = Counter(plain)
    op = lambda x, w: py_function(body, [x, w], F, vmap_method=method, output_shapes=())
    program = lambda f: jax.grad(lambda x, w: jax.vmap(f, (0, None))(x, w).sum(), (0, 1))
    trees_close(program(op)(X, 2.0), jax.jit(program(plain))(X, 2.0))
    assert body.count == 3


def test_one_function_on_two_dtypes_in_two_branches():
    """JAX hands the receipts of both branches over in one array."""
    square, x = lambda x: x * x, jnp.arange(1.0, 5.0)
    op = lambda x: py_function(square, [x], x.dtype, output_shapes=())
    program = lambda x: jax.lax.cond(x > 2, op, lambda x: op(x.astype(jnp.float16)).astype(F), x)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(program)))(x), 2 * x)
