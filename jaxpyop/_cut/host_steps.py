"""What Python runs between the segments: one Python call on live arrays, or a loop or cond that holds a Python call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _dtypes, _jaxcore, _settings, _sharding
from jaxpyop._host import strip_library_frames
from jaxpyop._op import run_now
from jaxpyop._values import anchor_of, copy_to_jax

# A larger NumPy array would be copied once more on its way into a segment.
_SMALL = 1 << 18


class HostStep:
    """Runs a Python call, and makes sure that its results have the types that the program around it was traced with.

    Args:
        eqn: the equation of the call.
        waits: whether it must wait for the effects of the segments before it.
        takes_numpy: whether every reader of its results also takes NumPy arrays, as segments do, in less time.
    """

    def __init__(self, eqn: Any, *, waits: bool, takes_numpy: bool) -> None:
        self._call = eqn.params["call"]
        self._batch = eqn.params["batch"]
        self._avals = [v.aval for v in eqn.outvars]
        self._waits = waits
        is_plain = not self._call.on_jax and jax.sharding.get_abstract_mesh().empty
        is_small = all(a.size * a.dtype.itemsize < _SMALL for a in self._avals)
        self._keep_numpy = takes_numpy and is_plain and is_small and _jaxcore.is_one_cpu()

    def __str__(self) -> str:
        return self._call.label

    def __call__(self, *args: Any) -> list[Any]:
        if self._waits:
            jax.effects_barrier()
        # If the user turned on a check for NaNs or a transfer guard, JAX's public functions move the arrays, and check.
        keep_numpy = self._keep_numpy and not _settings.looks_at_transfers()
        try:
            outs = run_now(self._call, args, self._batch, hold_records=False, keep_numpy=keep_numpy)
        except BaseException as error:
            raise strip_library_frames(error, self._call.title)  # noqa: B904  # It is the same error.
        for k, (out, aval) in enumerate(zip(outs, self._avals)):
            if out.shape != aval.shape or out.dtype != aval.dtype:
                self._refuse(k, out, aval)
        # The results of a NumPy function were copied to their device.
        return self._fitted(outs, args) if self._call.on_jax else outs

    def _fitted(self, outs: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        like = anchor_of(args, self._call.operands.leading)
        found: list[Any] = []
        for out in outs:
            out = self._placed(out, like)
            # As under `jax.jit`, no result of a program shares memory with another result or with an input.
            found.append(jnp.copy(out) if id(out) in {*map(id, args), *map(id, found)} else out)
        return found

    def _refuse(self, k: int, out: Any, aval: Any) -> None:
        sizes = self._batch.sizes
        self._call.check_shape(k, out.shape, aval.shape[len(sizes) :], sizes)
        origin = self._call.op.origin_of_array(k)
        raise TypeError(f"{self._call.title}: {origin} {out.dtype} where {aval.dtype} was declared")

    def _placed(self, out: jax.Array, like: Any) -> jax.Array:
        if out.weak_type:
            out = jax.lax.convert_element_type(out, out.dtype)
        is_chosen, is_wanted = _sharding.is_committed(out), _sharding.is_committed(like)
        if is_chosen and not is_wanted:
            # The function chose a device, or imported memory that something else may write into. Under `jax.jit` the
            # inputs alone decide where a result is. Only a copy by way of NumPy can go wherever JAX wants it.
            return copy_to_jax(np.asarray(out), like)
        return _sharding.placed_like(out, like) if is_wanted else out


# ------------------------------------------------------------ loops and conds
#
# Each turn (iteration) runs a plan of its own.

# A function that makes the plan of a jaxpr. The booleans say which inputs of the jaxpr are donated.
_Plan: TypeAlias = Callable[[Any, Sequence[bool]], Any]
_Run: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]


class LoopStep:
    """Runs the equation of a `scan`, `while` or `cond` on live arrays, turn by turn."""

    def __init__(self, eqn: Any, plan: _Plan) -> None:
        self._eqn = eqn
        self._run = _LOOPS[eqn.primitive.name](eqn, eqn.params, plan)

    def __str__(self) -> str:
        return f"{self._eqn.primitive.name}, turn by turn"

    def __call__(self, *args: Any) -> list[Any]:
        # A loop with no turn returns its inputs. They are copied, because the results of a program share no memory.
        outs = [jnp.copy(out) if any(out is a for a in args) else out for out in self._run(args)]
        # The branches of a cond may differ in weak types, and so may the start of a loop and its turns.
        return [_jaxcore.with_weak_type(out, v.aval) for out, v in zip(outs, self._eqn.outvars, strict=True)]


def _cond(eqn: Any, params: dict[str, Any], plan: _Plan) -> _Run:
    branches = [plan(branch, [False] * (len(eqn.invars) - 1)) for branch in params["branches"]]
    return lambda args: branches[min(max(int(args[0]), 0), len(branches) - 1)].run(args[1:])


def _while(eqn: Any, params: dict[str, Any], plan: _Plan) -> _Run:
    test, body = params["cond_jaxpr"], params["body_jaxpr"]
    # The operands are the constants of the test, the constants of the body, and the state.
    test_end, state_start = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    planned_test, planned_turn = (plan(part, [False] * len(_jaxcore.jaxpr_of(part).invars)) for part in (test, body))

    def run(args: Sequence[Any]) -> Sequence[Any]:
        state = args[state_start:]
        while planned_test.run([*args[:test_end], *state])[0]:
            state = planned_turn.run([*args[test_end:state_start], *state])
        return state

    return run


def _scan(eqn: Any, params: dict[str, Any], plan: _Plan) -> _Run:
    """Each turn reads its rows of the inputs, and writes its results into rows of donated arrays."""
    consts, carries = _jaxcore.scan_counts(eqn)
    length, reverse = params["length"], params["reverse"]
    stacked = [v.aval for v in eqn.outvars[carries:]]
    rows = len(eqn.invars) - consts - carries

    def turn(*args: Any) -> list[Any]:
        fixed, rest = args[:consts], args[consts:]
        xs, carry, filled, number = rest[:rows], rest[rows : rows + carries], rest[rows + carries : -1], rest[-1]
        at = length - 1 - number if reverse else number
        taken = (jax.lax.dynamic_index_in_dim(x, at, 0, keepdims=False) for x in xs)
        out = _jaxcore.run_jaxpr(params["jaxpr"], *fixed, *carry, *taken)
        written = (jax.lax.dynamic_update_index_in_dim(a, y, at, 0) for a, y in zip(filled, out[carries:]))
        return [*out[:carries], *written, number + 1]

    avals = [v.aval for v in eqn.invars]
    # The rows go before the state, which changes from turn to turn.
    avals = [*avals[:consts], *avals[consts + carries :], *avals[consts : consts + carries], *stacked]
    donated = [*[False] * len(eqn.invars), *[True] * len(stacked), False]
    number = jax.ShapeDtypeStruct((), np.int32)
    # Without a turn there are no rows, and JAX could not trace how a turn takes one.
    planned: Any = (
        plan(_jaxcore.make_jaxpr(turn, [*map(_dtypes.struct_of, avals), number]), donated) if length else None
    )
    # The results of the loop may have a weak type.
    zeros = lambda: [_jaxcore.with_weak_type(jnp.zeros(aval.shape, aval.dtype), aval) for aval in stacked]
    start = jax.jit(lambda: [*zeros(), jnp.int32(0)])

    def run(args: Sequence[Any]) -> Sequence[Any]:
        fixed = [*args[:consts], *args[consts + carries :]]
        state = [*args[consts : consts + carries], *start()]
        for _ in range(length):
            state = planned.run([*fixed, *state])
        return state[:-1]

    return run


# The primitives that Python can run turn by turn.
_LOOPS: dict[str, Callable[[Any, dict[str, Any], _Plan], _Run]] = {"scan": _scan, "while": _while, "cond": _cond}


def is_run_by_turns(eqn: Any) -> bool:
    """Tell whether an equation is a loop or cond that Python can run turn by turn.

    Under `vmap`, the test of a `while` may have a result for each element. Such a loop stays compiled.
    """
    if eqn.primitive is jax.lax.while_p:
        return not _jaxcore.jaxpr_of(eqn.params["cond_jaxpr"]).outvars[0].aval.shape
    return eqn.primitive.name in _LOOPS
