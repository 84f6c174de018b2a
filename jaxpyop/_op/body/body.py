"""The Body protocol: what a call runs on the host, and what takes the place of its results where that fails.

A body is a function from a flat list of arrays to a flat list of arrays. The derivatives of a body are bodies too
(`DerivativeBody`), over its inputs and their tangents, or over its inputs and the cotangents of its results. So
derivatives of every order are built from the same pieces.

A new kind of body derives from `Body` or `DerivativeBody`, and defines `run`; a `Body` also defines `shapes`.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxpyop._dtypes import is_inexact
from jaxpyop._host import is_own_failure, metrics
from jaxpyop._op.request import Op, is_nan
from jaxpyop._values import Struct


def element_structs(arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Struct]:
    """The shapes and dtypes of one element of arrays that have the batch axes `lead` in front."""
    return [Struct(a.shape[len(lead) :], a.dtype) for a in arrays]


class Body(abc.ABC):
    """What a call runs on the host.

    Attributes:
        op: the op that the body belongs to. A derivative belongs to the op of its base.
        title: the op's name in errors.
    """

    goes_to_executor = True
    """Whether `executor=` runs the body as a whole. A body that itself sends work there says False."""

    linear_inputs = 0
    """How many inputs, at the end, the results are linear in: the tangents or cotangents of a derivative."""

    refusal: Callable[[], Exception] | None = None
    """Makes the error of a body whose rule is missing; None for a body that can run."""

    rule_name = ""
    """Which of the op's rules the body calls; empty if it calls the op's function."""

    shape_source = ""
    """Where the results' shapes come from if they were not declared, for errors about shapes."""

    absent_fills: Sequence[Any] = ()
    """What fills each result where the body does not run; empty if that is zeros."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.title = op.title

    @property
    def func(self) -> Any:
        """The user's function that the body calls."""
        return getattr(self.op.rules, self.rule_name) if self.rule_name else self.op.func

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for bodies that run the same functions in the same way, and for no others."""
        rules = self.op.rules
        return type(self), id(self.op.func), id(rules.fwd), id(rules.vjp)

    @abc.abstractmethod
    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        """The shapes and dtypes of the results for inputs of the shapes and dtypes `structs`, without a batch."""

    @abc.abstractmethod
    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """Run once, on one element or on a block of them, and raise what the user's code raises.

        Args:
            arrays: the inputs.
            lead: the batch axes that the inputs of a block have in front. The results have them too.
        """

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        """Run once. With `on_error=`, return its fills where the user's code fails."""
        return self.run(arrays, lead) if self.op.failures is None else self.outcome(arrays)[0]

    def outcome(self, arrays: Sequence[Any]) -> tuple[list[Any], bool]:
        """Run once, on one element. With `on_error=`, return its fills if the user's code fails, and whether it did."""
        try:
            return self.run(arrays), False
        except Exception as error:
            return self.after_failure(error, arrays), True

    def absent_results(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """What stands for the results where the body does not run."""
        pairs = zip(self.shapes(element_structs(arrays, lead)), itertools.chain(self.absent_fills, itertools.repeat(0)))
        return [np.full((*lead, *s.shape), fill, s.dtype) for s, fill in pairs]

    def note_shapes(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:  # noqa: B027  # a default
        """Remember the shapes of results that came back, so that a derivative need not infer them."""

    def check_results(  # noqa: B027  # a default
        self, values: Sequence[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()
    ) -> None:
        """Raise unless results from a worker have the shapes that were promised for the inputs `arrays`."""

    def for_native(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any], Any, bool] | None:
        """What the body does, for a call of its function without Python (`primitive/native.py`).

        Args:
            arrays: what stands for the inputs of the body.

        Returns:
            The positional and keyword arguments; the structure of what the function returns, with the number of a
            result, or -1, in the place of each array; and whether None and numbers stand for arrays there. None if
            the body does more than to call its function.
        """
        return None

    # ------------------------------------------------------------------ `on_error=`

    def fills(self, arrays: Sequence[Any]) -> list[Any]:
        """What `on_error=` puts in the place of the results; only bodies that call the user's code have this."""
        raise NotImplementedError(type(self).__name__)

    def after_failure(self, error: Exception, arrays: Sequence[Any]) -> list[Any]:
        """Return what takes the place of the results of a run on one element, which raised, or whose worker was lost.

        It is called in the `except` clause.

        Args:
            error: the exception that the body raised.
            arrays: the inputs of the body.

        Raises:
            Exception: the error, if it is not the user's own, or if the op has no `on_error=`.
        """
        op = self.op
        if op.failures is None or not is_own_failure(error):
            raise error
        metrics.note(op.name, op.failures.note(error), failures=1)
        return self.fills(arrays)


def full(fills: Sequence[Any], structs: Sequence[Struct]) -> list[Any]:
    """Return arrays that are each filled with a constant, and replace the results of an element that failed."""
    return [np.full(s.shape, fill, s.dtype) for fill, s in zip(fills, structs, strict=True)]


# ---------------------------------------------------------------- derivatives of a body


class DerivativeBody(Body):
    """A derivative of a body: from tangents to tangents, or from cotangents to cotangents.

    It takes the inputs of its base, perhaps the results of its base, and then the tangents or cotangents, in which it
    is linear. A derivative for tangents takes one for each perturbed input, and gives one for each inexact result. A
    derivative for cotangents goes the other way.

    Args:
        base: the body.
        perturbed: the inputs of the base in which it is differentiated.
        nonzero: which inexact results have a cotangent; None for a derivative that takes tangents.
        results: which inexact results a derivative that takes tangents gives a tangent of; None for all.
    """

    reads_kept = False
    """Whether `answer` reads what a run of the base kept. It then converts the arrays that it needs itself."""

    depends_on_inputs = True
    """Whether the derivative depends on the inputs. That of a linear function does not."""

    def __init__(
        self,
        base: Any,
        perturbed: tuple[bool, ...],
        nonzero: tuple[bool, ...] | None = None,
        results: tuple[bool, ...] | None = None,
    ) -> None:
        super().__init__(base.op)
        self.base = base
        self.perturbed = perturbed
        self.nonzero = nonzero
        self.results = results
        self.linear_inputs = sum(perturbed if nonzero is None else nonzero)

    @property
    def identity(self) -> tuple[Any, ...]:
        return type(self), self.base.identity, self.perturbed, self.nonzero, self.results

    def split(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """The inputs of the base, its results if they are there, and the tangents or cotangents."""
        count, first = len(self.perturbed), len(arrays) - self.linear_inputs
        return arrays[:count], arrays[count:first], arrays[first:]

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        if self.nonzero is None:
            return self.wanted([s for s in self.base.shapes(self.split(structs)[0]) if is_inexact(s)])
        return [s for s, wanted in zip(structs, self.perturbed) if wanted]

    def wanted(self, of_results: list[Any]) -> list[Any]:
        """Of a list with an entry for each inexact result, the entries of those that have a tangent here."""
        return of_results if self.results is None else [x for x, mark in zip(of_results, self.results) if mark]

    def transposed(self, given: Sequence[bool]) -> tuple[tuple[bool, ...], Any, Any]:
        """What the transpose is made for: `perturbed`, `nonzero` and `results` of its body.

        Args:
            given: for each result of this derivative whether it has a cotangent.
        """
        marks = iter(given)
        if self.nonzero is not None:
            # The transpose of the pullback is the pushforward again, for the results whose cotangents were given.
            return tuple(p and next(marks) for p in self.perturbed), None, self.nonzero
        results = (True,) * len(given) if self.results is None else self.results
        return self.perturbed, tuple(mark and next(marks) for mark in results), None

    def per_input(self, tangents: Sequence[Any]) -> list[Any]:
        """For each input of the base its tangent, or None if it has none."""
        given = iter(tangents)
        return [next(given) if p else None for p in self.perturbed]

    def per_result(self, cotangents: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """For each result of the base its cotangent, or None if that is zero."""
        given, nonzero = iter(cotangents), iter(self.nonzero or ())
        return [next(given) if is_inexact(result) and next(nonzero) else None for result in results]

    def fills(self, arrays: Sequence[Any]) -> list[Any]:
        return full(self._failed(), self.shapes(element_structs(arrays)))

    def _failed(self) -> list[float]:
        """What fills each result: NaN if a result of the function has NaN that it is a derivative of, and else zero."""
        if isinstance(self.base, DerivativeBody):
            of_results = self.base._failed()
        else:
            pairs = zip(self.op.fills, self.op.spec.leaves)
            of_results = [float("nan") if is_nan(fill) else 0.0 for fill, leaf in pairs if is_inexact(leaf)]
        if self.nonzero is None:
            return self.wanted(of_results)
        nonzero = itertools.compress(of_results, self.nonzero)
        return [sum(nonzero)] * sum(self.perturbed)

    def answer(self, kept: Any, receipt: Any, arrays: Sequence[Any]) -> list[Any]:
        """Return the derivative by what a run of the base kept for it. It raises what the user's code raises.

        Args:
            kept: what the run kept; None if that is gone, so that the base has to run again.
            receipt: the receipt of the run.
            arrays: the inputs of the derivative.
        """
        return self.run(arrays)
