"""`vjp=numerical()` and `jvp=numerical()`: central differences of the function itself.

A cotangent takes one pair of calls for each element of the inputs. A complex element takes two pairs, along the real
and the imaginary axis, because the function need not be holomorphic. A tangent takes one pair for all elements that
reach their steps at about the same distance along it. The calls run where the function runs: on its executor.

The step is the cube root of the dtype's machine epsilon (0.005 for float32), times the absolute value of the element if
that is above one. With this step, the truncation error of the difference quotient is about as large as its rounding
error. The user may give other steps: an absolute one, and one relative to the element.

Overflows and NaN are in the results, and NumPy does not warn of them, because they are no mistake in the user's code.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxpyop._dtypes import is_inexact
from jaxpyop._host import run_each
from jaxpyop._op.body import DerivativeBody, UserBody
from jaxpyop._op.primitive import Call
from jaxpyop._refusal import refusal

# For each input an array of how its elements move, or None if it stays as it is.
_Direction = list[Any]


class NumericalBody(DerivativeBody):
    """A derivative by central differences.

    Args:
        base: the user's function.
        perturbed: the inputs in which it is differentiated.
        nonzero: which inexact results have a cotangent; None for tangents.
        function: a call of the function itself.
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
        inputs, outputs, linear = (list(map(np.asarray, part)) for part in self.split(arrays))
        with np.errstate(all="ignore"):
            return (self._tangents if self.nonzero is None else self._cotangents)(inputs, outputs, linear)

    def _tangents(self, inputs: list[Any], outputs: list[Any], given: list[Any]) -> list[Any]:
        results = [o for o in outputs if is_inexact(o)]
        found = [np.zeros(o.shape, _in_double(o).dtype) for o in results]
        tangents = self.per_input(given)
        parts = _parts(tangents, self._reaches(inputs, outputs, tangents))
        directions = [one for part in parts for one in self._unless_rounded(inputs, outputs, part)]
        for slopes in self._slopes(inputs, outputs, directions, len(directions)):
            for total, slope in zip(found, slopes):
                total += slope
        return [total.astype(o.dtype) for total, o in zip(found, results)]

    def _cotangents(self, inputs: list[Any], outputs: list[Any], given: list[Any]) -> list[Any]:
        cotangents = [ct for ct, o in zip(self.per_result(given, outputs), outputs) if is_inexact(o)]
        # An element of an input, and the axis along which it moves: 1 or 1j.
        places = [
            (k, index, axis)
            for k, (x, moves) in enumerate(zip(inputs, self.perturbed))
            for index in (np.ndindex(*x.shape) if moves else ())
            for axis in ((1.0, 1j) if np.iscomplexobj(x) else (1.0,))
        ]
        found = [np.zeros(x.shape, _in_double(x).dtype) for x in inputs]
        units = (_unit(inputs, *place) for place in places)
        for (k, index, axis), slopes in zip(places, self._slopes(inputs, outputs, units, len(places))):
            # JAX multiplies complex tangents and cotangents without conjugating either of them.
            products = (np.real(_in_double(ct) * slope) for ct, slope in zip(cotangents, slopes) if ct is not None)
            found[k][index] += sum(map(np.sum, products)) * np.conj(axis)
        return [total.astype(x.dtype) for total, x, wanted in zip(found, inputs, self.perturbed) if wanted]

    def _slopes(
        self, inputs: list[Any], outputs: list[Any], directions: Iterable[_Direction], count: int
    ) -> Iterator[list[Any]]:
        """The slopes of the inexact results along each direction."""
        distances: list[Any] = []

        def ends() -> Iterator[list[Any]]:
            for direction in directions:
                step = self._length(inputs, outputs, direction)
                plus, minus = (list(map(_moved, inputs, direction, [signed] * len(inputs))) for signed in (step, -step))
                distances.append(_distance(plus, minus, direction))
                if distances[-1] is None and any(step is not None for step in self.steps):
                    text = (
                        f"{self.title}: the step of numerical(step=...) is so small that an input plus the step is "
                        "rounded to the input itself; pass a larger step, or inputs of 64 bits"
                    )
                    raise refusal(ValueError(text))
                yield from (plus, minus)

        runs = iter(run_each(self.function, ends(), 2 * count, "finite difference"))
        for distance, plus, minus in zip(distances, runs, runs):
            triples = zip(plus, minus, outputs)
            yield [(_in_double(a) - _in_double(b)) / (distance or 0.0) for a, b, o in triples if is_inexact(o)]

    def _unless_rounded(self, inputs: list[Any], outputs: list[Any], part: _Direction) -> list[_Direction]:
        """The part of a tangent, or its elements one by one if rounding changes how far they move beside each other.

        A tenth of a step is not long beside the spacing of a small dtype, nor is that of a short step of the user's.
        """
        length = self._length(inputs, outputs, part)
        singles: list[_Direction] = []
        is_rounded = False
        for k, (x, t) in enumerate(zip(inputs, part)):
            if t is not None:
                gaps = _in_double(_moved(x, t, length)) - _in_double(_moved(x, t, -length))
                is_rounded |= bool(np.any(np.abs(gaps - 2 * length * t) > 0.001 * np.abs(2 * length * t)))
                for index in map(tuple, np.argwhere(t != 0)):
                    axes = (t[index].real, 1j * t[index].imag) if np.iscomplexobj(t) else (t[index],)
                    singles += [_unit(inputs, k, index, axis) for axis in axes if axis != 0]
        return singles if is_rounded else [part]

    def _length(self, inputs: list[Any], outputs: list[Any], direction: _Direction) -> Any:
        """How far all elements may go along a direction."""
        reaches = self._reaches(inputs, outputs, direction)
        return min(reach.min(initial=np.inf) for reach in reaches if reach is not None)

    def _reaches(self, inputs: list[Any], outputs: list[Any], direction: _Direction) -> _Direction:
        """How far each element may go along a direction: as many times its entry there as make up its step."""
        default = float(np.cbrt(max(float(jnp.finfo(a.dtype).eps) for a in (*inputs, *outputs) if is_inexact(a))))
        found: _Direction = []
        for x, moves, step in zip(inputs, direction, self.steps):
            absolute, relative = step or (default, default)
            size = np.abs(_in_double(x))
            # What is not finite gives NaN, however far it goes.
            length = np.maximum(absolute, relative * np.where(np.isfinite(size), size, 1.0))
            times = None if moves is None else length / np.abs(moves)
            is_usual = times is not None and np.isfinite(times) & (times > 0)
            found.append(None if times is None else np.where(moves == 0, np.inf, np.where(is_usual, times, 1.0)))
        return found


