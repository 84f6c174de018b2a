"""`vjp=numerical()` and `jvp=numerical()`: central differences of the function itself.

Each element of the inputs that has a tangent, or whose cotangent is asked for, takes one pair of calls. A complex
element takes two pairs, along the real and the imaginary axis, because the function need not be holomorphic. The calls
run where the function runs: on its executor.

The step is the cube root of the dtype's machine epsilon (0.005 for float32), times the absolute value of the element if
that is above one. With this step, the truncation error of the difference quotient is about as large as its rounding
error. The user may give other steps: an absolute one, and one relative to the element.

Overflows and NaN are in the results, and NumPy does not warn of them, because they are no mistake in the user's code.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxpyop._host import refusal, run_each
from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.body import DerivativeBody, UserBody
from jaxpyop._op.primitive import Call


class _Place(NamedTuple):
    """An element of the inputs, and the axis along which it moves: 1 or 1j."""

    input: int
    at: tuple[int, ...]
    axis: complex


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
        tangents = self.per_input(given)
        along = lambda place: np.real(tangents[place.input][place.at] * np.conj(place.axis))
        places = [place for place in _places(inputs, self.perturbed) if along(place)]
        found = [np.zeros(o.shape, _in_double(o).dtype) for o in results]
        for place, slopes in zip(places, self._slopes(inputs, outputs, places)):
            for total, slope in zip(found, slopes):
                total += along(place) * slope
        return [total.astype(o.dtype) for total, o in zip(found, results)]

    def _cotangents(self, inputs: list[Any], outputs: list[Any], given: list[Any]) -> list[Any]:
        cotangents = [ct for ct, o in zip(self.per_result(given, outputs), outputs) if is_inexact(o)]
        places = list(_places(inputs, self.perturbed))
        found = [np.zeros(x.shape, _in_double(x).dtype) for x in inputs]
        for place, slopes in zip(places, self._slopes(inputs, outputs, places)):
            # JAX multiplies complex tangents and cotangents without conjugating either of them.
            products = (np.real(_in_double(ct) * slope) for ct, slope in zip(cotangents, slopes) if ct is not None)
            found[place.input][place.at] += sum(map(np.sum, products)) * np.conj(place.axis)
        return [total.astype(x.dtype) for total, x, wanted in zip(found, inputs, self.perturbed) if wanted]

    def _slopes(self, inputs: list[Any], outputs: list[Any], places: list[_Place]) -> Iterator[list[Any]]:
        """The slopes of the inexact results, for each place."""
        default = float(np.cbrt(max(float(jnp.finfo(a.dtype).eps) for a in (*inputs, *outputs) if is_inexact(a))))
        distances: list[Any] = []

        def ends() -> Iterator[list[Any]]:
            for place in places:
                absolute, relative = self.steps[place.input] or (default, default)
                element = _in_double(inputs[place.input][place.at])
                step = np.maximum(absolute, relative * np.abs(element)) * place.axis
                both = [_moved(inputs, place, element + s) for s in (step, -step)]
                # How far the two are apart, once they are rounded to the dtype of the input.
                plus, minus = (_in_double(values[place.input][place.at]) for values in both)
                distances.append(np.real((plus - minus) * np.conj(place.axis)))
                if self.steps[place.input] is not None and distances[-1] == 0:
                    text = (
                        f"{self.title}: the step of numerical(step=...) is so small that an input plus the step is "
                        "rounded to the input itself; pass a larger step, or inputs of 64 bits"
                    )
                    raise refusal(ValueError(text))
                yield from both

        runs = iter(run_each(self.function, ends(), 2 * len(places), "finite difference"))
        for distance, plus, minus in zip(distances, runs, runs):
            triples = zip(plus, minus, outputs)
            yield [(_in_double(a) - _in_double(b)) / distance for a, b, o in triples if is_inexact(o)]


def _places(inputs: list[Any], perturbed: Sequence[bool]) -> Iterator[_Place]:
    for k, (x, moves) in enumerate(zip(inputs, perturbed)):
        for index in np.ndindex(*x.shape) if moves else ():
            for axis in (1.0, 1j) if np.iscomplexobj(x) else (1.0,):
                yield _Place(k, index, axis)


def _moved(inputs: list[Any], place: _Place, element: Any) -> list[Any]:
    """The inputs, as arrays that the function may change, with another element at the place."""
    found = [np.array(x, order="C") for x in inputs]
    found[place.input][place.at] = element.astype(found[place.input].dtype)
    return found


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
        raise ValueError(
            f"{body.title}: numerical(step=[...]) has {len(step)} entries, and func has the arguments "
            f"{' and '.join(arguments.names)}; give each one"
        )
    stands_for_all = lambda part: part is None or isinstance(part, numbers.Real)
    found = arguments.each(step, f"{body.title}: numerical(step=[...]) has", fills=stands_for_all)
    return [as_pair(found.get(k)) for k in range(count)]
