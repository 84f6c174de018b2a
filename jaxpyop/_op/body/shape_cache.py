"""A cache of the shapes that a function's results have, found by running its Python code on abstract values.

Such a run takes as long as tracing the function, and one program often calls a function in many places. So shapes are
kept if `reads` finds that they depend on nothing but the function's arguments. The key is the function's code, the
constants that it reads, and the types of its inputs.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore
from jaxpyop._config import config
from jaxpyop._op.body.reads import reads_of
from jaxpyop._op.request import Op
from jaxpyop._op.values import Inputs
from jaxpyop._paths import PathError, SlowPathsError

# The shapes that were used longest ago are dropped first.
_MAX_SHAPES = 1024
_Shapes = list[tuple[int, ...]]
_found: collections.OrderedDict[Hashable, _Shapes | None] = collections.OrderedDict()
_lock = threading.Lock()


def infer_once(
    op: Op,
    inputs: Inputs,
    structs: Sequence[jax.ShapeDtypeStruct],
    infer: Callable[[], list[jax.ShapeDtypeStruct]],
) -> _Shapes | None:
    """The shapes of a function's results, in the order of `Tout`; None if they depend on values.

    Args:
        op: the op of the function.
        inputs: how the function is called.
        structs: the shapes and dtypes of its arrays.
        infer: runs the function on abstract values. Raises PathError if the shapes depend on values.
    """
    key = _key(op, inputs, structs)
    if key is not None:
        with _lock:
            if key in _found:
                _found.move_to_end(key)
                return _found[key]
    try:
        shapes = [tuple(s.shape) for s in infer()]
    except SlowPathsError:
        # The next attempt may be faster, so the failure is not kept.
        return None
    except PathError:
        shapes = None
    # If running the function changed what it reads, its shapes are not kept.
    if key is not None and key == _key(op, inputs, structs):
        with _lock:
            _found[key] = shapes
            while len(_found) > _MAX_SHAPES:
                _found.popitem(last=False)
    return shapes


def _key(op: Op, inputs: Inputs, structs: Sequence[jax.ShapeDtypeStruct]) -> Hashable | None:
    spec = op.spec.returned
    # A key must not keep objects of a user's class alive.
    if not all(map(_is_builtin, (inputs.tree, spec.tree))):
        return None
    reads = reads_of(op.func, *inputs.static)
    if reads is None:
        return None
    types = tuple([(s.shape, s.dtype) for s in structs])
    arguments = inputs.tree, inputs.array_mask, inputs.key_impls, types
    # The body will run outside of all named axes, too.
    with _jaxcore.without_axes():
        return reads, arguments, (spec.tree, spec.leaves), config.mode, _jaxcore.settings_of_traces()


def _is_builtin(tree: Any) -> bool:
    """Tell whether a tree is made of lists, tuples and dicts alone."""
    if tree is None or (node := tree.node_data()) is None:
        return True
    return node[0] in (list, tuple, dict, type(None)) and all(map(_is_builtin, tree.children()))
