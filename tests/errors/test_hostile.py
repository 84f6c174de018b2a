"""Functions that return what they should not: a clear error every time, and the next call is right."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.errors.exceptions import F, X, fail
from tests.shared.checks import run
from tests.shared.functions import numpy_function, py_function


def leaked_tracer():
    kept = []
    jax.jit(lambda x: kept.append(x) or x)(X)
    return kept[0]


def deleted():
    x = jnp.ones(3) * 2
    x.delete()
    return x


def nested(depth=5000):
    made = []
    for _ in range(depth):
        made = [made]
    return made


def thing(base=object, *args, **attributes):
    """An object of a class with these attributes."""
    return type("Thing", (base,), attributes)(*args)


LEAKED, DELETED = leaked_tracer(), deleted()
RING = []
RING.append(RING)
UNREADABLE = {"__len__": lambda self: 1, "__iter__": fail, "__getitem__": fail}
SHAPED = {"shape": (3,), "dtype": np.dtype("float32")}

# What is returned where three float32 are declared, and what the error says.
WRONG = {
    "None": (lambda: None, "None"),
    "string": (lambda: "text", "numbers"),
    "broken repr": (lambda: thing(__repr__=fail), "numbers"),
    "a list that holds itself": (lambda: RING, "a list of 1"),
    "a list nested 5000 deep": (nested, "a list of 1"),
    "a list that cannot be read": (lambda: thing(list, [1.0], **UNREADABLE), "a Thing of 1"),
    "a dict that cannot be read": (lambda: thing(dict, {"a": 1.0}, **UNREADABLE), "a Thing"),
    "wrong count": (lambda: (1.0, 2.0), "a tuple of 2"),
    "dict": (lambda: {"a": 1.0}, "a dict"),
    "wrong shape": (lambda: np.ones((2, 2), np.float32), r"shape \(2, 2\)"),
    "scalar for an array": (lambda: 1.0, r"shape \(\)"),
    "wrong dtype kind": (lambda: np.ones(3, np.complex64), "complex64"),
    "generator": (lambda: (i for i in range(3)), "never run"),
    "masked array": (lambda: np.ma.array([1.0, 2, 3], mask=[0, 1, 0]), "mask would be lost"),
    "object array": (lambda: np.array([1.0, 2, 3], object), "numbers"),
    "datetime64": (lambda: np.zeros(3, "datetime64[s]"), "numbers"),
    "float0": (lambda: np.zeros(3, jax.dtypes.float0), "numbers|bool"),
    "typed key": (lambda: jax.random.key(0), "key_data"),
    "text from __array__": (lambda: thing(__array__=lambda self, dtype=None, copy=None: "text"), "numbers"),
    "an error in __array__": (lambda: thing(__array__=fail), "not an array .*not to be called"),
    "shape and dtype alone": (lambda: thing(**SHAPED), "numbers"),
    "pretends to be an array": (lambda: thing(__class__=property(lambda self: np.ndarray)), "numbers"),
    "deleted array": (lambda: DELETED, "deleted"),
    "a tracer from elsewhere": (lambda: LEAKED, "traced|Tracer"),
}
every_wrong_result = pytest.mark.parametrize(("make", "text"), WRONG.values(), ids=WRONG)


class Sometimes:
    """A function that returns 2x, or what `make` makes, if there is one."""

    make = None

    def __call__(self, x):
        return self.make() if self.make else x * 2


PROGRAMS = {
    "direct": lambda op: op,
    "jit": jax.jit,
    "cut": lambda op: jaxpyop.jit(lambda x: op(x * 1)),
    "jit of vmap": lambda op: jax.jit(lambda x: jax.vmap(op)(jnp.stack([x, x]))[1]),
    "jit of value and grad": lambda op: jax.jit(lambda x: jax.vjp(op, x)[0]),
}


@functools.cache
def programs():
    """One body for each of the two functions, and the programs that call them, which all rows share."""
    bodies = Sometimes(), Sometimes()
    vjp = lambda i, o, c: 2 * c
    ops = (
        lambda x: numpy_function(bodies[0], [x], F, output_shapes=(3,), vjp=vjp),
        lambda x: py_function(bodies[1], [x], F, output_shapes=(3,)),
    )
    return [(body, [wrap(op) for wrap in PROGRAMS.values()]) for body, op in zip(bodies, ops)]


@every_wrong_result
def test_a_wrong_result_is_a_clear_error_and_the_next_call_is_right(make, text):
    for body, calls in programs():
        for f in calls:
            body.make = make
            with pytest.raises((TypeError, ValueError), match=f"'Sometimes': func returned.*({text})"):
                run(f, X)
            body.make = None
            np.testing.assert_array_equal(run(f, X), X * 2)


WHEN_TRACED = ["None", "string", "wrong shape", "wrong dtype kind", "wrong count", "dict", "typed key", "deleted array"]


@pytest.mark.parametrize("mode", ["traced", "auto"])
@pytest.mark.parametrize(("make", "text"), [WRONG[name] for name in WHEN_TRACED], ids=WHEN_TRACED)
def test_a_wrong_result_of_a_traced_function_is_refused_while_jax_traces(make, text, mode):
    body = Sometimes()
    body.make = make
    with pytest.raises((TypeError, ValueError), match=f"'Sometimes': func returned.*({text})"):
        jax.make_jaxpr(lambda x: py_function(body, [x], F, output_shapes=(3,), mode=mode))(X)
