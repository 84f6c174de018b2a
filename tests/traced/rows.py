"""What the tables of functions consist of: a row is a Python function, its inputs, and what traced mode makes of it.

TABLE = Table()

@TABLE.equal                      # traced mode gives what Python gives
def clipped(x): ...

@TABLE.either(points=[0.5, 3.0])  # it gives that, or refuses before it gives anything
def counted(x): ...

TABLE.equal_all({"a square": lambda x: x * x}, slow=True)
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop

F = jnp.float32
FLOATS = (0.5, 7.0, 2.0)

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Row:
    """A function of numbers or small arrays, whose result is a scalar.

    Attributes:
        name: the id of the row.
        make: makes the function, and a function that tells the state which it changes.
        points: the inputs, one tuple for each call.
        equal: whether the function must be traced. Otherwise it may also be refused.
        slow: whether the row is not among the fast tests.
    """

    name: str
    make: Callable[[], tuple[Function, Callable[[], Any]]]
    points: Sequence[tuple[Any, ...]]
    equal: bool
    slow: bool = False

    @property
    def argnums(self) -> tuple[int, ...]:
        """The inputs that have a derivative."""
        return tuple(i for i, x in enumerate(self.points[0]) if x.dtype.kind == "f")

    def param(self, slow: bool | None = None) -> Any:
        return pytest.param(self, id=self.name, marks=[pytest.mark.slow] * (self.slow if slow is None else slow))


class Table:
    """A list of rows, to which decorators add."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def _add(self, name: str, make: Any, equal: bool, points: Sequence[Any] = FLOATS, **options: Any) -> None:
        tuples = [point if isinstance(point, tuple) else (point,) for point in points]
        arrays = [tuple(np.asarray(x, None if hasattr(x, "dtype") else F) for x in point) for point in tuples]
        self.rows.append(Row(name.replace("_", " ").strip(), make, arrays, equal, **options))

    def _decorator(self, equal: bool, function: Any, made: bool, **options: Any) -> Any:
        def add(f: Any) -> Any:
            def make() -> Any:
                found = f() if made else f
                return found if isinstance(found, tuple) else (found, lambda: None)

            self._add(f.__name__, make, equal, **options)
            return f

        return add(function) if function else add

    def equal(self, function: Any = None, *, made: bool = False, **options: Any) -> Any:
        """Adds a function that must be traced. If `made`, the decorated function makes it, and what tells its state."""
        return self._decorator(True, function, made, **options)

    def either(self, function: Any = None, *, made: bool = False, **options: Any) -> Any:
        """Adds a function that is traced or refused."""
        return self._decorator(False, function, made, **options)

    def equal_all(self, functions: dict[str, Function], **options: Any) -> None:
        for name, f in functions.items():
            self._add(name, lambda f=f: (f, lambda: None), True, **options)

    def either_all(self, functions: dict[str, Function], **options: Any) -> None:
        for name, f in functions.items():
            self._add(name, lambda f=f: (f, lambda: None), False, **options)


def op(function: Function, mode: str, **options: Any) -> Function:
    """The function as an op with one float32 scalar as its result."""
    return lambda *args: jaxpyop.py_function(function, args, F, mode=mode, output_shapes=(), **options)


def is_refusal(error: BaseException) -> bool:
    """Whether the op says that it cannot be traced, with the line."""
    kinds = (TypeError, NotImplementedError, ValueError)
    return isinstance(error, kinds) and re.match(r"(?s)py_function '.*:\d+: ", str(error)) is not None


def raised_by(run: Function, *args: Any) -> Exception:
    """The error that a program raises."""
    try:
        with jaxpyop.reraise():
            jax.block_until_ready(run(*args))
    except Exception as error:
        return error
    raise AssertionError("it raises nothing")
