"""Types of values that are a Python number on one path, and an array or another kind of number on another path.

In JAX, a Python number in an operation takes the dtype of the arrays in it. So if such a value meets an array, the
dtype of the result can depend on the path. A program has one dtype for it, so the operation is refused if the dtypes of
the paths differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore as core

_PYTHON = {"b": bool, "i": int, "u": int, "f": float, "c": complex}
# Pairs of a dtype, and whether it is weak: whether it gives way to other dtypes, as the dtype of a Python number does.
Types = frozenset[tuple[Any, bool]]
DEPENDS_ON_PATH = (
    "the dtype of this operation depends on the path: a variable is an int, a float or an array, from path to path",
    "write the number in the same way on all paths (2.0 instead of 2), or make it an array",
)


def weakened(x: Any) -> Any:
    """Returns a value of the same dtype that gives way to the dtype of others, as a Python number does."""
    return jax.lax.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None)


def types_of(x: Any) -> Types:
    """Returns the types that a scalar can have. There are several if its type depends on the path."""
    if found := getattr(x, "number_types", None):
        return found
    aval = jax.typeof(x)
    is_number = isinstance(x, (bool, int, float, complex)) or getattr(x, "counts_as", "") == "python"
    return frozenset([(aval.dtype, is_number or aval.weak_type)])


def types_after(values: Iterable[Any], *, is_division: bool = False) -> Types:
    """Returns the types that the result of an operation can have."""
    found: set[tuple[Any, bool]] = set()
    for types in itertools.product(*map(types_of, values)):
        dtype = jax.numpy.result_type(*(_PYTHON[np.dtype(d).kind] if weak else d for d, weak in types))
        if is_division and not jax.dtypes.issubdtype(dtype, np.inexact):
            dtype = jax.dtypes.canonicalize_dtype(float)
        found.add((dtype, all(weak for _, weak in types)))
    return frozenset(found)


def note_types(outs: Iterable[Any], values: Sequence[Any], params: Mapping[str, Any]) -> None:
    """Notes the types that the results of an operation of JAX can have, if the types of its operands are not known.

    The dtype of a result may be another one, as `jnp.sin(1)` is a float. Then it is refused without need.
    """
    dtypes = {x.dtype for x in values if getattr(x, "number_types", None)}
    is_cast = params.get("weak_type", values[0].aval.weak_type) != values[0].aval.weak_type
    types = types_after(values)
    for out in outs:
        if isinstance(out, core.Tracer) and out.dtype in dtypes and not is_cast and len(types) > 1:
            out.number_types = types


def depends_on_path(values: Iterable[Any]) -> bool:
    """Tells whether the dtype of an operation on a number and on an array among these operands depends on the path."""
    values = list(values)
    numbers = [x for x in values if getattr(x, "number_types", None)]
    arrays = [x for x in values if numbers and not getattr(x, "number_types", None) and _decides(x)]
    return any(len({dtype for dtype, _ in types_after(pair)}) > 1 for pair in itertools.product(numbers, arrays))


def _decides(x: Any) -> bool:
    """Tells whether a number takes the dtype of this value."""
    return any(dtype != np.dtype(bool) and not weak for dtype, weak in types_of(x))
