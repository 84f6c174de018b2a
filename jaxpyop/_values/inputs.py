"""Takes the inputs of a call apart into arrays, which pass through the op, and everything else, which goes around it.

`flatten_inputs` makes arrays of the array leaves, in dtypes that JAX has, the same way directly and under jit. The
other leaves are static and reach the function as they are. `Inputs.unflatten` puts the two together again. `as_jax`
makes `jax.Array` values of the arrays that reach a host call.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _dtypes, _jaxcore, _settings, _sharding
from jaxpyop._host import SCRATCH
from jaxpyop._values.tout import is_extended_precision


class _Slot(enum.Enum):
    """Stands for an array leaf among the static ones. Unpickling gives the same object, in a worker too."""

    SLOT = "<array>"


SLOT = _Slot.SLOT


class static:  # noqa: N801  # reads as the function that it is to users
    """Keep a value in `inp` as it is: the function gets it, and no array.

    A Python number or boolean in `inp` is an input like any other. It may be traced. So a
    NumPy function gets a NumPy number, and a ``py_function`` an array without axes. Where a
    library wants a number of Python, wrap it. It is a part of the program then, like an
    argument of ``static_argnums`` of :func:`jax.jit`, and has no derivative.

    Args:
        value: the value, of any type: a number, a tuple, an object.

    Raises:
        TypeError: the value is traced.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, jaxpyop
        >>> def corner(image, size):
        ...     return image[:size, :size]
        >>> tout = jax.ShapeDtypeStruct((2, 2), jnp.float32)
        >>> print(jax.jit(lambda x: jaxpyop.numpy_function(corner, [x, jaxpyop.static(2)], tout))(jnp.ones((3, 3))))
        [[1. 1.]
         [1. 1.]]
    """

    def __init__(self, value: Any, /) -> None:
        if holds_traced(value):
            raise TypeError(f"jaxpyop.static: {value} is traced, and has no value yet; pass it through inp as it is")
        self.value = value


def holds_traced(value: Any) -> bool:
    """Tell whether a value is or holds a traced value, as a leaf."""
    try:
        leaves = jax.tree.leaves(value)
    except Exception:
        # No traced value can be found in a user's pytree that does not flatten.
        return False
    return any(map(_jaxcore.is_live, leaves))


_CONTAINERS = (dict, list, tuple, type(None))


def nodes_of(tree: Any) -> list[Any]:
    """The nodes of a structure, each with its type, what it holds besides its children, and how many these are."""
    if tree is None:
        return []
    children = tree.children()
    return [(tree.node_data(), len(children)), *itertools.chain.from_iterable(map(nodes_of, children))]


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """The structure of a call's inputs, without its arrays.

    Attributes:
        tree: the structure of `(args, kwargs)`; None if there are positional arrays only, and so nothing to unflatten.
        leaves: the static leaves, and a slot for each array.
        key_impls: for each array the PRNG implementation if it is the data of a typed key, or None.
    """

    tree: Any
    leaves: tuple[Any, ...]
    key_impls: tuple[Any, ...]

    @functools.cached_property
    def may_hold_state(self) -> bool:
        """Whether an input is an object of a registered class, which gets a copy of what the caller has."""
        return any(node is not None and not issubclass(node[0], _CONTAINERS) for node, _ in nodes_of(self.tree))

    def unflatten(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The function's `(args, kwargs)` with these arrays."""
        if self.tree is None:
            return tuple(arrays), {}
        it = iter(arrays)
        leaves = [next(it) if leaf is SLOT else leaf for leaf in self.leaves]
        args, kwargs = jax.tree.unflatten(self.tree, leaves)
        return tuple(args), kwargs

    def key_structs(self, structs: Sequence[jax.ShapeDtypeStruct]) -> list[jax.ShapeDtypeStruct]:
        """The same structs, with the structs of key data replaced by the structs of typed keys."""
        return jax.eval_shape(self.wrap_keys, list(structs)) if any(self.key_impls) else list(structs)

    def wrap_keys(self, arrays: Sequence[Any]) -> list[Any]:
        """The same arrays, with key data replaced by typed keys."""
        return [
            a if impl is None else jax.random.wrap_key_data(_settings.with_transfers(jnp.asarray, a), impl=impl)
            for a, impl in zip(arrays, self.key_impls)
        ]


