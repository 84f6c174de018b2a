"""How error texts show functions, files, types, and the values of small inputs."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore, _settings
from jaxpyop._functions import without_partials

# An array with more elements, or whose text is longer, is shown by its type alone. It may hold what a log must not.
_MAX_ELEMENTS = 8
_MAX_CHARACTERS = 100
# A line shows this many arrays at most.
_MAX_LEAVES = 16


# -------------------------------------------------------------------------- functions


def plain_function(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside partials and wrappers."""
    func = without_partials(func)
    try:
        return inspect.unwrap(func)
    except ValueError:
        # The wrappers form a circle.
        return func


def _code_of(func: Callable[..., Any]) -> types.CodeType | None:
    code = getattr(func, "__code__", None) or getattr(type(func).__call__, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def where(func: Callable[..., Any]) -> str:
    """`name, file:line` of a callable, as far as they are known."""
    inner = plain_function(func)
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    code = _code_of(inner)
    return f"{name}, {shown_file(code.co_filename)}:{code.co_firstlineno}" if code else str(name)


def shown_file(filename: str) -> str:
    """The name of a file, or `Cell In[7]` for the temporary file of a notebook's cell."""
    # IPython 8 and 9 have these names. Without them the name of the file does.
    with contextlib.suppress(Exception):
        found = sys.modules["IPython"].get_ipython().compile.format_code_name(filename)
        return " ".join(found) if found else filename
    return filename


# -------------------------------------------------------------------- types and values


def show_types(values: Iterable[Any]) -> str:
    """`float32[3], int32[]` for values that have a shape and a dtype."""
    return ", ".join(map(_type_of, values)) or "none"


def _type_of(value: Any) -> str:
    name = value.dtype.name if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended) else np.dtype(value.dtype).name
    return f"{name}[{','.join(map(str, value.shape))}]"


def show_arguments(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """`x=float32[2] [0.5 1. ], n=int32[] 3` for the arguments of a call, with the names of the parameters."""
    try:
        named = inspect.signature(func).bind_partial(*args, **kwargs).arguments
    except Exception:
        # A built-in function without a signature, or arguments that do not fit.
        return show_values((*args, *kwargs.values()))
    return _joined(f"{name}{place}={shown}" for name, value in named.items() for place, shown in _shown_leaves(value))


def show_values(value: Any) -> str:
    """`float32[2] [0.5 1. ], int32[] 3` for the arrays in a structure."""
    return _joined(shown for _, shown in _shown_leaves(value))


def _joined(parts: Iterator[str]) -> str:
    shown = list(itertools.islice(parts, _MAX_LEAVES))
    more = sum(1 for _ in parts)
    return (", ".join(shown) or "none") + (f", and {more} more" if more else "")


def _shown_leaves(value: Any) -> Iterator[tuple[str, str]]:
    """The place and the text of each leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(value)
    return ((jax.tree_util.keystr(path), _shown_leaf(leaf)) for path, leaf in leaves)


def _shown_leaf(leaf: Any) -> str:
    if type(leaf) in (bool, int, float, complex):
        return _short(type(leaf).__name__, str(leaf))
    # A class such as np.float32 has these names too.
    if isinstance(leaf, type) or not (hasattr(leaf, "dtype") and isinstance(getattr(leaf, "shape", None), tuple)):
        # A text may be a password.
        return type(leaf).__name__
    kind = _type_of(leaf)
    with contextlib.suppress(Exception):
        return _short(kind, _value_of(leaf))
    # The array is traced, deleted, or on devices of another process.
    return kind


def _value_of(leaf: Any) -> str:
    """The values of a small array of numbers; an empty text for any other."""
    is_number = jax.dtypes.issubdtype(leaf.dtype, np.number) or leaf.dtype == np.bool_
    if isinstance(leaf, _jaxcore.Tracer) or leaf.size > _MAX_ELEMENTS or not is_number:
        return ""
    array = _settings.with_transfers(np.asarray, leaf)
    return " ".join(np.array2string(array, max_line_width=_MAX_CHARACTERS, threshold=_MAX_ELEMENTS).split("\n"))


def _short(kind: str, text: str) -> str:
    return f"{kind} {text}" if text and len(text) <= _MAX_CHARACTERS else kind
