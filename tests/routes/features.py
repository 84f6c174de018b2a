"""The features, a row for each keyword and thing that an op can do: a program, and the same one in plain JAX.

Every program takes an array of three numbers between 0 and 2. All functions are defined by this module, because a
loaded program finds them by their names.
"""

import concurrent.futures
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from jaxpyop import numerical, numpy_function, padded, py_func, py_function

F = jnp.float32
X = np.array([0.4, 1.0, 1.4], F)
POOL = concurrent.futures.ThreadPoolExecutor(2)

# What the functions with effects noted.
NOTES: list[Any] = []


@dataclasses.dataclass(frozen=True)
class Feature:
    """A program that calls Python.

    Attributes:
        program: a function of one array.
        plain: the same function in plain JAX.
        order: the highest derivative that it has. The next one is refused. None if its result has no derivatives.
        stateful: whether its function runs exactly once per execution, and adds to `NOTES` each time.
        loads: whether the program can be saved and loaded.
        needs_values: whether its derivative needs the values of what is differentiated, which public JAX does not give.
        tolerance: how far derivatives may be off, relative to their size.
    """

    program: Callable[[jax.Array], Any]
    plain: Callable[[jax.Array], Any]
    order: int | None = 99
    stateful: bool = False
    loads: bool = True
    needs_values: bool = False
    tolerance: float = 1e-5


# ------------------------------------------------------- the Python functions


def branches(x):
    if float(jnp.sum(x)) > 100:
        return x
    return x**3


def newton(x):
    root = x
    for _ in range(20):
        root = (root + x / root) / 2
    return root


def branches_on_values(x):
    if jnp.sum(x) > 3:
        return x**2
    return x**3


def np_cube(x):
    assert isinstance(x, np.ndarray)
    return x**3


def vjp_of_cube(inputs, outputs, cotangents):
    return (3 * inputs[0] ** 2 * cotangents,)


def jvp_of_cube(inputs, outputs, tangents):
    return 3 * inputs[0] ** 2 * tangents[0]


def fwd_of_cube(x):
    return x**3, 3 * x**2


def bwd_of_cube(slope, cotangents):
    return (slope * cotangents,)


def scale(x):
    return 4 * x


def transpose_of_scale(cotangents):
    return (4 * cotangents,)


def write_into_its_input(x):
    x *= 3
    return x


def fill(x, *, out):
    np.multiply(x, 5, out=out)


def sum_and_parts(x):
    return {"sum": x.sum(), "parts": [x * 2, x + 1]}


def positive_first(x):
    return x[x > 0.75]


def note(x):
    NOTES.append(np.array(x))
    return x * 2


def note_alone(x):
    NOTES.append(np.array(x))


def fails(x):
    raise KeyError("no such sample")


def fails_below_a_half(x):
    if x.min() < 0.5:
        raise ValueError("too small")
    return x[:1], x * 2


def scaled(x, *, by):
    return x["x"] * by


def whole_part(x):
    return x.astype(np.int32)


def several_at_once(x):
    return x * 2 + x.ndim * 0


# ----------------------------------------------------------- the table


def _greater_in_jax(x):
    order = jnp.argsort(jnp.where(x > 0.75, 0, 1), stable=True)
    count = jnp.sum(x > 0.75)
    return jnp.where(jnp.arange(3) < count, x[order], -1), count


def _cube(x):
    return x**3


def _twice(x):
    return x * 2


def _without_result(x):
    py_func(note_alone, [x], None)
    return _twice(x)


FAILING = Feature(lambda x: numpy_function(fails, [x], F, vjp=vjp_of_cube, jvp=jvp_of_cube), _cube)

FEATURES = {
    "py_function": Feature(
        lambda x: py_function(branches, [x], F), lambda x: jnp.where(x.sum() > 100, x, x**3), needs_values=True
    ),
    "py_function with a loop": Feature(lambda x: py_function(newton, [x], F), jnp.sqrt, tolerance=1e-3),
    "numpy_function": Feature(lambda x: numpy_function(np_cube, [x], F), _cube, order=0),
    "py_func": Feature(lambda x: py_func(note, [x], F), _twice, order=0, stateful=True),
    "contrib.framework.py_func": Feature(
        lambda x: jaxpyop.contrib.framework.py_func(scaled, args=[{"x": x}], kwargs={"by": 2.0}, output_types=F),
        _twice,
        order=0,
    ),
    "vjp=": Feature(lambda x: numpy_function(np_cube, [x], F, vjp=vjp_of_cube, jvp=jvp_of_cube), _cube, order=1),
    "vjp=(fwd, bwd)": Feature(
        lambda x: numpy_function(np_cube, [x], F, vjp=(fwd_of_cube, bwd_of_cube), jvp=jvp_of_cube), _cube, order=1
    ),
    "vjp=numerical()": Feature(
        lambda x: numpy_function(np_cube, [x], F, vjp=numerical(step=[5e-3])),
        _cube,
        order=1,
        tolerance=1e-2,
    ),
    "transpose=": Feature(lambda x: numpy_function(scale, [x], F, transpose=transpose_of_scale), lambda x: 4 * x),
    "a written input": Feature(lambda x: numpy_function(write_into_its_input, [x], F), lambda x: 3 * x, order=0),
    "copy=False": Feature(lambda x: numpy_function(np_cube, [x], F, copy=False), _cube, order=0),
    "out=True": Feature(lambda x: numpy_function(fill, [x], F, out=True), lambda x: 5 * x, order=0),
    "nested Tout": Feature(
        lambda x: py_function(
            sum_and_parts, [x], {"sum": F(0), "parts": [F, F]}, output_shapes={"sum": (), "parts": [(3,), (3,)]}
        ),
        lambda x: {"sum": x.sum(), "parts": [x * 2, x + 1]},
    ),
    "padded": Feature(
        lambda x: numpy_function(positive_first, [x], padded(F, (3,), fill_value=-1)), _greater_in_jax, order=0
    ),
    "a whole dtype": Feature(
        lambda x: numpy_function(whole_part, [x], jnp.int32), lambda x: x.astype(jnp.int32), order=None
    ),
    "stateful=True": Feature(
        lambda x: py_function(note, [x], F, stateful=True), _twice, order=1, stateful=True, needs_values=True
    ),
    "ordered=True": Feature(lambda x: py_func(note, [x], F, ordered=True), _twice, order=0, stateful=True),
    "Tout=None": Feature(_without_result, _twice, stateful=True),
    "when=": Feature(lambda x: numpy_function(np_cube, [x], F, when=x[0] < 10), _cube, order=0),
    "on_error=": Feature(
        lambda x: numpy_function(fails_below_a_half, [x], (padded(F, 2), jnp.ones(3)), on_error=(0.0, -1.0))[1],
        lambda x: jnp.where(x.min() < 0.5, -1.0, x * 2),
        order=0,
    ),
    "executor=": Feature(
        lambda x: numpy_function(np_cube, [x], F, executor=POOL, vmap_method="parallel"), _cube, order=0, loads=False
    ),
    'vmap_method="expand_dims"': Feature(
        lambda x: numpy_function(several_at_once, [x], F, vmap_method="expand_dims"), _twice, order=0
    ),
    'vmap_method="broadcast_all"': Feature(
        lambda x: numpy_function(several_at_once, [x], F, vmap_method="broadcast_all"), _twice, order=0
    ),
    'mode="traced"': Feature(
        lambda x: py_function(branches_on_values, [x], F, mode="traced"), lambda x: jnp.where(x.sum() > 3, x**2, x**3)
    ),
}
