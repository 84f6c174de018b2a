"""The results' shapes that a function has in the abstract, once for each function and the types of its inputs.

To find them its Python code runs, which takes as long as tracing it. A function is known by what it reads (`reads`),
so that one that is made anew in each trace is found again, and one that reads something else by now is not.
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

_MOST = 1024  # those that were used longest ago go first
_Shapes = list[tuple[int, ...]]
_found: collections.OrderedDict[Hashable, _Shapes | None] = collections.OrderedDict()
_lock = threading.Lock()


def inferred(
    op: Op,
    inputs: Inputs,
    structs: Sequence[jax.ShapeDtypeStruct],
    infer: Callable[[], list[jax.ShapeDtypeStruct]],
) -> _Shapes | None:
    """The shapes of what a function returns, in the order of `Tout`; None where values decide.

    Args:
        op: whose function.
        inputs: how it is called.
        structs: with arrays of these shapes and dtypes.
        infer: finds out; raises PathError where values decide.
    """
    key = _key(op, inputs, structs)
    if key is not None:
        with _lock:
            if key in _found:
                _found.move_to_end(key)
                return _found[key]
    try:
        shapes = [tuple(s.shape) for s in infer()]
    except SlowPathsError:  # on another day it may be faster
        return None
    except PathError:
        shapes = None
    if key is not None and key == _key(op, inputs, structs):  # a run that changes what it reads is another each time
        with _lock:
            _found[key] = shapes
            while len(_found) > _MOST:
                _found.popitem(last=False)
    return shapes


def _key(op: Op, inputs: Inputs, structs: Sequence[jax.ShapeDtypeStruct]) -> Hashable | None:
    spec = op.spec.returned
    if not all(map(_is_builtin, (inputs.tree, spec.tree))):  # what a user's class holds would live as long as the key
        return None
    reads = reads_of(op.func, *inputs.static)
    if reads is None:
        return None
    types = tuple([(s.shape, s.dtype) for s in structs])
    given = inputs.tree, inputs.array_mask, inputs.key_impls, types
    with _jaxcore.without_axes():  # as it will run
        key = reads, given, (spec.tree, spec.leaves), config.mode, _jaxcore.settings_of_traces()
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _is_builtin(tree: Any) -> bool:
    """Whether a tree is made of lists, tuples and dicts alone."""
    if tree is None or (node := tree.node_data()) is None:
        return True
    return node[0] in (list, tuple, dict, type(None)) and all(map(_is_builtin, tree.children()))
