"""Runs loops and conds that hold a Python call from Python. Each turn (iteration) runs a plan of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore

# A function that makes the plan of a jaxpr. The booleans say which inputs of the jaxpr are donated.
_Plan = Callable[[Any, Sequence[bool]], Any]


def is_loop(eqn: Any) -> bool:
    """Tell whether Python can run an equation turn by turn."""
    return eqn.primitive.name in _RUNS


def run_from_python(eqn: Any, plan: _Plan) -> _Loop:
    """Return an object that runs this `scan`, `while` or `cond`."""
    return _RUNS[eqn.primitive.name](eqn, plan)


class _Loop:
    """Runs an equation on live arrays."""

    def __init__(self, eqn: Any, plan: _Plan) -> None:
        self.eqn = eqn
        self.params: dict[str, Any] = eqn.params
        self.prepare(plan)

    def __str__(self) -> str:
        return f"{self.eqn.primitive.name}, turn by turn"

    def prepare(self, plan: _Plan) -> None:
        """Make the plan that each turn runs."""
        raise NotImplementedError

    def run(self, args: Sequence[Any]) -> Sequence[Any]:
        """Run all turns."""
        raise NotImplementedError

    def __call__(self, *args: Any) -> list[Any]:
        # A loop with no turn returns its inputs. They are copied, because the results of a program share no memory.
        outs = [jnp.copy(out) if any(out is a for a in args) else out for out in self.run(args)]
        # The branches of a cond may differ in weak types, and so may the start of a loop and its turns.
        return [_jaxcore.with_weak_type(out, v.aval) for out, v in zip(outs, self.eqn.outvars, strict=True)]


class _Cond(_Loop):
    def prepare(self, plan: _Plan) -> None:
        self._branches = [plan(b, [False] * (len(self.eqn.invars) - 1)) for b in self.params["branches"]]

    def run(self, args: Sequence[Any]) -> Sequence[Any]:
        last = len(self._branches) - 1
        return self._branches[min(max(int(args[0]), 0), last)].run(args[1:])


class _While(_Loop):
    """Runs a `while`.

    Under `vmap` the test may have a result for each element. A turn then changes only the elements that go on.
    """

    def prepare(self, plan: _Plan) -> None:
        params = self.params
        test, body = params["cond_jaxpr"], params["body_jaxpr"]
        # The operands are the constants of the test, the constants of the body, and the state.
        test_end, state_start = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        avals = [v.aval for v in self.eqn.invars]
        self._test_end, self._state_start = test_end, state_start

        def turn(*args: Any) -> list[Any]:
            state = args[state_start:]
            new = _run(body, *args[test_end:state_start], *state)
            (goes_on,) = _run(test, *args[:test_end], *state)
            return [jnp.where(jnp.expand_dims(goes_on, range(goes_on.ndim, a.ndim)), b, a) for a, b in zip(state, new)]

        self._goes_on = plan(test, [False] * (test_end + len(avals) - state_start))
        self._by_element = bool(_jaxcore.jaxpr_of(test).outvars[0].aval.shape)
        if self._by_element:
            body = _jaxcore.make_jaxpr(turn, list(map(_jaxcore.struct_of, avals)))
        self._turn = plan(body, [False] * len(_jaxcore.jaxpr_of(body).invars))

    def run(self, args: Sequence[Any]) -> Sequence[Any]:
        test_consts, state = args[: self._test_end], args[self._state_start :]
        fixed = args[: self._state_start] if self._by_element else args[self._test_end : self._state_start]
        while np.any(self._goes_on.run([*test_consts, *state])[0]):
            state = self._turn.run([*fixed, *state])
        return state


def _run(closed: Any, *args: Any) -> list[Any]:
    return _jaxcore.run_jaxpr(_jaxcore.jaxpr_of(closed), *args, consts=_jaxcore.consts_of(closed))


class _Scan(_Loop):
    """Runs a `scan`. Each turn reads its rows of the inputs, and writes its results into rows of donated arrays."""

    def prepare(self, plan: _Plan) -> None:
        eqn, length = self.eqn, self.params["length"]
        self._length = length
        self._consts, carries = _jaxcore.scan_counts(eqn)
        self._from = self._consts + carries
        stacked = [v.aval for v in eqn.outvars[carries:]]
        rows = len(eqn.invars) - self._from
        body, reverse = self.params["jaxpr"], self.params["reverse"]

        def turn(*args: Any) -> list[Any]:
            consts, rest = args[: self._consts], args[self._consts :]
            xs, carry, filled, number = rest[:rows], rest[rows : rows + carries], rest[rows + carries : -1], rest[-1]
            at = length - 1 - number if reverse else number
            taken = (jax.lax.dynamic_index_in_dim(x, at, 0, keepdims=False) for x in xs)
            out = _run(body, *consts, *carry, *taken)
            written = (jax.lax.dynamic_update_index_in_dim(a, y, at, 0) for a, y in zip(filled, out[carries:]))
            return [*out[:carries], *written, number + 1]

        avals = [v.aval for v in eqn.invars]
        kinds = [*avals[: self._consts], *avals[self._from :], *avals[self._consts : self._from], *stacked]
        donated = [*[False] * len(avals), *[True] * len(stacked), False]
        number = jax.ShapeDtypeStruct((), np.int32)
        if length:
            # Without a turn there are no rows, and JAX could not trace how a turn takes one.
            self._turn = plan(_jaxcore.make_jaxpr(turn, [*map(_jaxcore.struct_of, kinds), number]), donated)
        self._start = jax.jit(lambda: [*map(_zeros, stacked), jnp.int32(0)])

    def run(self, args: Sequence[Any]) -> Sequence[Any]:
        fixed = [*args[: self._consts], *args[self._from :]]
        state = [*args[self._consts : self._from], *self._start()]
        for _ in range(self._length):
            state = self._turn.run([*fixed, *state])
        return state[:-1]


def _zeros(aval: Any) -> jax.Array:
    if aval.weak_type:
        # The results of the loop have a weak type here. Arrays made from Python numbers have a weak type, too.
        return jnp.broadcast_to({"f": 0.0, "i": 0, "c": 0j}[aval.dtype.kind], aval.shape)
    return jnp.zeros(aval.shape, aval.dtype)


_RUNS: dict[str, Callable[[Any, _Plan], _Loop]] = {"scan": _Scan, "while": _While, "cond": _Cond}
