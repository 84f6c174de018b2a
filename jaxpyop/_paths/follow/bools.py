"""Traced bools that count as Python's do: ``True + True`` is 2, where the sum of two arrays of bools is "or".

If `x` is an array, `not x` is a bool of Python's, and `x > 0` is an array of bools. A variable may hold the first
before a loop, and the second after an iteration. Then arithmetic on it would depend on the path, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow.number_types import weakened
from jaxpyop._paths.follow.python_numbers import with_bounds
from jaxpyop._paths.follow.tracer import ARRAY, MIXED, PYTHON, BoolTracer, PathTracer


def bool_kind_of(x: Any) -> str:
    """Returns what a bool, traced or not, is when Python runs the function."""
    if isinstance(x, BoolTracer):
        return x.counts_as
    return PYTHON if isinstance(x, bool) else ARRAY


def common_bool_kind(bool_kinds: Sequence[str]) -> str:
    return bool_kinds[0] if len(set(bool_kinds)) == 1 else MIXED


def with_bool_kind(x: Any, bool_kind: str) -> Any:
    """Returns a traced bool as one of this kind."""
    if not isinstance(x, PathTracer) or x.dtype != bool or x.ndim or bool_kind_of(x) == bool_kind:
        return x
    return x._trace.keep(PathTracer(x._trace, x.val) if bool_kind == ARRAY else BoolTracer(x._trace, x.val, bool_kind))


def as_array(x: Any) -> Any:
    """Returns a traced bool as JAX's functions see it: an array."""
    return with_bool_kind(x, ARRAY)


def _as_number(x: Any) -> Any:
    if not isinstance(x, BoolTracer):
        return x
    number = jax.lax.convert_element_type(as_array(x), jax.dtypes.canonicalize_dtype(int))
    return with_bounds(weakened(number), (0, 1))


def _is_bool(x: Any) -> bool:
    return isinstance(x, bool) or np.dtype(bool) == getattr(x, "dtype", None)


def _is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex)) or bool(getattr(jax.typeof(x), "weak_type", False))


def _operator(name: str) -> Callable[..., Any]:
    logical = name.strip("_") in ("and", "or", "xor", "rand", "ror", "rxor")
    comparison = name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
    original = getattr(PathTracer, name)

    def operate(self: BoolTracer, *others: Any) -> Any:
        if not all(isinstance(x, (bool, int, float, complex)) or hasattr(x, "dtype") for x in others):
            return NotImplemented
        bool_kinds = {bool_kind_of(x) for x in others if _is_bool(x)}
        if logical and all(map(_is_bool, others)):
            found = original(as_array(self), *map(as_array, others))
            return with_bool_kind(found, common_bool_kind([self.counts_as, *bool_kinds]))
        if self.counts_as == PYTHON and bool_kinds == {ARRAY}:
            return original(as_array(self), *others)
        if not comparison and MIXED in {self.counts_as, *bool_kinds} and (bool_kinds or not others):
            _refuse(self)
        found = getattr(_as_number(self), name)(*map(_as_number, others))
        is_python = self.counts_as == PYTHON and all(
            bool_kind_of(x) == PYTHON if _is_bool(x) else _is_number(x) for x in others
        )
        return with_bool_kind(found, PYTHON if is_python else MIXED) if comparison else found

    operate.__name__ = name
    return operate


def _refuse(tracer: BoolTracer) -> None:
    tracer._trace.run.stop(
        "arithmetic with a bool that is Python's on one path and an array on another: Python counts them differently",
        "write int(x), or jnp.where(x, 1, 0), where it is counted",
    )


_BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor", "divmod"]
_OTHERS = ["eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "round"]
for _name in (f"__{name}__" for name in (*_BINARY, *(f"r{name}" for name in _BINARY), *_OTHERS)):
    if hasattr(core.Tracer, _name):
        setattr(BoolTracer, _name, _operator(_name))
BoolTracer.__hash__ = PathTracer.__hash__  # pyright: ignore[reportAttributeAccessIssue]
