"""What a call promises to return: `Tout` and `output_shapes`, in all their forms.

Both are read once per call into a `ResultSpec`: one `Leaf` per result, in the
structure of `Tout`. A leaf's shape may be unknown, or have unknown dimensions;
`fill_shapes` completes it from what was inferred.
"""

from __future__ import annotations

import collections
import dataclasses
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._host import stacklevel_of_user
from jaxpyop._op.values.padding import KeyForm, PaddedForm, Padding

Shape = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """One promised result: a dtype that JAX has, and what is known of the shape."""

    dtype: np.dtype[Any]
    shape: Shape | None = None
    form: Any = None  # how the op's arrays are made of what func returns, where the two differ; see `forms`
    fill: Any = 0  # what stands for no result
    by_tout: bool = dataclasses.field(default=False, compare=False)  # who said the shape, for errors

    def __str__(self) -> str:
        shape = "any shape" if self.shape is None else f"shape {show_shape(self.shape)}"
        return f"{self.dtype.name} of {shape}"

    @property
    def known(self) -> bool:
        return self.shape is not None and None not in self.shape


@dataclasses.dataclass(frozen=True, slots=True)
class ResultSpec:
    """The results of an op: the skeleton of `Tout` with a `Leaf` at each leaf."""

    skeleton: Any
    leaves: tuple[Leaf, ...]
    tree: Any  # None when the skeleton is a single leaf
    own: ResultSpec | None = None  # what func returns, where that differs

    @property
    def returned(self) -> ResultSpec:
        """What func returns; each of its leaves is one or more of the op's."""
        return self.own or self

    @property
    def empty(self) -> bool:
        return not self.leaves

    @property
    def nothing(self) -> Any:
        """What a call without results returns: `None` for `None`, `[]` for `[]`."""
        return jax.tree.map(lambda leaf: leaf, self.skeleton)


def show_shape(shape: Shape | None) -> str:
    return "unknown" if shape is None else f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


# ---------------------------------------------------------------------- dtypes

_PYTHON_TYPES = {
    bool: np.dtype(bool),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}


def is_extended_precision(dtype: np.dtype[Any]) -> bool:
    """Whether it is numpy.longdouble or numpy.clongdouble, which JAX does not have."""
    return dtype.char in "gG" and dtype.itemsize > (8 if dtype.kind == "f" else 16)


def canonical_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype that JAX has for it here: 64 bits become 32 without x64."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def _warn_as_jax_does(dtype: np.dtype[Any], canonical: np.dtype[Any]) -> None:
    # The first sentence is that of JAX's own warning, for filters that know it. Ours is at the user's line.
    # JAX's cannot be caught and moved there: warnings.catch_warnings() is for one thread only.
    warnings.warn(
        f"Explicitly requested dtype {dtype.name} requested in Tout is not available, and will be truncated to dtype "
        f"{canonical.name}. Call jax.config.update('jax_enable_x64', True) first to have 64 bits.",
        UserWarning,
        stacklevel=stacklevel_of_user(),
    )


def _checked_dtype(raw: Any, api: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(raw)
    except TypeError:
        dtype = np.dtype(jax.numpy.dtype(raw))  # "bfloat16" and its like by name
    if dtype.kind in "OSUMm" or dtype.fields is not None or is_extended_precision(dtype):
        raise TypeError(
            f"{api}: Tout has the dtype {dtype}, which JAX does not have; "
            "Tout must name numbers or booleans, such as jnp.float32"
        )
    dtype = dtype.newbyteorder("=")
    canonical = canonical_dtype(dtype)
    if canonical != dtype:
        _warn_as_jax_does(dtype, canonical)
    return canonical


_DTYPES: dict[Any, np.dtype[Any]] = {}  # the usual spellings, which never warn


def read_leaf(value: Any, api: str) -> Leaf:
    """One leaf of `Tout`: a dtype, something shaped, or a TensorFlow dtype."""
    if isinstance(value, Padding):
        return _read_padding(value, api)
    if isinstance(value, type) and value in _PYTHON_TYPES:
        return Leaf(canonical_dtype(_PYTHON_TYPES[value]))
    if isinstance(value, (type, np.dtype, str, type(jax.numpy.float32))):
        # Before .shape and .dtype: np.float32, the class, has both.
        return Leaf(_read_dtype(value, api))
    if hasattr(value, "as_numpy_dtype"):  # tf.float32
        return Leaf(_read_dtype(value.as_numpy_dtype, api))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        if _is_key(value.dtype):
            return Leaf(np.dtype(np.uint32), None, KeyForm(value.dtype, tuple(value.shape)))
        return Leaf(_read_dtype(value.dtype, api), tuple(value.shape), by_tout=True)
    if _is_key(value):  # key.dtype
        return Leaf(np.dtype(np.uint32), None, KeyForm(value, None))
    raise TypeError(
        f"{api}: Tout has a leaf {value!r} of type {type(value).__name__}; expected a dtype such as jnp.float32, "
        "jax.ShapeDtypeStruct(shape, dtype), or a list, tuple or dict of these; Tout=None means no result"
    )


def _is_key(dtype: Any) -> bool:
    try:
        return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))
    except (TypeError, ValueError):
        return False  # no dtype at all


