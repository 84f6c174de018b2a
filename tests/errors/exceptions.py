"""Exceptions of every kind, and a function that raises what it is told to."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])
JAX_ERRORS = (jax.errors.JaxRuntimeError, ValueError)  # What JAX raises for a function that fails in a program.


class NeedsArguments(Exception):  # noqa: N818
    def __init__(self, code, detail):
        super().__init__(f"{code}: {detail}")
        self.code = code


class BrokenStr(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("no text")


class EndlessStr(Exception):  # noqa: N818
    def __str__(self):
        return str(self)


class BrokenRepr(Exception):  # noqa: N818
    def __repr__(self):
        raise RuntimeError("no repr")


class OddEquality(Exception):  # noqa: N818
    def __eq__(self, other):
        raise RuntimeError("not comparable")

    __hash__ = None


class ReadOnlyNotes(Exception):  # noqa: N818
    def add_note(self, note):
        raise RuntimeError("no notes")


class Unpicklable(Exception):  # noqa: N818
    def __init__(self, text):
        self.lock = threading.Lock()


class BaseOnly(BaseException):
    pass


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
    "UnicodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "MemoryError": lambda: MemoryError("mine"),
    "RecursionError": lambda: RecursionError("mine"),
    "own class": lambda: NeedsArguments(3, "mine"),
    "broken __str__": lambda: BrokenStr("mine"),
    "endless __str__": lambda: EndlessStr("mine"),
    "broken __repr__": lambda: BrokenRepr("mine"),
    "odd equality": lambda: OddEquality("mine"),
    "no notes": lambda: ReadOnlyNotes("mine"),
    "odd notes": with_odd_notes,
    "unpicklable": lambda: Unpicklable("mine"),
    "circular causes": circular,
    "group": lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    "base group": lambda: BaseExceptionGroup("several", [KeyboardInterrupt("one"), KeyError("two")]),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("mine"),
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": lambda: GeneratorExit("mine"),
    "own base": lambda: BaseOnly("mine"),
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
