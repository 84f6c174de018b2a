"""`vjp=numerical()` and `jvp=numerical()`: central differences of the function itself.

If all input elements that a tangent moves have about the same magnitude, the tangent takes one pair of calls, in the
direction of the tangent. A cotangent takes one pair for each element of the inputs. For a complex element it takes two
pairs, along the real and the imaginary axis, because the function need not be holomorphic. The calls run where the
function runs: on its executor, with its progress bar.

The step is the cube root of the dtype's machine epsilon (0.005 for float32), times the absolute value of the element if
that is above one. With this step, the truncation error of the difference quotient is about as large as its rounding
error. The user may give other steps: an absolute one, and one relative to the element.

Overflows and NaN are in the results, and NumPy does not warn of them, because they are no mistake in the user's code.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxpyop._host import refusal, run_each, run_once
from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.body import DerivativeBody, UserBody
from jaxpyop._op.primitive import NO_RUN, TOKEN_WORD, Call
from jaxpyop._op.user_rules.functions import expanded


def _in_double(value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _over_elements(value: np.ndarray[Any, Any], axes: int, reduce: Any) -> np.ndarray[Any, Any]:
    """Reduce all axes but the first ones, which are the batch axes."""
    return reduce(value, axis=tuple(range(axes, value.ndim)), initial=0.0)


# A direction has a tangent for each input, or None for an input that does not move.
_Direction = list[Any]


class NumericalBody(DerivativeBody):
    """A derivative by central differences.

    Args:
        base: the user's function.
        perturbed: the inputs in which it is differentiated.
        nonzero: which inexact results have a cotangent; None for tangents.
        function: a call of the function itself. With `on_error=` its last result is a receipt.
    """

    goes_to_executor = False

    def __init__(
        self, base: UserBody, perturbed: tuple[bool, ...], nonzero: tuple[bool, ...] | None, function: Call
    ) -> None:
        super().__init__(base, perturbed, nonzero)
        self.function = function
        rule: Any = self.op.rules.jvp if nonzero is None else self.op.rules.vjp
        self.steps = _steps_of_inputs(base, rule.step)

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        inputs, outputs, linear = self.split(arrays)
        default = float(np.cbrt(max(float(jnp.finfo(a.dtype).eps) for a in (*inputs, *outputs) if is_inexact(a))))
        steps = [(default, default) if step is None else step for step in self.steps]
        differences = self._tangents if self.nonzero is None else self._cotangents
        found, failed = differences(inputs, outputs, linear, steps, lead)
        if failed.any():
            # The derivatives of the elements for which a run failed are those of `on_error=`.
            found = [np.where(expanded(failed, v), fill, v) for v, fill in zip(found, self.fills(arrays, lead))]
        return found

    @np.errstate(all="ignore")
    def _tangents(
        self, inputs: Sequence[Any], outputs: Sequence[Any], tangents: Any, steps: Any, lead: tuple[int, ...]
    ) -> tuple[list[Any], Any]:
        """Take one pair of calls for each part of `_by_magnitude`."""
        tangents = [None if t is None or not np.any(t) else t for t in self.per_input(tangents)]
        # One step only suits elements of about the same magnitude, so each part gets a step of its own.
        along: list[_Direction] = []
        for step in dict.fromkeys(step for step, t in zip(steps, tangents) if t is not None):
            of_step = [t if own == step else None for own, t in zip(steps, tangents)]
            along += _by_magnitude(inputs, of_step, step, lead)
        slopes, failed = self._slopes(inputs, outputs, along, len(along), steps, lead)
        results = [o for o in outputs if is_inexact(o)]
        if not along:
            return [np.zeros((*lead, *o.shape[len(lead) :]), o.dtype) for o in results], failed
        return [np.asarray(sum(parts)).astype(o.dtype) for *parts, o in zip(*slopes, results)], failed

    @np.errstate(all="ignore")
    def _cotangents(
        self, inputs: Sequence[Any], outputs: Sequence[Any], nonzero: Any, steps: Any, lead: tuple[int, ...]
    ) -> tuple[list[Any], Any]:
        """Take one pair of calls for each element of the inputs."""
        cotangents = [ct for ct, o in zip(self.per_result(nonzero, outputs), outputs) if is_inexact(o)]
        wanted = [k for k, wants in enumerate(self.perturbed) if wants]
        # Each place is an element of an input, with the axis along which it moves: real or imaginary.
        places = [
            (k, index, axis)
            for k in wanted
            for index in np.ndindex(*inputs[k].shape[len(lead) :])
            for axis in ((1.0, 1j) if np.iscomplexobj(inputs[k]) else (1.0,))
        ]
        along = (_unit(inputs, *place) for place in places)
        slopes, failed = self._slopes(inputs, outputs, along, len(places), steps, lead)
        found = {k: np.zeros((*lead, *inputs[k].shape[len(lead) :]), _in_double(inputs[k]).dtype) for k in wanted}
        for changes, (k, index, axis) in zip(slopes, places):
            # JAX multiplies complex tangents and cotangents without conjugating either of them.
            products = [np.real(_in_double(ct) * c) for ct, c in zip(cotangents, changes) if ct is not None]
            total = sum(_over_elements(product, len(lead), np.sum) for product in products)
            found[k][(..., *index)] += total * np.conj(axis)
        return [v.astype(inputs[k].dtype) for k, v in found.items()], failed

    def _slopes(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        directions: Iterable[_Direction],
        count: int,
        steps: Any,
        lead: tuple[int, ...],
    ) -> tuple[list[list[Any]], Any]:
        """Return the slopes of the inexact results along each direction, and for which elements a run failed."""
        distances: list[np.ndarray[Any, Any]] = []

        def ends() -> Iterator[list[Any]]:
            for direction in directions:
                step = _length_of_step(inputs, direction, steps, len(lead))
                plus, minus = ([_moved(x, t, sign * step) for x, t in zip(inputs, direction)] for sign in (1, -1))
                distances.append(_distance(plus, minus, direction, len(lead)))
                if any(step is not None for step in self.steps) and not distances[-1].all():
                    text = (
                        f"{self.title}: the step of numerical(step=...) is so small that an input plus the step is "
                        "rounded to the input itself; pass a larger step, or inputs of 64 bits"
                    )
                    raise refusal(ValueError(text))
                yield from (plus, minus)

        runs = _run_all(self.function, ends(), 2 * count, lead)
        failed, found = np.zeros(lead, bool), list[list[Any]]()
        for pair in zip(runs, runs):
            if self.op.failures is not None:
                failed = failed | np.any([results.pop()[..., TOKEN_WORD] == NO_RUN for results in pair], axis=0)
            values = [(_in_double(a), _in_double(b)) for a, b, o in zip(*pair, outputs) if is_inexact(o)]
            found.append([(a - b) / expanded(distances[len(found)], a) for a, b in values])
        return found, failed


def _steps_of_inputs(body: UserBody, step: Any) -> list[Any]:
    """For each array of the inputs the absolute step and the one relative to an element, or None for the default."""
    arguments, count = body.arguments, len(body.inputs.key_impls)
    as_pair = lambda one: one if one is None or isinstance(one, tuple) else (float(one), float(one))
    if not isinstance(step, list):
        return [as_pair(step)] * count
    if len(step) != len(arguments.names):
        raise ValueError(
            f"{body.title}: numerical(step=[...]) has {len(step)} entries, and func has the arguments "
            f"{' and '.join(arguments.names)}; give each one"
        )
    stands_for_all = lambda part: part is None or isinstance(part, numbers.Real)
    found = arguments.each(step, f"{body.title}: numerical(step=[...]) has", fills=stands_for_all)
    return [as_pair(found.get(k)) for k in range(count)]


@np.errstate(all="ignore")
def _moved(x: Any, tangent: Any, step: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.array(x) if tangent is None else (_in_double(x) + expanded(step, tangent) * tangent).astype(x.dtype)


@np.errstate(all="ignore")
def _length_of_step(inputs: Sequence[Any], direction: _Direction, steps: Any, axes: int) -> np.ndarray[Any, Any]:
    """Return the step along a direction, for each element.

    Args:
        inputs: the inputs of the function.
        direction: the direction. The inputs that it moves have one step.
        steps: the steps of all inputs.
        axes: the number of batch axes.
    """
    absolute, relative = next(step for step, t in zip(steps, direction) if t is not None)
    moved = [(np.abs(_in_double(x)), np.abs(t)) for x, t in zip(inputs, direction) if t is not None]
    total = sum(_over_elements(t, axes, np.sum) for _, t in moved)
    weighted = sum(_over_elements(x * t, axes, np.sum) for x, t in moved)
    largest = np.asarray(functools.reduce(np.maximum, (_over_elements(t, axes, np.max) for _, t in moved)))
    still = largest == 0
    length = np.where(still, absolute, np.maximum(absolute, relative * weighted / np.where(still, 1.0, total)))
    return length / np.where(still, 1.0, largest)


@np.errstate(all="ignore")
def _distance(plus: Sequence[Any], minus: Sequence[Any], direction: _Direction, axes: int) -> np.ndarray[Any, Any]:
    """Return how far two points lie apart along a direction, once they are rounded to the dtypes of the inputs."""
    total, across = np.zeros(()), np.zeros(())
    for a, b, t in zip(plus, minus, direction):
        if t is not None:
            size = np.abs(t)
            gaps = np.real((_in_double(a) - _in_double(b)) * np.conj(t) / np.where(size == 0, 1.0, size))
            across = across + _over_elements(np.where(size == 0, 0.0, gaps), axes, np.sum)
            total = total + _over_elements(size, axes, np.sum)
    return np.where(total == 0, 1.0, across / np.where(total == 0, 1.0, total))


def _run_all(call: Any, each: Iterator[Any], count: int, lead: tuple[int, ...]) -> Iterator[list[Any]]:
    """Run a call on each list of inputs, and yield the results in order."""
    if not lead:
        yield from run_each(call, each, count, "finite difference")
        return
    # A block: one call serves all elements of the batch.
    for arrays in each:
        found: list[Any] = []
        # A batch axis that only the cotangents have has size 1 in the inputs.
        own_lead = np.broadcast_shapes(*(np.shape(x)[: len(lead)] for x in arrays))
        run_once(call, arrays, own_lead, lambda values: found.extend(map(np.array, values)))  # noqa: B023
        yield found


@np.errstate(all="ignore")
def _by_magnitude(
    inputs: Sequence[Any], tangents: Sequence[Any], step: tuple[float, float], lead: tuple[int, ...]
) -> list[_Direction]:
    """Split tangents into parts that add up to them. Each part moves input elements that need about the same step.

    The first part moves the input elements whose step is between the largest one and a tenth of it. Each further part
    moves the elements of one of the powers of ten below that.
    """
    ratio = step[1] / step[0]
    wide: list[Any] = [None if t is None else _in_double(t) for t in tangents]
    of_elements = {k: np.abs(_in_double(inputs[k])) * ratio for k, t in enumerate(wide) if t is not None}
    moved = [(k, np.log10(np.maximum(1.0, size))) for k, size in of_elements.items()]
    largest = np.zeros(lead)
    for k, power in moved:
        largest = np.maximum(largest, _over_elements(np.where(wide[k] != 0, power, 0.0), len(lead), np.max))
    # For NaN and infinity it does not matter in which part they are.
    below = {k: np.nan_to_num(expanded(largest, power) - power) // 1 for k, power in moved}
    found = {place for k, places in below.items() for place in places[wide[k] != 0].tolist()}
    return [
        [None if t is None else np.where(below[k] == place, t, 0.0) for k, t in enumerate(wide)]
        for place in sorted(found) or [0.0]
    ]


def _unit(inputs: Sequence[Any], k: int, index: tuple[int, ...], axis: complex) -> _Direction:
    """Return the direction in which one element of an input moves."""
    unit = np.zeros(inputs[k].shape, np.result_type(axis))
    unit[(..., *index)] = axis
    return [unit if n == k else None for n in range(len(inputs))]
