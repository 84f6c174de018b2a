"""`when=`: an op that is there at every step, and runs at some of them.

The flag is the call's first input, an array like the others. So `vmap`, `scan` and the derivatives treat it like any
input, and `ConditionalBody` reads it when it runs. A `cond` with an effect cannot be batched, because both branches
would run. An effect that decides for itself whether it happens can be batched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._op.body.body_protocol import Body, DerivedBody
from jaxpyop._op.request import Op
from jaxpyop._op.values import Struct, show_shape


def read_when(when: Any, title: str) -> list[Any]:
    """The inputs that `when=` adds: one, or none if the op always runs.

    Raises:
        TypeError: `when` is not a scalar boolean.
    """
    if when is None or when is True:
        return []
    array = when if isinstance(when, jax.Array) else np.asarray(when)
    if array.shape != () or array.dtype != np.bool_:
        got = f"{array.dtype} of shape {show_shape(array.shape)}" if isinstance(when, jax.Array) else repr(when)
        raise TypeError(f"{title}: when is {got}; expected one boolean, traced or not, such as when=step % 100 == 0")
    return [array]


def differs_in_block(op: Op) -> str:
    """The error about a block in which some elements run and others do not."""
    return (
        f"{op.title}: when= differs by element here, and vmap_method={op.vmap_method.name!r} hands func the batch; "
        "pass vmap_method='sequential', or one when= for all elements"
    )


class ConditionalBody(DerivedBody):
    """Runs another body if its own first input is true; otherwise its results are the body's absent results."""

    def __init__(self, base: Body) -> None:
        super().__init__(base)
        self.linear_inputs = base.linear_inputs
        self.goes_to_executor = base.goes_to_executor

    @property
    def func(self) -> Any:
        return self.base.func

    @property
    def shape_source(self) -> str:
        return self.base.shape_source

    @property
    def refusal(self) -> Callable[[], Exception] | None:
        return self.base.refusal

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.base.shapes(structs[1:])

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        flag, arrays = arrays[0], arrays[1:]
        # All elements of a block have the same flag.
        if not np.asarray(flag).any():
            return self.base.absent_results(arrays, lead)
        return self.base(*arrays, lead=lead) if lead else self.base(*arrays)

    def groups(self, values: Sequence[Any]) -> dict[str, Sequence[Any]]:
        return self.base.groups(values[1:])

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> ConditionalBody:
        return ConditionalBody(self.base.transposed(nonzero_cotangents))

    def note_shapes(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:
        self.base.note_shapes(structs[1:], results)

    def check_results(self, values: Sequence[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> None:
        self.base.check_results(values, arrays[1:], lead)


def trace_when(op: Op, trace: Callable[[Sequence[Any]], list[Any]], arrays: Sequence[Any]) -> list[Any]:
    """Trace a body of `mode="traced"` into a `cond` on the first array."""
    flag, *rest = arrays
    shapes = jax.eval_shape(lambda: trace(rest))

    def in_common_axes(outs: Sequence[Any]) -> list[Any]:
        # Inside shard_map, both branches need the same varying axes.
        return _jaxcore.cast_to_common_axes([*arrays, *outs])[len(arrays) :]

    def absent() -> list[Any]:
        return in_common_axes([jnp.full(s.shape, leaf.fill, s.dtype) for s, leaf in zip(shapes, op.spec.leaves)])

    return jax.lax.cond(flag, lambda: in_common_axes(trace(rest)), absent)