def _read_padding(padding: Padding, api: str) -> Leaf:
    dtype = _read_dtype(getattr(padding.dtype, "as_numpy_dtype", _PYTHON_TYPES.get(padding.dtype, padding.dtype)), api)
    fill = np.asarray(padding.fill_value)
    fits = fill.shape == () and fill.dtype.kind in "biufc"
    if not fits or (dtype.kind != "c" and not _holds(dtype, fill)):
        raise ValueError(
            f"{api}: {padding} has the fill_value {padding.fill_value!r}, which {dtype.name} does not hold"
        )
    varies = [None if axis in padding.axes else size for axis, size in enumerate(padding.most)]
    return Leaf(dtype, tuple(varies), PaddedForm(padding, dtype))


def _holds(dtype: np.dtype[Any], number: Any) -> bool:
    if dtype.kind == "b" or jax.dtypes.issubdtype(dtype, np.integer):
        with np.errstate(invalid="ignore"):
            return bool(number.dtype.kind != "c" and number.astype(dtype) == number)
    return number.dtype.kind != "c"


def _read_dtype(raw: Any, api: str) -> np.dtype[Any]:
    try:
        found = _DTYPES.get(raw)
    except TypeError:
        found = None
    if found is None:
        try:
            found = _checked_dtype(raw, api)
        except TypeError as error:
            if str(error).startswith(api):
                raise
            raise TypeError(f"{api}: Tout has {raw!r}, which is no dtype; write, say, Tout=jnp.float32") from None
        if found.itemsize < 8 and found == np.dtype(raw):
            _DTYPES[raw] = found
    return found


def promises_nothing(tout: Any) -> bool:
    """Whether `Tout` means that there is no result, as `None`, `[]` and `{}` do."""
    return not jax.tree.leaves(tout)


def read_tout(tout: Any, api: str) -> ResultSpec:
    """Read `Tout`, in any of its forms."""
    leaves, tree = jax.tree.flatten(tout)
    if not leaves:
        return ResultSpec(tout, (), None)
    return _spec_of(tree, tuple(read_leaf(leaf, api) for leaf in leaves))


def _spec_of(tree: Any, specs: tuple[Leaf, ...]) -> ResultSpec:
    skeleton = specs[0] if jax.tree_util.treedef_is_leaf(tree) else jax.tree.unflatten(tree, specs)
    own = ResultSpec(skeleton, specs, None if skeleton is specs[0] else tree)
    if all(leaf.form is None for leaf in specs):
        return own
    outer = jax.tree.map(lambda leaf: leaf if leaf.form is None else leaf.form.promise(leaf, Leaf), skeleton)
    leaves, tree = jax.tree.flatten(outer)
    return ResultSpec(outer, tuple(leaves), None if isinstance(outer, Leaf) else tree, own)


# ---------------------------------------------------------------------- shapes


def _read_dimension(value: Any, api: str) -> int | None:
    if value is None:
        return None
    try:
        dimension = operator.index(value)
    except TypeError:
        raise TypeError(f"{api}: output_shapes has the dimension {value!r}; expected an int or None") from None
    if dimension < 0:
        raise ValueError(f"{api}: output_shapes has the dimension {dimension}; write None for an unknown one")
    return dimension


