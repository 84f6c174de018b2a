"""Reads `output_shapes`, completes it with shapes that were inferred, and checks the shapes of results."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._op.values.spec import Leaf, ResultSpec, Shape, fits, paired, show_shape
from jaxpyop._op.values.tout import spec_of


def with_shapes(spec: ResultSpec, shapes: Any, title: str) -> ResultSpec:
    """Read `output_shapes` into the spec. It is not a function here."""
    if shapes is None or (spec.empty and not jax.tree.leaves(shapes)):
        return spec
    leaves = tuple(_leaves_with_shapes(spec.returned.skeleton, shapes, title))
    return spec_of(jax.tree.structure(spec.returned.skeleton), leaves) if leaves else spec


def _leaves_with_shapes(skeleton: Any, shapes: Any, title: str) -> list[Leaf]:
    if shapes is None:
        return jax.tree.leaves(skeleton)
    if isinstance(skeleton, Leaf):
        return [_with_shape(skeleton, _read_shape(shapes, title), title)]
    if (parts := paired(skeleton, shapes)) is None:
        raise ValueError(
            f"{title}: output_shapes must have the structure of Tout with a shape at each leaf; "
            f"Tout is {jax.tree.map(lambda leaf: leaf.dtype.name, skeleton)} and output_shapes is {shapes!r}"
        )
    return [leaf for _, child, shape in parts for leaf in _leaves_with_shapes(child, shape, title)]


def _with_shape(leaf: Leaf, shape: Shape | None, title: str) -> Leaf:
    if shape is None:
        return leaf
    if leaf.encoding is not None:
        return leaf.encoding.with_shape(leaf, shape, title)
    if leaf.shape is None or leaf.shape == shape:
        return Leaf(leaf.dtype, shape)
    if leaf.shape_known and fits(leaf.shape, shape):
        return leaf
    raise ValueError(
        f"{title}: Tout gives the shape {show_shape(leaf.shape)} and output_shapes gives {show_shape(shape)}; "
        "give one of them"
    )


def _read_shape(value: Any, title: str) -> Shape | None:
    if value is None:
        return None
    # A tf.TensorShape.
    if hasattr(value, "as_list"):
        return None if value.rank is None else _read_shape(value.as_list(), title)
    if hasattr(value, "shape") and not isinstance(value, np.ndarray):
        value = value.shape
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{title}: output_shapes has {value!r} where a shape is expected, such as (3, None) or ()")
    return tuple(_read_dimension(dimension, title) for dimension in value)


def _read_dimension(value: Any, title: str) -> int | None:
    if value is None:
        return None
    try:
        dimension = operator.index(value)
    except TypeError:
        raise TypeError(f"{title}: output_shapes has the dimension {value!r}; expected an int or None") from None
    if dimension < 0:
        raise ValueError(f"{title}: output_shapes has the dimension {dimension}; write None for an unknown one")
    return dimension


def fill_shape(leaf: Leaf, inferred: Sequence[int] | None, how: str, title: str) -> Sequence[Any]:
    """Complete a leaf's shape with an inferred one.

    Args:
        leaf: the declared result.
        inferred: the inferred shape; None if there is none.
        how: where it comes from, for the error.
        title: the op, for the error.

    Raises:
        ValueError: the two contradict each other, or nothing was inferred.
    """
    if leaf.shape is not None and leaf.shape_known:
        return leaf.shape
    if inferred is not None and (leaf.shape is None or fits(tuple(inferred), leaf.shape)):
        return tuple(inferred)
    found = how if inferred is None else f"{how} is {show_shape(tuple(inferred))}"
    raise ValueError(
        f"{title}: the result's shape must be known (under jit, and for when= and out=); "
        f"output_shapes gives {show_shape(leaf.shape)} and {found}; "
        "give the whole shape as output_shapes=, or a function of the inputs, output_shapes=lambda x: x.shape"
    )


def check_shape(shape: Shape, leaf: Leaf, lead: tuple[int, ...], basis: str, origin: str, title: str) -> None:
    """Raise unless a result has the declared shape, after the batch axes `lead`.

    Args:
        shape: of the result.
        leaf: the declared result.
        lead: the batch axes.
        basis: "declared", or "assumed" and by what.
        origin: the beginning of the error, such as "func returned".
        title: the op, for the error.
    """
    if leaf.shape is None or fits(shape, expected := (*lead, *leaf.shape)):
        return
    own = show_shape(shape[len(lead) :])
    if own == show_shape(leaf.shape):
        advice = f"func gets the whole batch and returns a result for each element, with {show_shape(lead)} in front"
    elif leaf.by_tout:
        advice = f"write that shape in Tout, jax.ShapeDtypeStruct({own}, jnp.{leaf.dtype.name})"
    elif origin == "func returned":
        advice = f"write output_shapes={own}" + (" (or Tout=jnp.float32(0), a scalar)" if own == "()" else "")
    else:
        advice = f"give {own} as its shape in output_shapes="
    found = f"{origin} shape {show_shape(shape)} where {show_shape(expected)} was {basis}"
    # A wrong guess is not the user's mistake, so the line to write comes first.
    raise ValueError(f"{title}: {advice}: {found}" if basis.startswith("assumed") else f"{title}: {found}; {advice}")
