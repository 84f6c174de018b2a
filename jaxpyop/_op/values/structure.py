"""What a body returned, taken apart by the structure of `Tout`.

`match` gives one value per leaf of `Tout`, in the order of JAX's pytrees, and names the place where the two differ.
A list or tuple of numbers is an array where one value is promised and nothing else can be meant.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._op.values.tout import Leaf, ResultSpec, keys_of


class _Difference(NamedTuple):
    """Where a value is not what `Tout` promises there."""

    path: str  # as Python would index it
    skeleton: Any
    value: Any


def kind_of(value: Any) -> str:
    """What a value is, in the words of an error."""
    if value is None:
        return "None"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    if type(value) is dict and all(isinstance(key, (str, int)) for key in value):
        return f"a dict with the keys {list(value)}"
    if isinstance(value, (np.ndarray, jax.Array)):
        return "an array"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def match(spec: ResultSpec, value: Any, api: str) -> list[Any]:
    """Flatten what a body returned by the structure of `Tout`.

    Raises:
        ValueError: too many or too few results, or another structure.
        TypeError: a coroutine or generator, which nobody has run.
    """
    if spec.empty:
        _check_run(value, api)
        if spec.skeleton is None or value is None or _holds_nothing(value):
            return []
        raise ValueError(
            f"{api}: func returned {kind_of(value)} where Tout={spec.skeleton!r} promises no result; "
            "pass Tout=None to ignore what it returns, or give a dtype as Tout"
        )
    out: list[Any] = []
    if (found := _differs(spec.skeleton, value, "", out)) is not None:
        _check_run(value, api)
        raise _mismatch(spec, found, api)
    return out


def _mismatch(spec: ResultSpec, found: _Difference, api: str) -> Exception:
    promised = jax.tree.map(lambda leaf: leaf.dtype.name, spec.skeleton)
    if found.path:
        place = f" {kind_of(found.value)} at result{found.path} where Tout={promised!r} has "
        promise = _shown(found.skeleton)
    else:
        count = len(spec.leaves)
        place = f" {kind_of(found.value)} where Tout={promised!r} promises "
        promise = "one result" if count == 1 else f"{count} results"
    return ValueError(
        f"{api}: func returned{place}{promise}; make the two agree{_advice(found)} (for no result: Tout=None)"
    )


def _shown(skeleton: Any) -> str:
    return str(skeleton) if isinstance(skeleton, Leaf) else kind_of(skeleton)


def _advice(found: _Difference) -> str:
    leaf = found.skeleton
    if isinstance(leaf, Leaf) and leaf.form and leaf.form.arrays > 1 and _is_numeric(found.value):
        return "; rows of several lengths are no array: with vmap_method='sequential' each element has its own"
    alone = isinstance(found.skeleton, Leaf) or (_is_sequence(found.skeleton) and len(found.skeleton) == 1)
    return ", or return np.array(...) for an array" if alone and _is_numeric(found.value) else ""


def _holds_nothing(value: Any) -> bool:
    return _is_container(value) and all(part is None or (_is_container(part) and not part) for part in _inside(value))


IN_A_LOOP = (
    "where an event loop runs already, as in a notebook, asyncio.run(...) needs a thread of its own: "
    "pass executor=concurrent.futures.ThreadPoolExecutor(1)"
)


def _check_run(value: Any, api: str) -> None:
    # Not jax.tree.leaves: a list that holds itself breaks its recursion for good (0.10 to 0.12).
    for part in [value, *(_inside(value) if _is_sequence(value) or isinstance(value, dict) else ())]:
        if not _is_unrun(part):
            continue
        if inspect.iscoroutine(part):
            part.close()  # or Python warns that nobody awaited it
        raise TypeError(
            f"{api}: func returned {kind_of(part)}, which was never run; "
            f"return values: call asyncio.run(...) or list(...) inside func; {IN_A_LOOP}"
        )


def _is_container(value: Any) -> bool:
    return isinstance(value, (list, tuple, dict))


def _inside(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _is_sequence(value: Any) -> bool:
    return type(value) in (list, tuple)


def _is_unrun(value: Any) -> bool:
    return inspect.iscoroutine(value) or inspect.isasyncgen(value) or inspect.isgenerator(value)


# Deep enough for any array, and the end of a list that holds itself.
_DEPTH = 32


def _is_numeric(value: Any, depth: int = 0) -> bool:
    """Whether it is a list or tuple of numbers, of arrays, or of such lists."""
    if not _is_sequence(value) or depth > _DEPTH:
        return False
    return len(value) > 0 and all(
        isinstance(part, (bool, int, float, complex, np.generic, np.ndarray, jax.Array)) or _is_numeric(part, depth + 1)
        for part in value
    )


def _differs(skeleton: Any, value: Any, path: str, out: list[Any]) -> _Difference | None:
    """Add the values at the leaves to `out`, up to the first difference, which is returned."""
    if isinstance(skeleton, Leaf):
        return _leaf_differs(skeleton, value, path, out)
    if _is_sequence(skeleton):
        if not isinstance(value, (list, tuple)) and len(skeleton) == 1:
            return _differs(skeleton[0], value, path, out)  # TensorFlow takes x for [x]
        if not isinstance(value, (list, tuple)) or len(value) != len(skeleton):
            return _Difference(path, skeleton, value)
        parts = [(s, v, f"[{k}]") for k, (s, v) in enumerate(zip(skeleton, value))]
    elif isinstance(skeleton, dict):
        if not isinstance(value, Mapping) or set(value) != set(skeleton):
            return _Difference(path, skeleton, value)
        parts = [(skeleton[key], value[key], f"[{key!r}]") for key in keys_of(skeleton)]
    else:
        children, node = jax.tree_util.tree_flatten(skeleton, is_leaf=lambda x: x is not skeleton)
        try:
            parts = [(s, v, f"[{k}]") for k, (s, v) in enumerate(zip(children, node.flatten_up_to(value)))]
        except ValueError:
            return _Difference(path, skeleton, value)
    for part, inner, step in parts:
        if (found := _differs(part, inner, path + step, out)) is not None:
            return found
    return None


def _leaf_differs(leaf: Leaf, value: Any, path: str, out: list[Any]) -> _Difference | None:
    shape = leaf.shape or ()
    rank = len(shape)
    if _is_sequence(value) and len(value) == 1 and _rank_of(value[0]) >= rank:
        value = value[0]  # TensorFlow takes [x] for x
    if type(value) is tuple and not path:
        pass  # what a function returns that has several results
    elif rank and _is_sequence(value) and not value:
        value = np.zeros((0, *(size or 0 for size in shape[1:])), leaf.dtype)
    elif (rank or path) and _is_numeric(value):
        value = _as_array(value)
    if value is None or _is_container(value) or _is_unrun(value):
        return _Difference(path, leaf, value)
    out.append(value)
    return None


def _rank_of(value: Any) -> float:
    found = _as_array(value)
    return float("inf") if isinstance(found, (list, tuple)) else getattr(found, "ndim", 0)


def _as_array(value: Any) -> Any:
    """An array of a list of numbers; where JAX's arrays are in it, one of theirs."""
    if not _is_numeric(value):
        return value
    try:
        return jnp.asarray(value) if any(isinstance(part, jax.Array) for part in value) else np.asarray(value)
    except (ValueError, TypeError):  # the second is JAX's
        return value  # rows of several lengths: no array
