"""The backward pass of a loop on values: its turns, walked from the last to the first.

The turns are run once more, and the state at their beginnings is kept, in arrays of `max_steps` rows. Where these
would be large, only every so-many-th is kept, and the turns between two of them are run again when the walk comes to
them: for n turns there are 2 sqrt(n) states, at the price of one more run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._jaxcore import ad
from jaxpyop._paths.loop.primitive import Loop, Marks, chosen, loop_on, loop_tangents_p, moving_step

ALL_KEPT_BYTES = 64 * 2**20  # up to this much the state at every turn is kept


class _Walk:
    """One backward pass: the loop at its constants, and what moves."""

    def __init__(self, loop: Loop, consts: Sequence[Any], moves: tuple[Marks, Marks]) -> None:
        self.loop = loop
        self.consts = consts
        self.moves = moves

    def keep(self, state: Sequence[Any], more: Callable[..., Any], rows: int, every: int) -> tuple[Any, list[Any], Any]:
        """Run turns while `more(i, state)`; the number of them, the state at each `every`-th, and the last."""
        count = len(state)

        def step(i: Any, *xs: Any) -> list[Any]:
            values, kept = xs[:count], xs[count:]
            row = i // every
            wanted = i % every == 0
            new = [_written(k, v, row, None if every == 1 else wanted) for k, v in zip(kept, values, strict=True)]
            return [i + 1, *self.loop.step(self.consts, values), *new]

        empty = [jnp.broadcast_to(x, (rows, *jnp.shape(x))) for x in state]
        start = [jnp.int32(0), *state, *empty]
        turns, *rest = self._loop(lambda i, *xs: more(i, xs[:count]), step, start, rows * every)
        return turns, rest[count:], rest[:count]

    def back(self, kept: Sequence[Any], turns: Any, every: int, rows: int, cts: Sequence[Any]) -> list[Any]:
        """The cotangents, of the constants and the state, before the turns of which each `every`-th is kept."""

        def step(row: Any, *cts: Any) -> list[Any]:
            row = row - 1
            state = [jax.lax.dynamic_index_in_dim(k, row, keepdims=False) for k in kept]
            if every == 1:
                return [row, *self.turn(state, cts)]
            length = jnp.minimum(every, turns - row * every)
            _, inner, _ = self.keep(state, lambda i, _: i < length, every, 1)
            return [row, *self.back(inner, length, 1, every, cts)]

        start = [(turns + every - 1) // every, *cts]
        return self._loop(lambda row, *_: row > 0, step, start, rows)[1:]

    def turn(self, state: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        count = sum(self.moves[0])
        step, primals = moving_step(self.loop, self.consts, state, self.moves)
        _, backwards, _ = jax.vjp(step, *primals, has_aux=True)
        of_consts, of_state = backwards(list(cts[count:]))
        return [*map(jnp.add, cts[:count], of_consts), *of_state]

    def _loop(self, more: Any, step: Any, state: Sequence[Any], bound: int) -> list[Any]:
        return loop_on(more, step, state, bound, self.loop.place)


def _written(kept: Any, value: Any, row: Any, wanted: Any) -> Any:
    if wanted is not None:
        value = jnp.where(wanted, value, jax.lax.dynamic_index_in_dim(kept, row, keepdims=False))
    return jax.lax.dynamic_update_index_in_dim(kept, value, row, 0)


def _pull(loop: Loop, consts: Sequence[Any], state: Sequence[Any], cts: Sequence[Any], moves: Any) -> list[Any]:
    bound = loop.max_steps
    if bound is None:
        raise NotImplementedError(
            f"{loop.place}: a backward pass through a loop on values keeps the state of its turns, and needs to know "
            "how many there can be; pass max_steps=, or mode='eager' (forward mode, jax.jvp and jax.jacfwd, needs none)"
        )
    size = sum(math.prod(jnp.shape(x)) * getattr(jax.typeof(x).dtype, "itemsize", 8) for x in state)
    every = 1 if bound * size <= ALL_KEPT_BYTES else math.isqrt(bound - 1) + 1
    rows = -(-bound // every)
    walk = _Walk(loop, consts, moves)
    more = lambda i, values: (i < bound) & loop.goes_on(consts, values)
    turns, kept, last = walk.keep(state, more, rows, every)
    # Turns that were not kept would be left out of the derivative: that must show.
    enough = ~loop.goes_on(consts, last)
    cts = [jnp.where(enough, ct, np.nan) for ct in cts]
    none = [jnp.zeros(jnp.shape(c), jax.typeof(c).dtype) for c in chosen(consts, moves[0])]
    return walk.back(kept, turns, every, rows, [*none, *cts])


def _transpose(cts: Sequence[Any], *operands: Any, loop: Loop, moves: tuple[Marks, Marks]) -> list[Any]:
    first = loop.consts + len(moves[1])
    primals, tangents = operands[:first], operands[first:]
    asked = [ad.is_undefined_primal(t) for t in tangents]
    avals = chosen([jax.typeof(x) for x in primals[loop.consts :]], moves[1])
    given = [jnp.zeros(a.shape, a.dtype) if type(ct) is ad.Zero else ct for ct, a in zip(cts, avals, strict=True)]
    found = _pull(loop, primals[: loop.consts], primals[loop.consts :], given, moves)
    return [None] * first + [ct if wanted else None for ct, wanted in zip(found, asked, strict=True)]


ad.primitive_transposes[loop_tangents_p] = _transpose
