"""What random programs and new users found: each test is named for the promise that was broken."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.util import SMALL_DTYPES, dtype_id, numpy_function, py_function, run_python

F = jnp.float32

# NumPy's own dtypes are not among them: ml_dtypes take a scalar from a number alone.
BATCHES = {
    "vmap": jax.vmap,
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(x).astype(F).sum()),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f)),
}


@pytest.mark.parametrize("dtype", [d for d in SMALL_DTYPES if np.dtype(d).kind == "V"], ids=dtype_id)
@pytest.mark.parametrize("method", ["sequential", "parallel"])
def test_a_batch_of_scalars_of_any_dtype(dtype, method, transport):
    x = jnp.array([1.0, 0.5, 2.0]).astype(dtype)
    op = lambda x: py_function(lambda x: x, [x], dtype, vmap_method=method)
    got = jax.jit(jax.vmap(op))(x)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.astype(F), x.astype(F))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=dtype_id)
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_gradients_of_a_batch_of_narrow_scalars(batch, dtype, route):
    x = jnp.array([1.0, 0.5, 2.0], dtype)
    op = lambda x: py_function(lambda x: x * x, [x], dtype, output_shapes=())
    got = route(batch(op), x)
    np.testing.assert_array_equal(np.asarray(got, np.float32), batch(lambda x: x * x)(x).astype(F))


OPS = {
    "eager": lambda x: py_function(lambda x: jnp.sin(x), [x], F),
    "traced": lambda x: py_function(lambda x: jnp.sin(x), [x], F, mode="traced"),
    "stateful": lambda x: py_function(lambda x: jnp.sin(x), [x], F, stateful=True),
    "numpy_function": lambda x: numpy_function(np.sin, [x], F, vjp=lambda i, o, c: np.cos(i[0]) * c[0]),
}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_the_gradient_of_a_python_number_is_weakly_typed_as_jaxs_is(op, route):
    """So that `p - 0.1 * grad` of a bfloat16 model does not become float32."""
    got = route(jax.grad(op), 2.0)
    assert got.weak_type is jax.grad(jnp.sin)(2.0).weak_type is True
    np.testing.assert_allclose(got, np.cos(2.0), rtol=1e-6)
    assert not route(jax.grad(op), F(2.0)).weak_type
    assert not route(op, 2.0).weak_type


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_a_block_without_the_batchs_axis_says_so(method, route):
    """Each element's shape was right: writing it as output_shapes= would not help."""
    f = jax.vmap(lambda x: numpy_function(lambda x: np.ones((1, 3)), [x], F, vmap_method=method, output_shapes=(3,)))
    with (
        pytest.raises(ValueError, match=r"shape \(1, 3\) where \(2, 3\).*each element, with \(2,\) in front") as caught,
        jaxpyop.reraise(),
    ):
        route(f, jnp.ones((2, 3)))
    assert "write output_shapes" not in str(caught.value)


@pytest.mark.parametrize("vjp", [None, lambda inputs, outputs, cts: cts[0]], ids=["without vjp", "with vjp"])
@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_a_numpy_function_gets_its_block_while_jax_differentiates(method, vjp, route):
    """A metric of the batch is the same beside a gradient as without one."""
    centred = lambda x: numpy_function(lambda x: x - x.mean(axis=0), [x], F, vmap_method=method, vjp=vjp)
    loss = lambda x: ((x**2).sum(), jax.vmap(centred)(x))
    x = jnp.arange(6.0).reshape(3, 2)
    (_, metric), slope = route(jax.value_and_grad(loss, has_aux=True), x)
    np.testing.assert_array_equal(metric, x - x.mean(axis=0))
    np.testing.assert_array_equal(slope, 2 * x)


def constants(n):
    """Made of many kinds of operations, custom derivatives and random numbers among them."""
    noise = jax.random.normal(jax.random.key(0), (n,))
    total, _ = jax.lax.scan(lambda c, x: (c + x, None), 0.0, noise)
    return jax.nn.relu(jnp.hanning(n)) + jax.nn.softplus(noise) * (total if total > -1e9 else 0.0)


@pytest.mark.parametrize("transform", [lambda f: f, jax.grad], ids=["value", "gradient"])
def test_what_a_body_keeps_of_its_own_is_an_array(transform, transport):
    """A cache that was filled while the shape was looked for is good afterwards."""
    cached = functools.lru_cache(constants)
    f = lambda x: py_function(lambda x: x * cached(x.shape[0]), [x], F).sum()
    x = jnp.arange(4.0)
    expected = transform(lambda x: (x * constants(4)).sum())(x)
    np.testing.assert_allclose(jax.jit(transform(f))(x), expected, rtol=1e-6)
    assert isinstance(cached(4), jax.Array)
    assert not isinstance(cached(4), jax.core.Tracer)
    np.testing.assert_allclose(cached(4) * 1, constants(4), rtol=1e-6)


