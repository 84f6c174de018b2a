"""Warns if a function changes an input that is an object with state, such as a Flax NNX module.

The function gets a copy of such an object, made of the arrays that came through the program. A change of it is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore
from jaxpyop._op.request import Op


def call_and_warn_of_changes(op: Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an op's function, and warn once for each of its inputs whose leaves it replaced."""
    objects = [(of, x, _leaves(x)) for of, x in _objects(args, kwargs)]
    found = op.func(*args, **kwargs)
    for of, x, before in objects:
        after = _leaves(x)
        # A leaf that was added or removed counts under its own path, a leaf that was replaced under its old one.
        changed = [path for path in (*before, *after) if before.get(path, x) is not after.get(path, x)]
        if changed:
            _warn(op, of, changed[0])
    return found


def _leaves(x: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(x)}


def _objects(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The objects among the inputs, and in their containers, each with a name.

    A list, dict or tuple that the function changes is its own, as everywhere in JAX.
    """
    inputs = [(f"inp[{k}]", x) for k, x in enumerate(args)] + [(repr(name), x) for name, x in kwargs.items()]
    is_object = lambda x: not isinstance(x, (dict, list, tuple))
    found = [(of, jax.tree_util.tree_leaves_with_path(x, is_leaf=is_object)) for of, x in inputs]
    named = [(of + jax.tree_util.keystr(path), x) for of, parts in found for path, x in parts]
    return [(of, x) for of, x in named if not isinstance(x, jax.Array)]


def _warn(op: Op, of: str, path: str) -> None:
    _jaxcore.warn_once(
        ("input", op.title, of),
        f"{op.title}: func changed {path or 'a leaf'} of {of}, which is a copy of the caller's object: the change is "
        "lost; return the new state as a result (in Flax NNX: nnx.split and nnx.update; docs: recipes, flax)",
    )
