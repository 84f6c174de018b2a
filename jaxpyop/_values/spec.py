"""The declared results of an op, once `Tout` and `output_shapes` are read, and a function's return value beside them.

There is one `Leaf` per result. A function may return something else than its op: a padded result is one array of the
function and two of the op. Then there are two specs. The op's own has a leaf for each of the op's arrays. Its
`returned_spec` has a leaf for each value that the function returns, and some of these leaves have an encoding (see
`encodings`), which turns the one into the other.

`match` flattens what a function returned by the structure of `Tout`, and names the place where the two differ.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore

Shape: TypeAlias = tuple[int | None, ...]
Struct = jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """One declared result.

    Attributes:
        dtype: a dtype that JAX has.
        shape: the shape, as far as it is known.
        encoding: the `Padding` or `KeyEncoding` that makes the op's arrays of it, where that is needed.
        fill: the result of a call that `when=` leaves out.
    """

    dtype: np.dtype[Any]
    shape: Shape | None = None
    encoding: Any = None
    fill: Any = 0

    @property
    def arrays(self) -> int:
        """The number of the op's arrays."""
        return 1 if self.encoding is None else self.encoding.arrays

    @property
    def shape_known(self) -> bool:
        return self.shape is not None and None not in self.shape


@dataclasses.dataclass(frozen=True, slots=True)
class ResultSpec:
    """The results of an op.

    Attributes:
        skeleton: `Tout` with a `Leaf` at each leaf.
        leaves: these leaves.
        tree: their structure.
        returned_spec: what func returns, where the op's arrays encode it.
    """

    skeleton: Any
    leaves: tuple[Leaf, ...]
    tree: Any
    returned_spec: ResultSpec | None = None

    @property
    def returned(self) -> ResultSpec:
        """What func returns. Each of its leaves is one or more of the op's."""
        return self.returned_spec or self

    @property
    def empty(self) -> bool:
        return not self.leaves

    def shapes_of_arrays(self, inferred: Sequence[Any]) -> list[Any]:
        """The shapes of the op's arrays, for these shapes of the values that its function returns."""
        found: list[Any] = []
        for leaf, shape in zip(self.returned.leaves, inferred):
            # The two arrays of a padded result have shapes that `Tout` declares, so these do not matter.
            found += [(*shape, *(leaf.encoding.data_shape if leaf.encoding else ()))] * leaf.arrays
        return found


def show_shape(shape: Shape | None) -> str:
    return "unknown" if shape is None else f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def fits(shape: Shape, pattern: Shape) -> bool:
    """Tell whether a shape matches a pattern, in which None stands for any size."""
    return len(shape) == len(pattern) and all(wanted in (None, size) for size, wanted in zip(shape, pattern))


def paired(skeleton: Any, value: Any) -> list[tuple[Any, Any, Any]] | None:
    """The children of a container of a skeleton, each with its key and the child of `value` there.

    They come in the order of JAX's pytrees. None means that `value` has another structure.
    """
    if type(skeleton) in (list, tuple):
        if not isinstance(value, (list, tuple)) or len(value) != len(skeleton):
            return None
        return [(k, part, inner) for k, (part, inner) in enumerate(zip(skeleton, value))]
    if type(skeleton) in (dict, collections.OrderedDict, collections.defaultdict):
        if not isinstance(value, Mapping) or set(value) != set(skeleton):
            return None
        # JAX sorts the keys of a dict, and keeps the order of an OrderedDict.
        keys = list(skeleton) if isinstance(skeleton, collections.OrderedDict) else sorted(skeleton)
        return [(key, skeleton[key], value[key]) for key in keys]
    children, node = jax.tree_util.tree_flatten(skeleton, is_leaf=lambda x: x is not skeleton)
    try:
        return list(zip(range(len(children)), children, node.flatten_up_to(value)))
    except ValueError:
        return None


# ---------------------------------------------------------------- what a function returned
#
# A list or tuple of numbers is an array if one value is declared there and nothing else can be meant.


class _Difference(NamedTuple):
    """The place where a value is not as `Tout` declares, written as Python would index it."""

    place: str
    skeleton: Any
    value: Any


def kind_of(value: Any) -> str:
    """Name a value's kind for an error."""
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