def test_effects_of_a_body_do_not_happen_while_its_shape_is_looked_for(transport):
    seen = []

    def body(x):
        jax.debug.callback(lambda v: seen.append(("debug", float(v))), 1.0)
        jaxpyop.py_func(lambda v: seen.append(("op", float(v))), [2.0], None)
        jax.jit(lambda: jax.debug.callback(lambda v: seen.append(("jit", float(v))), 3.0))()
        return x

    jax.jit(lambda x: py_function(body, [x], F)).lower(jnp.ones(2))
    jax.effects_barrier()
    assert seen == []
    jax.block_until_ready(jax.jit(lambda x: py_function(body, [x], F))(jnp.ones(2)))
    jax.effects_barrier()
    assert sorted(seen) == [("debug", 1.0), ("jit", 3.0), ("op", 2.0)]


class Model:
    """Holds what it multiplies by."""

    def __init__(self, weight):
        self.weight = weight

    def apply(self, x):
        return x * self.weight


def test_a_traced_value_in_an_object_of_a_method_is_named():
    with pytest.raises(ValueError, match=r"func uses 'self\.weight' from the code around it"):
        jax.jit(lambda w: py_function(Model(w).apply, [1.0], F))(2.0)


def bad_gradient(inputs, outputs, cotangents):
    raise KeyError("no gradient")


MESSAGES = {
    "a result where none is promised": (
        lambda x: jaxpyop.py_func(lambda x: 3, [x], []),
        r"returned an int where Tout=\[\] declares no result; pass Tout=None to ignore what it returns",
    ),
    "other keys": (
        lambda x: numpy_function(lambda x: {"b": x}, [x], {"a": F}),
        r"returned a dict with the keys \['b'\] where Tout=\{'a': 'float32'\}",
    ),
    "float to int": (lambda x: numpy_function(lambda x: np.float64(x), [x], jnp.int32), r"write Tout=float32"),
    "the function that failed is vjp": (
        jax.grad(lambda x: numpy_function(np.sin, [x], F, vjp=bad_gradient)),
        r"no gradient",
    ),
}


@pytest.mark.parametrize(("f", "text"), MESSAGES.values(), ids=MESSAGES)
def test_messages(f, text, route):
    with pytest.raises(Exception, match=text):
        route(f, 1.0)


def test_a_failing_derivative_shows_what_it_was_given(transport):
    step = jax.jit(jax.grad(lambda x: numpy_function(np.sin, [x], F, vjp=bad_gradient)))
    with pytest.raises(Exception, match=r"function: bad_gradient, .*test_found\.py:\d+"):
        jax.block_until_ready(step(1.0))


KEPT = """
import functools, itertools, random, re, warnings
import jaxpyop
import jax, jax.numpy as jnp, numpy as np

warnings.simplefilter("ignore")
kept = []


def keep(x):
    kept.append(x)
    return np.array(x)


lend = jax.jit(lambda x: jaxpyop.numpy_function(keep, [x], jnp.float32, copy=False))
add = jax.jit(lambda x, y: jaxpyop.numpy_function(lambda x, y: x + 10 * y, [x, y], jnp.float32))
x, y = jnp.ones(3), jnp.full(3, 2.0)
WAYS = [  # of calling a function, each with another size on the stack of C
    lambda f: list(map(lambda _: f(), [0])),
    lambda f: sorted([0], key=lambda _: f()),
    lambda f: functools.reduce(lambda a, b: f(), [0, 0]),
    lambda f: max([0], key=lambda _: f()),
    lambda f: functools.partial(f)(),
    lambda f: re.sub("a", lambda match: (f(), "b")[1], "a"),
]


def at(depths, f):
    for way, depth in zip(WAYS, depths):
        for _ in range(depth):
            f = functools.partial(way, f)
    f()


places = list(itertools.product(range(4), repeat=len(WAYS)))
random.Random(0).shuffle(places)
for depths in places[:800]:
    at(depths, lambda: lend(x).block_until_ready())
results = []
for depths in places[:800]:
    at(depths, lambda: results.append(np.asarray(add(x, y))))
assert len(kept) == len(results) == 800
np.testing.assert_array_equal(results, np.full((800, 3), 21.0))
"""


def test_an_input_that_was_kept_does_not_get_into_other_calls():
    """Keeping a lent input is undefined for that input, and for nothing else."""
    run_python(KEPT)