def _parts(tangents: _Direction, reaches: _Direction) -> list[_Direction]:
    """Split tangents into parts that add up to them. The elements of a part differ by a factor of ten in their reach.

    One length for all of them is then no more than ten times too short for any.
    """
    nearest = min((reach.min(initial=np.inf) for reach in reaches if reach is not None), default=np.inf)
    powers = [None if reach is None else np.floor(np.log10(reach / nearest)) for reach in reaches]
    found = {power for each in powers if each is not None for power in each[np.isfinite(each)].tolist()}
    return [
        [None if each is None else np.where(each == power, t, 0.0) for t, each in zip(tangents, powers)]
        for power in sorted(found)
    ]


def _unit(inputs: list[Any], k: int, index: tuple[int, ...], axis: complex) -> _Direction:
    """The direction in which one element of an input moves."""
    unit = np.zeros(inputs[k].shape, type(axis))
    unit[index] = axis
    return [unit if n == k else None for n in range(len(inputs))]


def _moved(x: Any, direction: Any, length: Any) -> Any:
    """An input, as an array that the function may change, some way along a direction."""
    if direction is None:
        return np.array(x, order="C")
    wide = _in_double(x)
    return np.where(direction == 0, wide, wide + length * direction).astype(x.dtype, order="C")


def _distance(plus: list[Any], minus: list[Any], direction: _Direction) -> Any:
    """How far two points are apart along a direction, once they are rounded; None if an element did not move."""
    total = across = 0.0
    for a, b, t in zip(plus, minus, direction):
        if t is not None:
            t, gaps = t[t != 0], (_in_double(a) - _in_double(b))[t != 0]
            if not gaps.all():
                return None
            across += np.sum(np.real(gaps * np.conj(t)))
            total += np.sum(np.abs(t) ** 2)
    return across / total


def _in_double(value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _steps_of_inputs(body: UserBody, step: Any) -> list[Any]:
    """For each array of the inputs the absolute step and the one relative to an element, or None for the default."""
    arguments, count = body.arguments, len(body.inputs.key_impls)
    as_pair = lambda one: one if one is None or isinstance(one, tuple) else (float(one), float(one))
    if not isinstance(step, list):
        return [as_pair(step)] * count
    if len(step) != len(arguments.names):
        text = (
            f"{body.title}: numerical(step=[...]) has {len(step)} entries, and func has the arguments "
            f"{' and '.join(arguments.names)}; give each one"
        )
        raise refusal(ValueError(text))
    stands_for_all = lambda part: part is None or isinstance(part, numbers.Real)
    found = arguments.each(step, f"{body.title}: numerical(step=[...]) has", fills=stands_for_all)
    return [as_pair(found.get(k)) for k in range(count)]