def match(spec: ResultSpec, value: Any, title: str) -> list[Any]:
    """Flatten a function's return value by the structure of `Tout`.

    Raises:
        ValueError: too many or too few results, or another structure.
        TypeError: a coroutine or generator that has not run.
    """
    if isinstance(spec.skeleton, Leaf) and isinstance(value, _NUMERIC):
        return [value]
    if spec.empty:
        _check_run(value, title)
        if spec.skeleton is None or value is None or _holds_nothing(value):
            return []
        raise ValueError(
            f"{title}: func returned {kind_of(value)} where Tout={spec.skeleton!r} declares no result; "
            "pass Tout=None to ignore what it returns, or give a dtype as Tout"
        )
    out: list[Any] = []
    if (found := _difference(spec.skeleton, value, out, top=True)) is not None:
        _check_run(value, title)
        declared = jax.tree.map(lambda leaf: leaf.dtype.name, spec.skeleton)
        expected = found.skeleton.dtype.name if isinstance(found.skeleton, Leaf) else kind_of(found.skeleton)
        returned, place = kind_of(found.value), f" at result{found.place}" if found.place else ""
        if returned == expected:
            # One class, whose static fields or number of children differ.
            returned, expected = (
                f"{kind_of(part)}, {jax.tree.structure(part, is_leaf=lambda x, part=part: x is not part)},"
                for part in (found.value, found.skeleton)
            )
        raise ValueError(
            f"{title}: func returned {returned}{place} where Tout={declared!r} has {expected.rstrip(',')}; make the "
            f"two agree{_advice(found)} (for no result: Tout=None)"
        )
    return out


def _advice(found: _Difference) -> str:
    alone = isinstance(found.skeleton, Leaf) or (_is_sequence(found.skeleton) and len(found.skeleton) == 1)
    is_array = isinstance(_as_array(found.value), _NUMERIC)
    if alone and _is_sequence(found.value) and found.value and not is_array and all(map(_is_row, found.value)):
        return ", or, if rows of different lengths were meant, fill them up, or declare Tout=jaxpyop.padded(...)"
    return ", or return np.array(...) for an array" if alone and is_array else ""


def _is_row(value: Any) -> bool:
    return _is_sequence(value) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _holds_nothing(value: Any) -> bool:
    return _is_container(value) and all(part is None or (_is_container(part) and not part) for part in _inside(value))


IN_A_LOOP = (
    "where an event loop runs already, as in a notebook, asyncio.run(...) needs a thread of its own: "
    "pass executor=concurrent.futures.ThreadPoolExecutor(1)"
)


def _check_run(value: Any, title: str) -> None:
    # Not jax.tree.leaves: a list that holds itself breaks its recursion for good (JAX 0.10 to 0.12).
    inside = _inside(value) if _is_sequence(value) or isinstance(value, dict) else ()
    for part in filter(_is_unrun, [value, *inside]):
        if inspect.iscoroutine(part):
            # Otherwise Python warns that it was never awaited.
            part.close()
        raise TypeError(
            f"{title}: func returned {kind_of(part)}, which was never run; "
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


_NUMERIC = (np.ndarray, np.generic, float, int, complex, jax.Array)


def _difference(skeleton: Any, value: Any, out: list[Any], *, top: bool) -> _Difference | None:
    """Add the values at the leaves to `out`, up to the first difference, which is returned."""
    if isinstance(skeleton, Leaf):
        return _leaf_difference(skeleton, value, out, top=top)
    if _is_sequence(skeleton) and len(skeleton) == 1 and not isinstance(value, (list, tuple)):
        # As in TensorFlow, x stands for [x].
        return _difference(skeleton[0], value, out, top=top)
    if (parts := paired(skeleton, value)) is None:
        return _Difference("", skeleton, value)
    for key, part, inner in parts:
        if (found := _difference(part, inner, out, top=False)) is not None:
            return found._replace(place=f"[{key!r}]{found.place}")
    return None


def _leaf_difference(leaf: Leaf, value: Any, out: list[Any], *, top: bool) -> _Difference | None:
    if not isinstance(value, _NUMERIC):
        rank = len(leaf.shape or ())
        if _is_sequence(value) and len(value) == 1 and getattr(_as_array(value[0]), "ndim", 0) >= rank:
            # As in TensorFlow, [x] stands for x.
            value = value[0]
        # A function with several results returns a tuple, so a tuple at the top is never an array.
        if not (top and type(value) is tuple):
            if (rank or leaf.shape is None) and _is_sequence(value) and not value:
                value = np.zeros((0, *(size or 0 for size in (leaf.shape or ())[1:])), leaf.dtype)
            elif rank or not top:
                value = _as_array(value)
        if value is None or _is_container(value) or _is_unrun(value):
            return _Difference("", leaf, value)
    out.append(value)
    return None


def _as_array(value: Any) -> Any:
    """Make an array of a list of numbers, a jax.Array if one is in it. Anything else stays as it is."""
    if not _is_sequence(value) or not value:
        return value
    try:
        # A list may have many entries, of few types, and to ask for the type of each would take longer than the rest.
        holds_jax = any(issubclass(kind, (jax.Array, _jaxcore.Tracer)) for kind in set(map(type, value)))
        array = jnp.asarray(value) if holds_jax else np.asarray(value)
    except (ValueError, TypeError):
        # Rows of different lengths do not make an array. NumPy raises a ValueError, JAX a TypeError.
        return value
    return value if array.dtype.kind in "OSUmM" else array
