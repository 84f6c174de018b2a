"""`vjp="numerical"` and `jvp="numerical"`: central differences of the function itself.

A tangent takes one pair of calls, along the tangent. A cotangent takes one pair for each element of the inputs. For
complex inputs it takes two, along the real and along the imaginary axis, because functions need not be holomorphic. The
calls run where the function runs: on its executor, with its progress bar.

The step is the cube root of the dtype's precision (0.005 for float32), times the size of the element if that is above
one. With this step the truncation error of the difference quotient is about as large as its rounding error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxpyop._host import run_each, run_once
from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.body import Body, CotangentBody, UserBody, element_structs
from jaxpyop._op.derivatives.functions import MakePullback, RuleTangents
from jaxpyop._op.primitive import Call


def _wide(value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def relative_step(arrays: Sequence[Any]) -> float:
    """The cube root of the coarsest precision among these."""
    return float(np.cbrt(max(float(jnp.finfo(a.dtype).eps) for a in arrays if is_inexact(a))))


def _over_elements(value: np.ndarray[Any, Any], lead: tuple[int, ...], reduce: Any) -> np.ndarray[Any, Any]:
    return reduce(value, axis=tuple(range(len(lead), value.ndim)), initial=0.0)


def _beside(value: np.ndarray[Any, Any], like: Any) -> np.ndarray[Any, Any]:
    """One value for each batch element, shaped to broadcast against an array with further axes."""
    return value.reshape((*value.shape, *[1] * (np.ndim(like) - value.ndim)))


def _runs(call: Any, each: Iterator[Any], count: int, lead: tuple[int, ...]) -> Iterator[list[Any]]:
    """The results of a call on each list of inputs, in order."""
    if not lead:
        yield from run_each(call, each, count, "finite difference")
        return
    # A block: one call serves all elements of the batch.
    for arrays in each:
        found: list[Any] = []
        run_once(call, arrays, lead, lambda values: found.extend(map(np.array, values)))  # noqa: B023
        yield found


def _noting(failed: list[Any], runs: Iterator[list[Any]], op: Any) -> Iterator[list[Any]]:
    """The results without the receipts that tell what failed, which go into `failed`. Failed results become zeros."""
    for found in runs:
        if op.failures is not None:
            failed.append(np.asarray(found.pop()[..., 0] == 0))
            if failed[-1].any():
                found = [np.where(_beside(failed[-1], v), np.zeros((), v.dtype), v) for v in found]
        yield found


def _filled(
    body: Body, values: list[Any], failed: list[Any], arrays: Sequence[Any], lead: tuple[int, ...]
) -> list[Any]:
    """The derivatives, without those of the elements of which a run failed."""
    gone = np.any(failed, axis=0)
    if not gone.any():
        return values
    return [np.where(_beside(gone, v), fill, v) for v, fill in zip(values, body.fills(arrays, lead))]


class NumericalJvp(RuleTangents):
    """The tangents by one pair of calls."""

    goes_to_executor = False
    root = 1.0
    """The power of the step: less than one if the function is itself a difference, and less precise than its dtype."""

    def __init__(self, base: Body, perturbed: tuple[bool, ...], make_pullback: MakePullback, function: Call) -> None:
        super().__init__(base, perturbed, make_pullback)
        self.function = function

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        inputs, outputs, tangents = self.split(arrays)
        step = self._step(inputs, outputs, tangents, lead)

        def moved(sign: int) -> list[Any]:
            return [
                np.array(x) if t is None else (_wide(x) + sign * _beside(step, t) * _wide(t)).astype(x.dtype)
                for x, t in zip(inputs, tangents)
            ]

        failed: list[Any] = []
        plus, minus = _noting(failed, _runs(self.function, map(moved, (1, -1)), 2, lead), self.op)
        pairs = [(_wide(a), _wide(b), o) for a, b, o in zip(plus, minus, outputs) if is_inexact(o)]
        slopes = [((a - b) / (2 * _beside(step, a))).astype(o.dtype) for a, b, o in pairs]
        return _filled(self, slopes, failed, arrays, lead) if failed else slopes

    def _step(
        self, inputs: Sequence[Any], outputs: Sequence[Any], tangents: Sequence[Any], lead: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        weighted, total, largest = (np.zeros(lead) for _ in range(3))
        moved = [(np.abs(_wide(x)), np.abs(_wide(t))) for x, t in zip(inputs, tangents) if t is not None]
        for x, t in moved:
            weighted = weighted + _over_elements(x * t, lead, np.sum)
            total = total + _over_elements(t, lead, np.sum)
            largest = np.maximum(largest, _over_elements(t, lead, np.max))
        still = largest == 0
        size = np.where(still, 1.0, np.maximum(1.0, weighted / np.where(still, 1.0, total)))
        return relative_step((*inputs, *outputs)) ** self.root * size / np.where(still, 1.0, largest)


class NumericalVjp(CotangentBody):
    """The cotangents by one pair of calls for each element of the inputs."""

    goes_to_executor = False

    def __init__(
        self, base: UserBody, nonzero_cotangents: tuple[bool, ...], wanted_cotangents: tuple[bool, ...], function: Call
    ) -> None:
        super().__init__(base, nonzero_cotangents, wanted_cotangents)
        self.function = function

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        inputs, _, nonzero = self.split(arrays)
        structs = self.base.shapes(element_structs(inputs, lead))
        cotangents = [None if ct is None else _wide(ct) for ct in self.per_result(nonzero, structs)]
        places = list(self._places(inputs, lead))
        steps: dict[int, np.ndarray[Any, Any]] = {}
        relative = relative_step([*inputs, *structs])
        each = (a for n, place in enumerate(places) for a in self._pair(inputs, place, relative, steps, n))
        failed: list[Any] = []
        runs = _noting(failed, _runs(self.function, each, 2 * len(places), lead), self.op)
        pairs = enumerate(zip(runs, runs))
        slopes = [self._slope(plus, minus, cotangents, steps[n], lead) for n, (plus, minus) in pairs]
        gathered = self._gathered(inputs, places, slopes, lead)
        return _filled(self, gathered, failed, arrays, lead) if failed else gathered

    def _places(self, inputs: Sequence[Any], lead: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...], complex]]:
        for i, (x, wants) in enumerate(zip(inputs, self.wanted_cotangents)):
            if wants:
                directions = (1.0, 1j) if np.dtype(x.dtype).kind == "c" else (1.0,)
                for index in np.ndindex(*x.shape[len(lead) :]):
                    yield from ((i, index, direction) for direction in directions)

    def _pair(
        self, inputs: Sequence[Any], place: Any, relative: float, steps: dict[int, Any], n: int
    ) -> Iterator[list[Any]]:
        i, index, direction = place
        at = (..., *index)
        x = np.asarray(inputs[i])
        step = relative * np.maximum(1.0, np.abs(_wide(x[at])))
        ends = []
        for sign in (1, -1):
            moved = np.array(x)
            moved[at] = (_wide(x[at]) + sign * step * direction).astype(x.dtype)
            ends.append(moved)
        # The step after rounding to the dtype.
        steps[n] = ((_wide(ends[0][at]) - _wide(ends[1][at])) / direction).real
        for moved in ends:
            yield [moved if k == i else np.array(a) for k, a in enumerate(inputs)]

    def _slope(
        self, plus: list[Any], minus: list[Any], cotangents: list[Any], step: Any, lead: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        total = np.zeros(lead)
        for a, b, ct in zip(plus, minus, cotangents):
            if ct is not None:
                change = _wide(a) - _wide(b)
                # JAX pairs complex tangents and cotangents without a conjugate.
                products = np.real(ct * change / _beside(np.asarray(step), change))
                total = total + np.sum(products, axis=tuple(range(len(lead), products.ndim)))
        return total

    def _gathered(
        self, inputs: Sequence[Any], places: list[Any], slopes: list[Any], lead: tuple[int, ...]
    ) -> list[Any]:
        found = {
            i: np.zeros((*lead, *x.shape[len(lead) :]), np.complex128 if np.dtype(x.dtype).kind == "c" else np.float64)
            for i, (x, wants) in enumerate(zip(inputs, self.wanted_cotangents))
            if wants
        }
        for slope, (i, index, direction) in zip(slopes, places):
            found[i][(..., *index)] += slope * (-1j if direction == 1j else 1.0)
        return [value.astype(inputs[i].dtype) for i, value in found.items()]