def _read_shape(value: Any, api: str) -> Shape | None:
    if value is None:
        return None
    if hasattr(value, "as_list"):  # tf.TensorShape
        value = None if value.rank is None else value.as_list()
        return None if value is None else _read_shape(value, api)
    if hasattr(value, "shape") and not isinstance(value, np.ndarray):
        value = value.shape
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{api}: output_shapes has {value!r} where a shape is expected, such as (3, None) or ()")
    return tuple(_read_dimension(dimension, api) for dimension in value)


def _with_shape(leaf: Leaf, shape: Shape | None, api: str) -> Leaf:
    if shape is None:
        return leaf
    if leaf.form is not None:
        return leaf.form.with_shape(leaf, shape, api)
    if (
        leaf.known
        and len(leaf.shape or ()) == len(shape)
        and all(s in (None, k) for s, k in zip(shape, leaf.shape or ()))
    ):
        return leaf  # the same, or less
    if leaf.shape is not None and leaf.shape != shape:
        raise ValueError(
            f"{api}: Tout says shape {show_shape(leaf.shape)} and output_shapes says {show_shape(shape)}; "
            "give one of them"
        )
    return Leaf(leaf.dtype, shape)


def _structure_error(skeleton: Any, shapes: Any, api: str) -> Exception:
    return ValueError(
        f"{api}: output_shapes must have the structure of Tout with a shape at each leaf; "
        f"Tout is {jax.tree.map(lambda leaf: leaf.dtype.name, skeleton)} and output_shapes is {shapes!r}"
    )


def keys_of(skeleton: dict[Any, Any]) -> list[Any]:
    """A dict's keys in the order of its leaves in JAX's pytrees."""
    return list(skeleton) if isinstance(skeleton, collections.OrderedDict) else sorted(skeleton)


def _zip_shapes(skeleton: Any, shapes: Any, api: str) -> list[Leaf]:
    if shapes is None:
        return jax.tree.leaves(skeleton)
    if isinstance(skeleton, Leaf):
        return [_with_shape(skeleton, _read_shape(shapes, api), api)]
    if type(skeleton) in (list, tuple):
        if not isinstance(shapes, Sequence) or isinstance(shapes, str) or len(shapes) != len(skeleton):
            raise _structure_error(skeleton, shapes, api)
        parts = list(zip(skeleton, shapes))
    elif isinstance(skeleton, dict):
        if not isinstance(shapes, Mapping) or set(shapes) != set(skeleton):
            raise _structure_error(skeleton, shapes, api)
        parts = [(skeleton[key], shapes[key]) for key in keys_of(skeleton)]
    else:
        children, node = jax.tree_util.tree_flatten(skeleton, is_leaf=lambda x: x is not skeleton)
        try:
            parts = list(zip(children, node.flatten_up_to(shapes)))
        except ValueError:
            raise _structure_error(skeleton, shapes, api) from None
    return [leaf for child, shape in parts for leaf in _zip_shapes(child, shape, api)]


def with_shapes(spec: ResultSpec, shapes: Any, api: str) -> ResultSpec:
    """Read `output_shapes` (not a callable) into the spec."""
    if shapes is None or (spec.empty and not jax.tree.leaves(shapes)):
        return spec
    leaves = tuple(_zip_shapes(spec.returned.skeleton, shapes, api))
    return _spec_of(jax.tree.structure(spec.returned.skeleton), leaves) if leaves else spec


def fill_shape(leaf: Leaf, inferred: Sequence[int] | None, how: str, api: str) -> tuple[int, ...]:
    """Complete a leaf's shape with an inferred one.

    Args:
        leaf: what was promised.
        inferred: the inferred shape; None if there is none.
        how: where it comes from, for the error.
        api: the op, for the error.

    Raises:
        ValueError: the two contradict each other, or nothing was inferred.
    """
    if leaf.shape is None and inferred is not None:
        return tuple(inferred)
    known = leaf.shape
    if known is not None and None not in known:
        return tuple(k for k in known if k is not None)
    fits = inferred is not None and known is not None and len(known) == len(inferred)
    if not fits or any(k not in (None, i) for k, i in zip(known or (), inferred or ())):
        found = how if inferred is None else f"{how} is {show_shape(tuple(inferred))}"
        raise ValueError(
            f"{api}: the result's shape must be known (under jit, and for when= and out=); "
            f"output_shapes says {show_shape(known)} and {found}; "
            "give the whole shape as output_shapes=, or a function of the inputs, output_shapes=lambda x: x.shape"
        )
    return tuple(i if k is None else k for k, i in zip(known or (), inferred or ()))
