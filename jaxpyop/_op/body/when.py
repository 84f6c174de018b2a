"""`when=`: an op that is there at every step, and runs at some.

The flag is the call's first input, an array like the others, so that `vmap`, `scan` and the derivatives do with it
what they do with any. `When` is the body that reads it. An effect in a `cond` cannot be batched, as both branches
would run; an effect that decides by itself can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._op.request import Op
from jaxpyop._op.values import show_shape

Struct = jax.ShapeDtypeStruct


def read_when(when: Any, title: str) -> list[Any]:
    """The inputs that `when=` adds: one, or none where it is always true.

    Raises:
        TypeError: no scalar boolean.
    """
    if when is None or when is True:
        return []
    array = when if isinstance(when, jax.Array) else np.asarray(when)
    if array.shape != () or array.dtype != np.bool_:
        got = f"{array.dtype} of shape {show_shape(array.shape)}" if isinstance(when, jax.Array) else repr(when)
        raise TypeError(f"{title}: when is {got}; expected one boolean, traced or not, such as when=step % 100 == 0")
    return [array]


def differs_in_block(op: Op) -> str:
    """The error about a whole batch of which some elements are left out."""
    return (
        f"{op.title}: when= differs by element here, and vmap_method={op.vmap_method!r} hands func the batch; "
        "pass vmap_method='sequential', or one when= for all elements"
    )


class When:
    """A body that runs where its first input is true; elsewhere its results are zeros."""

    def __init__(self, base: Any) -> None:
        self.base = base
        # Of a rule:
        self.missing = getattr(base, "missing", None)
        self.rule = getattr(base, "rule", None)
        self.linear = getattr(base, "linear", 0)
        self.travels = getattr(base, "travels", True)

    def __call__(self, flag: Any, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        if np.asarray(flag).any():  # of a whole batch, all are alike
            return self.base(*arrays, lead=lead) if lead else self.base(*arrays)
        structs = self.base.shapes([Struct(a.shape[len(lead) :], a.dtype) for a in arrays])
        return self.nothing([Struct((*lead, *s.shape), s.dtype) for s in structs])

    def nothing(self, structs: Sequence[Struct]) -> list[Any]:
        """What stands for results that are not there."""
        return [np.zeros(s.shape, s.dtype) for s in structs]

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.base.shapes(structs[1:])

    @property
    def moving(self) -> tuple[bool, ...]:
        """Of a derivative: which inputs move. The flag never does."""
        return self.base.moving

    def transposed(self, given: tuple[bool, ...]) -> When:
        """Of a derivative: the same linear map the other way round."""
        return When(self.base.transposed(given))


class WhenUser(When):
    """The same of the user's own function."""

    def nothing(self, structs: Sequence[Struct]) -> list[Any]:
        return [np.full(s.shape, leaf.fill, s.dtype) for s, leaf in zip(structs, self.base.op.spec.leaves)]

    def learn(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:
        self.base.learn(structs[1:], results)

    def promised(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> Sequence[Any]:
        return self.base.promised(arrays[1:], lead)

    def check_shapes(self, values: Sequence[Any], leaves: Sequence[Any], lead: tuple[int, ...]) -> None:
        self.base.check_shapes(values, leaves, lead)

    @property
    def how(self) -> str:
        return self.base.how


def trace_when(trace: Callable[[Sequence[Any]], list[Any]], arrays: Sequence[Any]) -> list[Any]:
    """A body of `mode="traced"`, of which the first array says whether it is to run."""
    flag, *rest = arrays
    shapes = jax.eval_shape(lambda: trace(rest))

    def alike(outs: Sequence[Any]) -> list[Any]:  # both branches, in the axes of shard_map
        return _jaxcore.cast_to_common_axes([*arrays, *outs])[len(arrays) :]

    return jax.lax.cond(flag, lambda: alike(trace(rest)), lambda: alike([jnp.zeros(s.shape, s.dtype) for s in shapes]))
