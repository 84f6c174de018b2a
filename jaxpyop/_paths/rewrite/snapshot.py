"""Snapshots: which containers and objects a block of the user's code changed in place.

A block is run once to be recorded. What it changes in place happens then, while tracing, and not in the program. So the
changes are found and put back, and the statement is refused or followed in another way.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._functions import closure_of, globals_of

_CONTAINERS = (list, dict, set)
# Objects whose content is never looked at.
_OPAQUE = (type, types.ModuleType, types.FunctionType, core.Tracer, jax.Array, np.ndarray)
# A body that can reach more objects than this is not looked at any further.
_MOST_OBJECTS = 2000
_DEPTH = 4


class Snapshot:
    """The content of the lists, dicts, sets and attributes that some functions can reach, at one moment."""

    def __init__(self, *functions: Any) -> None:
        self._seen: dict[int, tuple[str, Any, Any]] = {}
        for function in functions:
            for name, value in _reachable(function):
                self._look(name, value, _DEPTH)

    def _look(self, name: str, value: Any, depth: int) -> None:
        if depth == 0 or id(value) in self._seen or len(self._seen) > _MOST_OBJECTS:
            return
        content = _content(value)
        if content is None:
            return
        if not isinstance(value, tuple):
            self._seen[id(value)] = (name, value, content)
        for part in content.values() if isinstance(content, dict) else content:
            self._look(name, part, depth - 1)

    def put_back(self) -> str | None:
        """Undoes all changes since, and returns the name of the first object that was changed."""
        found = None
        for name, value, content in self._seen.values():
            if not _is_same_content(_content(value), content):
                _set_content(value, content)
                found = found or name
        return found


def _reachable(function: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(function, types.FunctionType):
        yield from closure_of(function).items()
        yield from ((name, value) for name, value in globals_of(function).items() if isinstance(value, _CONTAINERS))


def _content(value: Any) -> Any:
    """Returns a copy of what a container or an object of the user's holds, None if it holds nothing that can change."""
    if isinstance(value, (list, set, tuple)):
        return list(value)
    if isinstance(value, dict):
        return dict(value)
    held = None if isinstance(value, _OPAQUE) else getattr(value, "__dict__", None)
    return dict(held) if isinstance(held, dict) else None


def _is_same_content(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(operator.is_, a.values(), b.values()))
    return len(a) == len(b) and all(map(operator.is_, a, b))


def _set_content(value: Any, content: Any) -> None:
    if isinstance(value, list):
        value[:] = content
        return
    if not isinstance(value, (dict, set)):
        value = value.__dict__
    value.clear()
    value.update(content)
