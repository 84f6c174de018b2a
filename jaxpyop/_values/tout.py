"""Reads `Tout` and `output_shapes`, in all their forms, into a `ResultSpec`, and checks results against it."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from jaxpyop import _dtypes, _jaxcore
from jaxpyop._values.encodings import KeyEncoding, Padding
from jaxpyop._values.spec import Leaf, ResultSpec, Shape, fits, paired, show_shape


def read_tout(tout: Any, title: str) -> ResultSpec:
    """Read `Tout`, in any of its forms."""
    leaves, tree = jax.tree.flatten(tout)
    return spec_of(tree, tuple(_read_leaf(leaf, title) for leaf in leaves))


def spec_of(tree: Any, leaves: tuple[Leaf, ...]) -> ResultSpec:
    """The op's spec, if the function's return value has these leaves."""
    skeleton = jax.tree.unflatten(tree, leaves)
    returned = ResultSpec(skeleton, leaves, tree)
    if all(leaf.encoding is None for leaf in leaves):
        return returned
    of_op = jax.tree.map(lambda leaf: leaf.encoding.op_leaves() if leaf.encoding else leaf, skeleton)
    flat, tree = jax.tree.flatten(of_op)
    return ResultSpec(of_op, tuple(flat), tree, returned)


def _read_leaf(value: Any, title: str) -> Leaf:
    """Read one leaf: a dtype, something with a shape and a dtype, a TensorFlow dtype, a padded result, or a key."""
    if isinstance(value, Padding):
        return _read_padding(value, title)
    # Before .shape and .dtype, since np.float32, the class, has both.
    if isinstance(value, (type, np.dtype, str, type(jax.numpy.float32))) or hasattr(value, "as_numpy_dtype"):
        return Leaf(_read_dtype(value, title))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        if _is_key(value.dtype):
            return Leaf(np.dtype(np.uint32), None, KeyEncoding(value.dtype, tuple(value.shape)))
        return Leaf(_read_dtype(value.dtype, title), tuple(value.shape))
    if _is_key(value):
        return Leaf(np.dtype(np.uint32), None, KeyEncoding(value, None))
    raise TypeError(
        f"{title}: Tout has a leaf {value!r} of type {type(value).__name__}; expected a dtype such as jnp.float32, "
        "jax.ShapeDtypeStruct(shape, dtype), or a list, tuple or dict of these; Tout=None means no result, "
        "and the order of the arguments is func, inp, Tout"
    )


def _is_key(dtype: Any) -> bool:
    try:
        return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))
    except (TypeError, ValueError):
        # It is not a dtype at all.
        return False


def _read_padding(padding: Padding, title: str) -> Leaf:
    dtype = _read_dtype(padding.dtype, title)
    fill = np.asarray(padding.fill_value)
    if fill.shape != () or fill.dtype.kind not in "biufc" or not _holds(dtype, fill):
        raise ValueError(
            f"{title}: {padding} has the fill_value {padding.fill_value!r}, which {dtype.name} does not hold"
        )
    shape = [None if axis in padding.axes else size for axis, size in enumerate(padding.most)]
    return Leaf(dtype, tuple(shape), dataclasses.replace(padding, fill=fill.astype(dtype)))


def _holds(dtype: np.dtype[Any], number: np.ndarray[Any, Any]) -> bool:
    if dtype.kind == "b" or jax.dtypes.issubdtype(dtype, np.integer):
        with np.errstate(invalid="ignore"):
            return bool(number.dtype.kind != "c" and number.astype(dtype) == number)
    return dtype.kind == "c" or number.dtype.kind != "c"


# ---------------------------------------------------------------------- dtypes


def is_extended_precision(dtype: np.dtype[Any]) -> bool:
    """Tell whether it is numpy.longdouble or numpy.clongdouble, which JAX does not have."""
    return dtype.char in "gG" and dtype.itemsize > (8 if dtype.kind == "f" else 16)


def _requested_dtype(dtype: np.dtype[Any], title: str) -> np.dtype[Any]:
    """The dtype that JAX uses where code asks for this one, as `jnp.zeros(2, jnp.float64)` does."""
    # Shorter dtypes are the same with and without x64, and JAX takes a microsecond to say so.
    found = dtype if dtype.itemsize < 8 else _dtypes.canonical_dtype(dtype)
    if found == dtype or (mode := _dtypes.explicit_x64_mode()) == "allow":
        return dtype
    # The first sentences are copied from JAX's own texts, so that filters for them match. Ours is at the user's line.
    # JAX's cannot be caught and moved there: warnings.catch_warnings() is for one thread only.
    requested = f"Explicitly requested dtype {dtype.name} requested in Tout is not available"
    wide = "Call jax.config.update('jax_enable_x64', True) first to have 64 bits"
    if mode == "error":
        raise ValueError(f"{title}: {requested}, and jax_explicit_x64_dtypes is 'error'. {wide}, or declare {found}.")
    _jaxcore.warn_user(f"{requested}, and will be truncated to dtype {found.name}. {wide}.", UserWarning)
    return found


def _read_dtype(raw: Any, title: str) -> np.dtype[Any]:
    raw = getattr(raw, "as_numpy_dtype", raw)
    if isinstance(raw, type) and raw in (bool, int, float, complex):
        return _dtypes.canonical_dtype(raw)
    try:
        dtype = np.dtype(raw).newbyteorder("=")
    except TypeError:
        raise TypeError(f"{title}: Tout has {raw!r}, which is not a dtype; write, say, Tout=jnp.float32") from None
    if dtype.kind in "OSUMm" or dtype.fields is not None or is_extended_precision(dtype):
        raise TypeError(
            f"{title}: Tout has the dtype {dtype}, which JAX does not have; "
            "Tout must name numbers or booleans, such as jnp.float32"
        )
    return _requested_dtype(dtype, title)


# ---------------------------------------------------------------------- shapes


def with_shapes(spec: ResultSpec, shapes: Any, title: str) -> ResultSpec:
    """Read `output_shapes` into the spec. It is not a function here."""
    if shapes is None or (spec.empty and not jax.tree.leaves(shapes)):
        return spec
    return spec_of(spec.returned.tree, tuple(_leaves_with_shapes(spec.returned.skeleton, shapes, title)))


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
    if shape is None or leaf.shape == shape:
        return leaf
    if leaf.encoding is not None:
        raise ValueError(
            f"{title}: output_shapes gives {show_shape(shape)} for a padded result or a typed key; write None, and "
            "for keys Tout=jax.ShapeDtypeStruct(shape, key.dtype)"
        )
    if leaf.shape is None:
        return Leaf(leaf.dtype, shape)
    if leaf.shape_known and fits(leaf.shape, shape):
        return leaf
    raise ValueError(
        f"{title}: Tout gives the shape {show_shape(leaf.shape)} and output_shapes gives {show_shape(shape)}; "
        "give one of them"
    )


def _read_shape(value: Any, title: str) -> Shape | None:
    # A tf.TensorShape.
    if hasattr(value, "as_list"):
        return None if value.rank is None else _read_shape(value.as_list(), title)
    if hasattr(value, "shape") and not isinstance(value, np.ndarray):
        value = value.shape
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{title}: output_shapes has {value!r} where a shape is expected, such as (3, None) or ()")
    return tuple(_read_dimension(dimension, title) for dimension in value)


def _read_dimension(value: Any, title: str) -> Any:
    if value is None or jax.export.is_symbolic_dim(value):
        return value
    try:
        dimension = operator.index(value)
    except TypeError:
        dimension = -1
    if dimension < 0:
        raise ValueError(
            f"{title}: output_shapes has the dimension {value!r}; expected a size, or None for one that is unknown"
        )
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
    given = "" if leaf.shape is None else f"output_shapes gives {show_shape(leaf.shape)} and "
    found = how if inferred is None else f"{how} is {show_shape(tuple(inferred))}"
    raise ValueError(
        f"{title}: the result's shape must be known (under jit, and for when= and out=); "
        f"{given}{found}; "
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
    else:
        place = "" if origin == "func returned" else " in its place"
        advice = f"write output_shapes={own}{place}, or that shape in Tout"
    if len(shape) - len(lead) == len(leaf.shape) > 0 and own != show_shape(leaf.shape):
        advice += " (or, if a length varies, Tout=jaxpyop.padded(dtype, the largest shape))"
    found = f"{origin} shape {show_shape(shape)} where {show_shape(expected)} was {basis}"
    # A wrong guess is not the user's mistake, so the line to write comes first.
    raise ValueError(f"{title}: {advice}: {found}" if basis.startswith("assumed") else f"{title}: {found}; {advice}")
