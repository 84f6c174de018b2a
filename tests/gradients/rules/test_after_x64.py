"""A derivative that was made with 64-bit types is the same where they are off: what JAX's own pullbacks do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numpy_function, py_function
from tests.shared.tables import rows


def half_square(x, n):
    return x * x / 2 + 0 * n


def triple(x, n):
    return 3 * x


def rule(inputs, outputs, cotangents):
    return inputs[0] * cotangents, None


def forward(inputs, outputs, tangents):
    return inputs[0] * tangents[0]


PAIR = (lambda x, n: (half_square(x, n), x), lambda x, cotangents: (x * cotangents, None))
OF_OPS = lambda inputs, outputs, ct: (numpy_function(np.multiply, [inputs[0], ct], ct), None)
TRANSPOSE = {"transpose": lambda cotangents: (3 * cotangents, None)}
# An op, its function, and its options.
OPS = {
    "vjp": (numpy_function, half_square, {"vjp": rule}),
    "vjp on JAX": (py_function, half_square, {"vjp": rule}),
    "vjp of ops": (py_function, half_square, {"vjp": OF_OPS}),
    "pair": (numpy_function, half_square, {"vjp": PAIR}),
    "numerical": (numpy_function, half_square, {"vjp": jaxpyop.numerical()}),
    "jvp": (numpy_function, half_square, {"jvp": forward}),
    "jvp on JAX": (py_function, half_square, {"jvp": forward}),
    "transpose": (numpy_function, triple, TRANSPOSE),
    "tape": (py_function, half_square, {}),
    "traced": (py_function, half_square, {"mode": "traced"}),
}
# What gives a linear map, which is called once more where 64-bit types are off.
MAPS = {"vjp": lambda f, x: jax.vjp(f, x)[1], "linearize": lambda f, x: jax.linearize(f, x)[1]}
BATCHES = {
    "one": lambda f: f,
    "vmap": jax.vmap,
    # The cotangent of an input that all elements share is a sum.
    "shared": lambda f: lambda x: jax.vmap(lambda i: f(x) * i)(jnp.arange(3.0)),
}


def maps_of(options):
    """A rule of one mode gives no other."""
    return ["linearize"] if "jvp" in options else ["vjp"] if options.keys() & {"vjp", "transpose"} else [*MAPS]


ROWS = [(name, made, batch) for name in OPS for made in maps_of(OPS[name][2]) for batch in BATCHES]


@pytest.mark.parametrize(("name", "made", "batch"), rows(ROWS, ROWS[:3]))
def test_a_linear_map_keeps_its_64_bits(name, made, batch):
    api, func, options = OPS[name]
    with jax.enable_x64(True):
        n = np.int64(2**40 + 3)
        x = jnp.linspace(1, 2, 4) * (1 + 1e-9) if batch == "vmap" else jnp.float64(1 + 1e-9)
        f = BATCHES[batch](lambda x: api(func, [x, n], jnp.float64, output_shapes=(), **options))
        linear = MAPS[made](f, x)
        vector = jnp.ones_like(f(x) if made == "vjp" else x)
        expected = jax.tree.map(np.asarray, linear(vector))
    for found, wanted in zip(jax.tree.leaves(linear(vector)), jax.tree.leaves(expected), strict=True):
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, wanted)
