"""Loops and conds that hold a Python call, run from Python: each turn is a plan of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore

# Plans a jaxpr. The booleans say which of its inputs are donated.
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
        # A loop without a turn returns its inputs. They are copied, because the results of a program share no memory.
        return [jnp.copy(out) if any(out is a for a in args) else out for out in self.run(args)]


class _Cond(_Loop):
    def prepare(self, plan: _Plan) -> None:
        self._branches = [plan(b, [False] * (len(self.eqn.invars) - 1)) for b in self.params["branches"]]

    def run(self, args: Sequence[Any]) -> Sequence[Any]:
        last = len(self._branches) - 1
        return self._branches[min(max(int(args[0]), 0), last)].run(args[1:])


class _While(_Loop):
    """Runs a `while`. Under `vmap` the test can differ by element; then a turn changes only the elements that go on."""

    def prepare(self, plan: _Plan) -> None:
        params = self.params
        test, body = params["cond_jaxpr"], params["body_jaxpr"]
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        avals = [v.aval for v in self.eqn.invars]
        self._first, self._second = first, second

        def turn(*args: Any) -> list[Any]:
            state = args[second:]
            new = _run(body, *args[first:second], *state)
            (goes_on,) = _run(test, *args[:first], *state)
            return [jnp.where(jnp.expand_dims(goes_on, range(goes_on.ndim, a.ndim)), b, a) for a, b in zip(state, new)]

        self._goes_on = plan(test, [False] * (first + len(avals) - second))
        self._by_element = bool(_jaxcore.jaxpr_of(test).outvars[0].aval.shape)
        if self._by_element:
            body = _jaxcore.make_jaxpr(turn, list(map(_struct, avals)))
        self._turn = plan(body, [False] * len(_jaxcore.jaxpr_of(body).invars))

    def run(self, args: Sequence[Any]) -> Sequence[Any]:
        of_test, state = args[: self._first], args[self._second :]
        fixed = args[: self._second] if self._by_element else args[self._first : self._second]
        while np.any(self._goes_on.run([*of_test, *state])[0]):
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
            # Nothing can be taken out of arrays of no rows.
            self._turn = plan(_jaxcore.make_jaxpr(turn, [*map(_struct, kinds), number]), donated)
        self._start = jax.jit(lambda: [*map(_zeros, stacked), jnp.int32(0)])

    def run(self, args: Sequence[Any]) -> Sequence[Any]:
        fixed = [*args[: self._consts], *args[self._from :]]
        state = [*args[self._consts : self._from], *self._start()]
        for _ in range(self._length):
            state = self._turn.run([*fixed, *state])
        return state[:-1]


def _zeros(aval: Any) -> jax.Array:
    if aval.weak_type:
        # Arithmetic keeps a weak type, so the zeros are made of Python's numbers.
        return jnp.broadcast_to({"f": 0.0, "i": 0, "c": 0j}[aval.dtype.kind], aval.shape)
    return jnp.zeros(aval.shape, aval.dtype)


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    weak = aval.weak_type if hasattr(aval, "weak_type") else False
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)


_RUNS: dict[str, Callable[[Any, _Plan], _Loop]] = {"scan": _Scan, "while": _While, "cond": _Cond}
