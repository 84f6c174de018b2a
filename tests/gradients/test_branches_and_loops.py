"""Functions that branch and loop on values: the gradient is that of the path that was taken."""

import functools
import operator
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import py_function
from tests.gradients.bodies import X3, F
from tests.shared.checks import close
from tests.shared.tables import rows

X = jnp.asarray(X3)


def by_while(x):
    while jnp.sum(x**2) > 1:
        x = x / 2
    return jnp.exp(x)


# A function that looks at values, and the same path written without looking.
BODIES = {
    "float": (lambda x: x**2 if float(jnp.sum(x)) > 0 else x**3, lambda x: x**2),
    "int": (lambda x: x * functools.reduce(operator.mul, [x] * (int(x.sum()) + 1)), lambda x: x**3),
    "bool": (lambda x: jnp.sin(x) if bool(x[0] > 0) and x[1] < 0 else x, jnp.sin),
    "item": (lambda x: x * 2 if x[0].item() > 10 else x * jnp.cos(x), lambda x: x * jnp.cos(x)),
    "asarray": (lambda x: x[np.argsort(np.asarray(x))] ** 2, lambda x: x[jnp.array([1, 0, 2])] ** 2),
    "while": (by_while, lambda x: jnp.exp(x / 4)),
    "iteration": (lambda x: sum(v * v for v in x if v > 0) * x, lambda x: (x[0] ** 2 + x[2] ** 2) * x),
    "a bound of fori_loop": (lambda x: jax.lax.fori_loop(0, int(x[2]), lambda i, c: c * x, x), lambda x: x**3),
    "a value taken out is a constant": (lambda x: x * float(x[0]) + np.sort(x), lambda x: x * 0.5 + np.sort(X3)),
    "an op inside": (lambda x: py_function(jnp.sin, [x], F) * x if x[0] > 0 else x, lambda x: jnp.sin(x) * x),
}


@pytest.mark.parametrize("name", rows(BODIES, ["while"]))
def test_gradient(name):
    body, path = BODIES[name]
    f = lambda x: py_function(body, [x], F, output_shapes=(3,))
    value, pull = jax.vjp(f, X)
    wanted, pull_of_path = jax.vjp(jax.jit(path), X)
    close(value, wanted)
    for cotangent in (jnp.ones(3), jnp.array([0.0, 3.0, -2.0])):
        close(pull(cotangent)[0], pull_of_path(cotangent)[0])
    close(jnp.sum(jax.jvp(f, (X,), (X,))[1]), jnp.sum(pull_of_path(jnp.ones(3))[0] * X))


def test_each_call_takes_its_own_path():
    """One compiled program, whose function takes another path for each value."""
    step = jax.jit(jax.grad(lambda x: py_function(lambda x: x**2 if x > 0 else -x, [x], F)))
    assert [float(step(v)) for v in (3.0, -3.0, 4.0, -4.0, 0.5)] == [6.0, -1.0, 8.0, -1.0, 1.0]


def test_each_call_has_the_derivative_of_the_value_that_it_returned():
    """Also where both values are computed in each call."""
    slope = jax.grad(lambda x: py_function(lambda x: (jnp.cos(x), jnp.sin(x))[int(x > 0)], [x], F))
    close([slope(1.0), slope(-1.0)], [np.cos(1.0), np.sin(1.0)])


def looks_everywhere(x):
    total, on_device = x.sum(), jnp.asarray(X3)
    assert ["1.25" in text for text in (f"{total:.2f}", str(total), repr(total))] == [True] * 3
    assert [total.item(), float(total), complex(total), np.float32(total), int(total)] == [1.25] * 4 + [1]
    assert bool(total) is True
    assert [float(v) for v in x] == x.tolist() == np.asarray(x).tolist() == X3.tolist()
    assert (operator.index(jnp.argmax(x)), X3[jnp.argmax(x)]) == (2, 2.0)
    assert isinstance(x, jax.Array)
    assert (len(x), x.shape, x.ndim, x.size, x.nbytes, x.dtype) == (3, (3,), 1, 3, 12, jnp.float32)
    assert (x.device, x.sharding, x.devices()) == (on_device.device, on_device.sharding, on_device.devices())
    assert bytes(x) == x.tobytes() == X3.tobytes()
    assert jnp.from_dlpack(x).tolist() == np.from_dlpack(x).tolist() == x.tolist()
    assert (x.is_deleted(), x.is_ready(), x.is_fully_addressable, x.is_fully_replicated) == (False, True, True, True)
    assert x.addressable_data(0).tolist() == x.addressable_shards[0].data.tolist() == x.tolist()
    assert (np.add(x, x) == 2 * X3).all()
    assert pickle.loads(pickle.dumps(x)).tolist() == x.tolist()
    assert x.block_until_ready() is x
    x.copy_to_host_async()
    return x * 3.0


def test_every_way_to_look_at_a_differentiated_array():
    close(jax.grad(lambda x: py_function(looks_everywhere, [x], F).sum())(X), [3, 3, 3])


@pytest.mark.slow
def test_what_has_no_tangent_is_a_plain_array():
    """Operations on inputs that are not differentiated are not recorded, and give what JAX gives."""
    seen = []

    def body(w, data):
        for f in (jnp.exp, lambda y: y + 1, lambda y: y[1], jnp.argmax):
            got, want = f(data), f(X)
            assert (type(got), got.aval) == (type(want), want.aval)
            np.testing.assert_array_equal(got, want)
        seen.append((type(data), type(w)))
        return (w * jnp.sin(data)).sum()

    loss = lambda w, data: py_function(body, [w, data], F, output_shapes=())
    for derive in (jax.grad, jax.jacfwd):
        close(derive(loss)(F(2), X), jnp.sin(X).sum())
    assert all(data is type(X) and w is not type(X) for data, w in seen)
