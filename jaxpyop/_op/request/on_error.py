"""Reads and checks `on_error=`: what fills the results of an element whose function failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxpyop._host import Method
from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.values import Leaf, ResultSpec, cast_to_numpy

if TYPE_CHECKING:
    from jaxpyop._op.request.user_rules import Rules


def is_given(on_error: Any) -> bool:
    """Tell whether failures are filled. The default raises them."""
    return not (isinstance(on_error, str) and on_error == "raise")


def read_on_error(
    on_error: Any, spec: ResultSpec, shapes: Callable[..., Any] | None, rules: Rules, method: Method, api: str
) -> tuple[Any, ...]:
    """The fill of each array of the op's results.

    Args:
        on_error: ``"nan"``, a number, or a pytree of numbers in the structure of `Tout`.
        spec: the results.
        shapes: the function that gives their shapes, if there is one.
        rules: the rules of the op.
        method: its `vmap_method`.
        api: the op, for errors.

    Raises:
        ValueError: a result cannot hold its fill, or its shape is not known, or the op cannot have `on_error=`.
    """
    if rules.transpose is not None:
        raise ValueError(f"{api}: transpose= declares func linear, and filled results are not; remove on_error=")
    if rules.fwd is not None and method.whole_batch:
        raise ValueError(
            f"{api}: on_error= cannot tell which element of a batch failed in fwd, which runs once for the batch; pass "
            "vmap_method='sequential' or 'parallel'"
        )
    if shapes is None and not all(leaf.shape_known for leaf in spec.leaves):
        raise ValueError(
            f"{api}: on_error= has to know the shapes of results that func does not return; give output_shapes=, or "
            "shapes in Tout, such as jax.ShapeDtypeStruct((3,), jnp.float32)"
        )
    leaves = spec.returned.leaves
    pairs = zip(leaves, _per_leaf(on_error, spec, api))
    return tuple(fill for k, (leaf, value) in enumerate(pairs) for fill in _fills(leaf, value, k, api))


def _per_leaf(on_error: Any, spec: ResultSpec, api: str) -> list[Any]:
    leaves = spec.returned.leaves
    if (isinstance(on_error, str) and on_error == "nan") or _is_number(on_error):
        return [on_error] * len(leaves)
    declared = jax.tree.structure(jax.tree.map(lambda leaf: 0, spec.returned.skeleton))
    found, tree = jax.tree.flatten(on_error)
    if tree != declared or not all(map(_is_number, found)):
        raise ValueError(
            f"{api}: on_error is {on_error!r}; expected 'raise', 'nan', a number, or numbers in the structure of Tout"
        )
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex, np.generic, np.ndarray, jax.Array)) and np.ndim(value) == 0


def _fills(leaf: Leaf, value: Any, k: int, api: str) -> list[Any]:
    if leaf.encoding is not None and leaf.arrays == 1:
        raise ValueError(f"{api}: on_error= has no fill for typed keys, and result {k} is one; return the key's data")
    if isinstance(value, str) and not is_inexact(leaf):
        raise ValueError(
            f"{api}: on_error='nan' fills floating-point and complex results, and result {k} is {leaf.dtype.name}; "
            "give a value, such as on_error=0"
        )
    number = float("nan") if isinstance(value, str) else value
    try:
        with np.errstate(over="raise"):
            fill = np.asarray(cast_to_numpy(number, Leaf(leaf.dtype), "same_kind", "on_error= gives", api))
        if is_inexact(leaf) and np.isfinite(complex(number)) and not np.isfinite(complex(fill)):
            raise OverflowError("a finite number becomes infinite")
    except (TypeError, OverflowError, FloatingPointError) as error:
        raise ValueError(f"{api}: on_error={value!r} does not fit result {k}, which is {leaf.dtype.name}") from error
    if is_nan(fill) and leaf.dtype.kind == "c":
        # The derivative of a failed element makes both parts NaN.
        fill = np.asarray(complex(np.nan, np.nan), leaf.dtype)
    # A padded result is empty.
    return [fill] if leaf.arrays == 1 else [fill, np.int32(0)]


def is_nan(fill: Any) -> bool:
    """Tell whether the derivative of a result with this fill is NaN. It is zero for other fills."""
    return is_inexact(fill) and bool(np.isnan(fill))