_NUMBERS = (bool, int, float, complex)


def _canonical_array(value: Any, title: str) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if isinstance(value, int) and array.dtype == object:
        raise _too_wide(title, "int", _dtypes.canonical_dtype(np.int64))
    if is_extended_precision(array.dtype):
        raise TypeError(
            f"{title}: an input has the dtype {array.dtype}, which JAX does not have; pass x.astype(np.float64)"
        )
    dtype = _dtypes.canonical_dtype(array.dtype.newbyteorder("="))
    if dtype == array.dtype:
        return array
    if array.dtype.kind in "iu" and array.size:
        bounds = np.iinfo(dtype)
        if array.min() < bounds.min or array.max() > bounds.max:
            raise _too_wide(title, array.dtype.name, dtype)
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _too_wide(title: str, name: str, dtype: np.dtype[Any]) -> OverflowError:
    return OverflowError(
        f"{title}: an {name} input does not fit {dtype.name}, which it becomes here; "
        "call jax.config.update('jax_enable_x64', True) or pass smaller values"
    )


def _as_array(leaf: Any, title: str) -> tuple[Any, Any] | None:
    """The array of a leaf and its key implementation, or None for a static leaf."""
    if isinstance(leaf, jax.Array):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key_data(leaf), jax.random.key_impl(leaf)
        return leaf, None
    if isinstance(leaf, (np.ndarray, np.generic)):
        if lost := lost_by_an_array(leaf):
            raise TypeError(f"{title}: an input is {lost[0]} would be lost; pass {lost[1]}")
        # By `issubdtype`, since bfloat16 and int4 have NumPy's kind "V".
        is_number = jax.dtypes.issubdtype(leaf.dtype, np.number) or leaf.dtype == np.bool_
        return (_canonical_array(leaf, title), None) if is_number else None
    if type(leaf) in _NUMBERS:
        return _canonical_array(leaf, title), None
    if callable(getattr(leaf, "__jax_array__", None)):
        return _as_array(leaf.__jax_array__(), title)
    if isinstance(leaf, _jaxcore.Tracer):
        raise TypeError(
            f"{title}: an input is a traced {leaf.aval}, which is not an array; pass its contents, ref[...]"
        )
    return None


def lost_by_an_array(value: Any) -> tuple[str, str] | None:
    """Return what a value says besides its numbers, which an array cannot, and what to write instead."""
    if isinstance(value, np.ma.MaskedArray):
        return "a masked array, and its mask", "x.filled(value)"
    # astropy has `unit`, pint and unyt have `units`.
    if hasattr(type(value), "unit") or hasattr(type(value), "units"):
        return f"a {type(value).__name__}, and its unit", "its number in a known unit, such as x.to_value('m')"
    return None


def inputs_of(skeleton: Any, key_impls: Sequence[Any]) -> Inputs:
    """Make `Inputs` of an `(args, kwargs)` that has a `SLOT` at each array, and may have `static` values."""
    leaves, tree = jax.tree.flatten(skeleton)
    leaves = [leaf.value if isinstance(leaf, static) else leaf for leaf in leaves]
    slots = (SLOT,) * len(leaves)
    is_flat = tuple(leaves) == slots and tree == jax.tree.structure((slots, {})) and not any(key_impls)
    return Inputs(None if is_flat else tree, tuple(leaves), tuple(key_impls))


def flatten_inputs(inp: Sequence[Any], kwargs: dict[str, Any], title: str) -> tuple[list[Any], Inputs]:
    """Take the inputs apart into arrays, in dtypes that JAX has, and their structure.

    Raises:
        TypeError: a masked array, a quantity with a unit, or a dtype that JAX does not have.
        OverflowError: an integer does not fit without x64.
    """
    # The common case: nothing but arrays.
    extended = jax.dtypes.extended
    if not kwargs and all(isinstance(x, jax.Array) and not jax.dtypes.issubdtype(x.dtype, extended) for x in inp):
        count = len(inp)
        return list(inp), Inputs(None, (SLOT,) * count, (None,) * count)
    leaves, tree = jax.tree.flatten((tuple(inp), kwargs))
    found = [_as_array(leaf, title) for leaf in leaves]
    kept = [leaf.value if isinstance(leaf, static) else leaf for leaf in leaves]
    fixed = tuple([leaf if part is None else SLOT for leaf, part in zip(kept, found)])
    arrays = [part for part in found if part is not None]
    key_impls = tuple([impl for _, impl in arrays])
    return [array for array, _ in arrays], Inputs(tree, fixed, key_impls)


