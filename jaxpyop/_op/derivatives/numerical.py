"""`vjp="numerical"` and `jvp="numerical"`: central differences of the function itself.

If all input elements that a tangent moves have about the same magnitude, the tangent takes one pair of calls, in the
direction of the tangent. A cotangent takes one pair for each element of the inputs. For a complex element it takes two
pairs, along the real and the imaginary axis, because the function need not be holomorphic. The calls run where the
function runs: on its executor, with its progress bar.

The step is the cube root of the dtype's machine epsilon (0.005 for float32), times the absolute value of the element if
that is above one. With this step, the truncation error of the difference quotient is about as large as its rounding
error.
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


def _in_double(value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def relative_step(arrays: Sequence[Any]) -> float:
    """Return the cube root of the largest machine epsilon among the dtypes of these arrays."""
    return float(np.cbrt(max(float(jnp.finfo(a.dtype).eps) for a in arrays if is_inexact(a))))


def _over_elements(value: np.ndarray[Any, Any], lead: tuple[int, ...], reduce: Any) -> np.ndarray[Any, Any]:
    return reduce(value, axis=tuple(range(len(lead), value.ndim)), initial=0.0)


def _expanded(value: np.ndarray[Any, Any], like: Any) -> np.ndarray[Any, Any]:
    """Reshape one value for each batch element, so that it broadcasts against an array with further axes."""
    return value.reshape((*value.shape, *[1] * (np.ndim(like) - value.ndim)))


def own_axes(inputs: Sequence[Any], lead: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of the batch axes of a function's inputs. An axis that only the cotangents have has size 1."""
    return np.broadcast_shapes(*(np.shape(x)[: len(lead)] for x in inputs))


def _run_all(call: Any, each: Iterator[Any], count: int, lead: tuple[int, ...]) -> Iterator[list[Any]]:
    """Run a call on each list of inputs, and yield the results in order."""
    if not lead:
        yield from run_each(call, each, count, "finite difference")
        return
    # A block: one call serves all elements of the batch.
    for arrays in each:
        found: list[Any] = []
        run_once(call, arrays, own_axes(arrays, lead), lambda values: found.extend(map(np.array, values)))  # noqa: B023
        yield found


def _without_failed(failed: list[Any], runs: Iterator[list[Any]], op: Any) -> Iterator[list[Any]]:
    """Take the receipts off the results. Note in `failed` which elements failed, and set their results to zero."""
    for found in runs:
        if op.failures is not None:
            failed.append(np.asarray(found.pop()[..., 0] == 0))
            if failed[-1].any():
                found = [np.where(_expanded(failed[-1], v), np.zeros((), v.dtype), v) for v in found]
        yield found


def _with_fills(
    body: Body, values: list[Any], failed: list[Any], arrays: Sequence[Any], lead: tuple[int, ...]
) -> list[Any]:
    """Replace the derivatives of the elements for which a run failed by the constants of `on_error=`."""
    gone = np.any(failed, axis=0)
    if not gone.any():
        return values
    return [np.where(_expanded(gone, v), fill, v) for v, fill in zip(values, body.fills(arrays, lead))]


