"""Exceptions of every kind, and a function that raises what it is told to."""

import threading

import jax
import jax.numpy as jnp
import numpy as np

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])
JAX_ERRORS = (jax.errors.JaxRuntimeError, ValueError)  # What JAX raises for a function that fails in a program.


def fail(*args):
    raise RuntimeError("not to be called")


class NeedsArguments(Exception):  # noqa: N818
    def __init__(self, code, detail):
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.lock = threading.Lock()  # so that it cannot be pickled


def odd(**methods):
    """An exception of a class with these methods."""
    return type("Odd", (Exception,), methods)("mine")


def with_odd_notes():
    error = ValueError("mine")
    error.__notes__ = 3
    return error


def circular():
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    return first


EXCEPTIONS = {
    "KeyError": lambda: KeyError("mine"),
    "no text": lambda: AssertionError(),
    "StopIteration": lambda: StopIteration(3),
    "OSError": lambda: OSError(2, "no such file", "a.txt"),
    "own class": lambda: NeedsArguments(3, "mine"),
    "broken __str__": lambda: odd(__str__=fail),
    "endless __str__": lambda: odd(__str__=lambda self: str(self)),
    "odd equality": lambda: odd(__eq__=fail, __hash__=None),
    "no notes": lambda: odd(add_note=fail),
    "odd notes": with_odd_notes,
    "circular causes": circular,
    "group": lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("mine"),
    "SystemExit": lambda: SystemExit(3),
    "long text": lambda: ValueError("long " * 50_000),
    "odd characters": lambda: ValueError("%s {0} \x00 \n\n é 漢 [jaxpyop error 1]"),
    "JAX's own": lambda: jax.errors.JaxRuntimeError("mine"),
}


class Failing:
    """A function that fails on negative first elements, and keeps what it raised."""

    __name__ = "failing"

    def __init__(self, make=EXCEPTIONS["KeyError"]):
        self.make = make
        self.raised = []

    def __call__(self, x):
        if np.asarray(x).ravel()[0] < 0:
            self.raised.append(self.make())
            raise self.raised[-1]
        return x * 2


def raised_by(f, *args):
    """What a call raises. pytest.raises asks for its text, which some exceptions do not have."""
    try:
        f(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def finish(f, *args):
    """Run a program to its end, and let JAX's own error out."""
    jax.block_until_ready(f(*args))
    jax.effects_barrier()
