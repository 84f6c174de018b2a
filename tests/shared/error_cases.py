"""Exceptions of every kind, and functions that raise them."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import jaxpyop

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])


class NeedsArguments(Exception):  # noqa: N818
    def __init__(self, code, detail):
        super().__init__(f"{code}: {detail}")
        self.code = code


class BrokenStr(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("no text")


class BrokenRepr(Exception):  # noqa: N818
    def __repr__(self):
        raise RuntimeError("no repr")


class OddEquality(Exception):  # noqa: N818
    def __eq__(self, other):
        raise RuntimeError("not comparable")

    __hash__ = None


class BaseOnly(BaseException):
    pass


class ReadOnlyNotes(Exception):  # noqa: N818
    def add_note(self, note):
        raise RuntimeError("no notes")


def chained():
    try:
        raise KeyError("the cause")
    except KeyError as error:
        try:
            raise ValueError("the effect") from error
        except ValueError as effect:
            return effect


EXCEPTIONS = {
    "ValueError": lambda: ValueError("mine"),
    "KeyError": lambda: KeyError("mine"),
    "TypeError": lambda: TypeError("mine"),
    "AssertionError": lambda: AssertionError(),
    "ZeroDivisionError": lambda: ZeroDivisionError("division by zero"),
    "StopIteration": lambda: StopIteration(3),
    "OSError": lambda: OSError(2, "no such file", "a.txt"),
    "UnicodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "MemoryError": lambda: MemoryError("mine"),
    "RecursionError": lambda: RecursionError("mine"),
    "own class": lambda: NeedsArguments(3, "mine"),
    "broken __str__": lambda: BrokenStr("mine"),
    "broken __repr__": lambda: BrokenRepr("mine"),
    "odd equality": lambda: OddEquality("mine"),
    "no notes": lambda: ReadOnlyNotes("mine"),
    "group": lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    "base group": lambda: BaseExceptionGroup("several", [KeyboardInterrupt("one"), KeyError("two")]),
    "chained": chained,
    "KeyboardInterrupt": lambda: KeyboardInterrupt("mine"),
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": lambda: GeneratorExit("mine"),
    "own base": lambda: BaseOnly("mine"),
    "long text": lambda: ValueError("long " * 50_000),
    "many lines": lambda: ValueError("one\ntwo\n\nthree"),
    "odd characters": lambda: ValueError("%s {0} \x00 é 漢 [jaxpyop error 1]"),
    "no arguments": lambda: Exception(),
    "JAX's own": lambda: jax.errors.JaxRuntimeError("mine"),
}

SEVERAL = ["KeyError", "own class", "broken __str__", "KeyboardInterrupt", "SystemExit", "group"]


class Failing:
    """A body that fails on negative first elements, and keeps what it raised."""

    __name__ = "failing"

    def __init__(self, make):
        self.make = make
        self.raised = []

    def __call__(self, x):
        if np.asarray(x).ravel()[0] < 0:
            self.raised.append(self.make())
            raise self.raised[-1]
        return x * 2


def raised_by(f, *args):
    """What a call raises; pytest.raises cannot match an exception without text."""
    try:
        f(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def reraised_by(f, *args):
    def call():
        with jaxpyop.reraise():
            f(*args)

    return raised_by(call)


def run(f, *args):
    jax.block_until_ready(f(*args))
    jax.effects_barrier()