def _by_magnitude(inputs: Sequence[Any], tangents: Sequence[Any], lead: tuple[int, ...]) -> list[list[Any]]:
    """Split the tangents into parts that add up to them. Each part moves input elements of about the same magnitude.

    The first part moves the input elements between the largest one and a tenth of it. Each further part moves the
    elements of one of the powers of ten below that.
    """
    wide: list[Any] = [None if t is None else _in_double(t) for t in tangents]
    moved = [(k, np.log10(np.maximum(1.0, np.abs(_in_double(inputs[k]))))) for k, t in enumerate(wide) if t is not None]
    largest = np.zeros(lead)
    for k, power in moved:
        largest = np.maximum(largest, _over_elements(np.where(wide[k] != 0, power, 0.0), lead, np.max))
    with np.errstate(invalid="ignore"):
        # For NaN and infinity it does not matter in which part they are.
        below = {k: np.nan_to_num(_expanded(largest, power) - power) // 1 for k, power in moved}
    found = {place for k, places in below.items() for place in places[wide[k] != 0].tolist()}
    return [
        [None if t is None else np.where(below[k] == place, t, 0.0) for k, t in enumerate(wide)]
        for place in sorted(found) or [0.0]
    ]


class NumericalJvp(RuleTangents):
    """Computes the tangents by one pair of calls for each part of `_by_magnitude`."""

    goes_to_executor = False
    step_power = 1.0
    """The relative step is raised to this power. It is less than one if the function is itself a difference quotient,
    because such a function is less precise than its dtype, and needs a larger step."""

    def __init__(self, base: Body, perturbed: tuple[bool, ...], make_pullback: MakePullback, function: Call) -> None:
        super().__init__(base, perturbed, make_pullback)
        self.function = function

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        inputs, outputs, tangents = self.split(arrays)
        # One step only suits elements of about the same magnitude, so each part gets a step of its own.
        along = _by_magnitude(inputs, tangents, lead)
        steps = [self._step(inputs, outputs, directions, lead) for directions in along]

        def moved(directions: Sequence[Any], step: Any, sign: int) -> list[Any]:
            return [
                np.array(x) if t is None else (_in_double(x) + sign * _expanded(step, t) * t).astype(x.dtype)
                for x, t in zip(inputs, directions)
            ]

        each = (moved(directions, step, sign) for directions, step in zip(along, steps) for sign in (1, -1))
        failed: list[Any] = []
        runs = _without_failed(failed, _run_all(self.function, each, 2 * len(along), lead), self.op)
        changes: list[Any] = [0.0 for o in outputs if is_inexact(o)]
        for step, plus, minus in zip(steps, runs, runs):
            pairs = [(_in_double(a), _in_double(b)) for a, b, o in zip(plus, minus, outputs) if is_inexact(o)]
            changes = [c + (a - b) / (2 * _expanded(step, a)) for c, (a, b) in zip(changes, pairs)]
        slopes = [c.astype(o.dtype) for c, o in zip(changes, filter(is_inexact, outputs))]
        return _with_fills(self, slopes, failed, arrays, lead) if failed else slopes

    def _step(
        self, inputs: Sequence[Any], outputs: Sequence[Any], tangents: Sequence[Any], lead: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        weighted, total, largest = (np.zeros(lead) for _ in range(3))
        moved = [(np.abs(_in_double(x)), np.abs(t)) for x, t in zip(inputs, tangents) if t is not None]
        for x, t in moved:
            weighted = weighted + _over_elements(x * t, lead, np.sum)
            total = total + _over_elements(t, lead, np.sum)
            largest = np.maximum(largest, _over_elements(t, lead, np.max))
        still = largest == 0
        size = np.where(still, 1.0, np.maximum(1.0, weighted / np.where(still, 1.0, total)))
        return relative_step((*inputs, *outputs)) ** self.step_power * size / np.where(still, 1.0, largest)


class NumericalVjp(CotangentBody):
    """Computes the cotangents by one pair of calls for each element of the inputs."""

    goes_to_executor = False

    def __init__(
        self, base: UserBody, nonzero_cotangents: tuple[bool, ...], wanted_cotangents: tuple[bool, ...], function: Call
    ) -> None:
        super().__init__(base, nonzero_cotangents, wanted_cotangents)
        self.function = function

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        inputs, _, nonzero = self.split(arrays)
        structs = self.base.shapes(element_structs(inputs, lead))
        cotangents = [None if ct is None else _in_double(ct) for ct in self.per_result(nonzero, structs)]
        places = list(self._places(inputs, lead))
        steps: dict[int, np.ndarray[Any, Any]] = {}
        relative = relative_step([*inputs, *structs])
        each = (a for n, place in enumerate(places) for a in self._pair(inputs, place, relative, steps, n))
        failed: list[Any] = []
        runs = _without_failed(failed, _run_all(self.function, each, 2 * len(places), lead), self.op)
        pairs = enumerate(zip(runs, runs))
        slopes = [self._slope(plus, minus, cotangents, steps[n], lead) for n, (plus, minus) in pairs]
        gathered = self._gathered(inputs, places, slopes, lead)
        return _with_fills(self, gathered, failed, arrays, lead) if failed else gathered

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
        step = relative * np.maximum(1.0, np.abs(_in_double(x[at])))
        ends = []
        for sign in (1, -1):
            moved = np.array(x)
            moved[at] = (_in_double(x[at]) + sign * step * direction).astype(x.dtype)
            ends.append(moved)
        # The difference is divided by the distance of the two ends after they are rounded to the dtype.
        steps[n] = ((_in_double(ends[0][at]) - _in_double(ends[1][at])) / direction).real
        for moved in ends:
            yield [moved if k == i else np.array(a) for k, a in enumerate(inputs)]

    def _slope(
        self, plus: list[Any], minus: list[Any], cotangents: list[Any], step: Any, lead: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        total = np.zeros(lead)
        for a, b, ct in zip(plus, minus, cotangents):
            if ct is not None:
                change = _in_double(a) - _in_double(b)
                # JAX multiplies complex tangents and cotangents without conjugating either of them.
                products = np.real(ct * change / _expanded(np.asarray(step), change))
                total = total + _over_elements(products, lead, np.sum)
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