# ------------------------------------------------------------- jax.Array values
#
# They are made in memory that nothing else uses. The memory that XLA lends to a call is garbage afterwards, and a
# function may go on writing into an array that it returned. `jax.device_put` takes NumPy's memory over where it is
# aligned, as XLA's always is, even with `may_alias=False` (JAX 0.10 to 0.12). So every array is copied first. Small
# inputs then pass one compiled identity together, which is the fastest way into JAX. A large copy is aligned, so that
# JAX takes it over without another copy.

# From this many bytes on, one more copy takes longer than a dispatch.
_LARGE = 1 << 18

_identity = jax.jit(lambda values: values)


def as_jax(values: Sequence[Any]) -> list[Any]:
    """Turn the inputs of a call into `jax.Array` values that share no memory. None stays None.

    The shapes should be few: each combination of small arrays is compiled once.
    """
    # Most inputs are `jax.Array` values already, which this finds in a third of the time.
    any_numpy = np.ndarray in map(type, values)
    small = [type(v) is np.ndarray and v.nbytes < _LARGE for v in values] if any_numpy else ()
    # Under jax_disable_jit the identity does nothing.
    if (
        not any(small)
        or _settings.jax_config.jax_disable_jit
        or any(_stays_wide(v.dtype) for v in values if v is not None)
    ):
        return list(map(_one_as_jax, values))
    copies = iter(_settings.with_transfers(_identity, [value.copy() for value, mark in zip(values, small) if mark]))
    return [next(copies) if mark else _one_as_jax(value) for value, mark in zip(values, small)]


def _stays_wide(dtype: Any) -> bool:
    """Tell whether this is a dtype of 64 bits while they are off: where jax_explicit_x64_dtypes allows them."""
    return _dtypes.is_wide(dtype) and _dtypes.explicit_x64_mode() == "allow"


def _one_as_jax(value: Any) -> Any:
    return value if value is None or isinstance(value, jax.Array) else copy_to_jax(value)


def copy_to_jax(value: Any, like: Any = None) -> jax.Array:
    """Copy a NumPy array or scalar, of any shape, into a `jax.Array`, on the devices of `like` if that is given."""
    if value.nbytes < _LARGE or not jax.sharding.get_abstract_mesh().empty:
        return give_to_jax(np.array(value, order="C"), like)
    return give_to_jax(SCRATCH.copy_of(value), like)


def give_to_jax(value: np.ndarray[Any, Any], like: Any = None) -> jax.Array:
    """Make a `jax.Array` of an array that is not used elsewhere, and therefore need not be copied."""
    found = _jaxcore.quick_array(value, like)
    if found is None:
        # jnp.asarray would copy a large array once more (JAX 0.10 to 0.12).
        large = value.nbytes >= _LARGE and jax.sharding.get_abstract_mesh().empty
        with _dtypes.with_wide_types(_stays_wide(value.dtype)):
            found = jax.device_put(value) if large else _settings.with_transfers(jnp.asarray, value)
        if like is not None and _sharding.is_committed(like):
            found = _settings.with_transfers(_sharding.placed_like, found, like)
    return found


def anchor_of(inputs: Sequence[Any], leading: int) -> Any:
    """The input whose devices the results of a call go to: the first committed one, or else the first `jax.Array`.

    The first `leading` inputs, a receipt and the flag of `when=`, come last, because they are whole on each device.
    """
    arrays = [x for x in (*inputs[leading:], *inputs[:leading]) if isinstance(x, jax.Array)]
    return next(filter(_sharding.is_committed, arrays), arrays[0] if arrays else None)


def without_weak_type(x: Any) -> Any:
    """Return an array without its weak type: ops are given none, and return none.

    The transpose makes the cotangent of a weakly typed array weakly typed, as JAX's are.
    """
    return jax.lax.convert_element_type(x, x.dtype) if getattr(x, "weak_type", False) else x
