"""The declared results of an op, once `Tout` and `output_shapes` are read: one `Leaf` per result.

A function may return something else than its op: a padded result is one array of the function and two of the op. Then
there are two specs. The op's own has a leaf for each of the op's arrays. Its `returned_spec` has a leaf for each value
that the function returns, and the leaves there have an `Encoding` that turns the one into the other.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import jax
import numpy as np

Shape: TypeAlias = tuple[int | None, ...]
Struct = jax.ShapeDtypeStruct


class Encoding(Protocol):
    """How the op's arrays are made of a value that the function returns.

    Attributes:
        arrays: the number of the op's arrays.
    """

    arrays: int

    def op_leaves(self) -> Any:
        """The leaves of the op's arrays, in the structure that the op returns."""
        ...

    def op_shapes(self, inferred: Any) -> list[Any]:
        """The shapes of the op's arrays, where the function's value has the shape `inferred`."""
        ...

    def with_shape(self, leaf: Leaf, shape: Shape, title: str) -> Leaf:
        """The function's leaf, with what `output_shapes` says about it."""
        ...

    def encode(
        self, value: Any, convert: Callable[[Any], Any], lead: tuple[int, ...], origin: str, title: str
    ) -> list[Any]:
        """The op's arrays for a value that the function returned, after the batch axes `lead`."""
        ...

    def decode(self, arrays: Sequence[Any], results: Sequence[Any]) -> Any:
        """The function's value for the op's `results`; or the value's cotangent, if `results` are cotangents."""
        ...

    def wrap(self, value: Any) -> Any:
        """One of the op's results as the user gets it."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """One declared result.

    Attributes:
        dtype: a dtype that JAX has.
        shape: the shape, as far as it is known.
        encoding: how the op's arrays are made of it, where that is needed.
        fill: the result of a call that `when=` leaves out.
        by_tout: whether the shape was given by `Tout`, for errors.
    """

    dtype: np.dtype[Any]
    shape: Shape | None = None
    encoding: Encoding | None = None
    fill: Any = 0
    by_tout: bool = dataclasses.field(default=False, compare=False)

    def __str__(self) -> str:
        shape = "any shape" if self.shape is None else f"shape {show_shape(self.shape)}"
        return f"{self.dtype.name} of {shape}"

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
        tree: their structure; None where the skeleton is a single leaf or has none.
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

    @property
    def empty_result(self) -> Any:
        """What a call without results returns: None for None, [] for []."""
        return jax.tree.map(lambda leaf: leaf, self.skeleton)


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
    if isinstance(skeleton, dict):
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
