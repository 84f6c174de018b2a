"""The Body protocol: what a call runs on the host, written down member by member.

A body is a function from a flat list of arrays to a flat list of arrays. The derivatives of a body are bodies too,
over its inputs and their tangents, or over its inputs and its results' cotangents. So derivatives of every order are
built from the same pieces. Bodies are compared by identity, because each belongs to one place in a program.

A new kind of body derives from `Body`, or from `DerivedBody` if it is made of another one. It has to define `op`,
`shapes` and `__call__`; everything else has a default.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import is_own_failure, metrics
from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.request import Op, is_nan
from jaxpyop._op.values import Struct


def element_structs(arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Struct]:
    """The shapes and dtypes of one element of arrays that have the batch axes `lead` in front."""
    return [Struct(a.shape[len(lead) :], a.dtype) for a in arrays]


class Body(abc.ABC):
    """What a call runs on the host."""

    op: Op
    """The op that this body belongs to. A derivative belongs to the op of its base."""

    goes_to_executor = True
    """Whether `executor=` runs the body as a whole. A body that itself sends work there says False."""

    linear_inputs = 0
    """How many inputs, at the end, the results are linear in: the tangents or cotangents of a derivative."""

    refusal: Callable[[], Exception] | None = None
    """Makes the error of a body whose rule is missing; None for a body that can run."""

    @property
    def title(self) -> str:
        """The op's name in errors, and in the warnings of the tape."""
        return self.op.title

    rule_name = ""
    """Which of the op's rules this body calls; empty if it calls the op's function."""

    @property
    def func(self) -> Any:
        """The user's function that this body calls."""
        return getattr(self.op.rules, self.rule_name) if self.rule_name else self.op.func

    shape_source = ""
    """Where the results' shapes come from if they were not declared, for errors about shapes."""

    @abc.abstractmethod
    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        """The shapes and dtypes of the results for inputs of the shapes and dtypes `structs`, without a batch."""

    @abc.abstractmethod
    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        """Run once, on one element, or on a block of them.

        Args:
            *arrays: the inputs.
            lead: the batch axes that the inputs of a block have in front. The results have them too.
        """

    absent_fills: Sequence[Any] = ()
    """What fills each result where the body does not run; empty if that is zeros."""

    def absent_results(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """What stands for the results where the body does not run."""
        pairs = zip(self.shapes(element_structs(arrays, lead)), itertools.chain(self.absent_fills, itertools.repeat(0)))
        return [np.full((*lead, *s.shape), fill, s.dtype) for s, fill in pairs]

    def note_shapes(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:  # noqa: B027  # a default
        """Remember the shapes of results that came back, so that a derivative need not infer them."""

    def check_uses(self, arrays: Sequence[Any]) -> None:  # noqa: B027  # a default
        """Raise if the user's function uses traced values of other code, for the inputs `arrays`."""

    def check_results(  # noqa: B027  # a default
        self, values: Sequence[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()
    ) -> None:
        """Raise unless results from a worker have the shapes that were promised for the inputs `arrays`."""

    # ------------------------------------------------------------------ `on_error=`

    def fills(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """What `on_error=` puts in the place of the results; only bodies that call the user's code have this."""
        raise NotImplementedError(type(self).__name__)

    def run_or_on_error_fills(
        self, run: Callable[[], list[Any]], arrays: Sequence[Any], lead: tuple[int, ...] = ()
    ) -> list[Any]:
        """Return what `run` returns for these inputs of the body, or what replaces it if it raises."""
        kept = self.kept_for_failure(arrays, lead)
        try:
            return run()
        except Exception as error:
            return self.failed_results(error, kept, lead)

    def kept_for_failure(self, arrays: Sequence[Any], lead: tuple[int, ...]) -> Sequence[Any]:
        """Return the inputs for `failed_results`: copies where the function could change them before it fails."""
        if not lead or self.op.failures is None or self.op.on_jax:
            return arrays
        return [np.array(a) for a in arrays]

    def failed_results(self, error: Exception, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """Return the values that replace the results of a run that raised. It is called in the `except` clause.

        If the body ran on a block (all elements of a batch in one call), it runs again on each element alone, so that
        one failure costs one element.

        Args:
            error: the exception that the body raised.
            arrays: the inputs of the body, as they were before the run.
            lead: the sizes of the batch axes that the inputs of a block have in front.

        Raises:
            Exception: the error, if it is not the function's own, or if the op has no `on_error=`.
        """
        op = self.op
        if op.failures is None or not is_own_failure(error):
            raise error
        count = math.prod(lead)
        if count > 1 and not op.stateful:
            with op.failures.in_batch():
                return each_alone(self, arrays, lead)
        found = FailedResults(self.fills(arrays, lead))
        found.failed = np.full(lead, True)
        metrics.note(op.name, op.failures.note(error, count), failures=count)
        return found

    def results_if_lost(self, error: Exception, arrays: Sequence[Any]) -> list[Any]:
        """Return what replaces the results of an element that no worker can run, as in `failed_results`."""
        return self.failed_results(error, arrays)


class DerivedBody(Body):
    """A body that is made of another one, and belongs to the same op."""

    leading_inputs = 0
    """How many inputs come before those of the base."""

    def __init__(self, base: Any) -> None:
        self.base = base
        self.op = base.op

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.base.shapes(structs[self.leading_inputs :])


class FailedResults(list[Any]):
    """The results of a run in which the function failed for some elements.

    Attributes:
        failed: for each element of a block, whether the function failed.
    """

    failed: np.ndarray[Any, Any] = np.asarray(True)


def each_alone(run: Any, arrays: Sequence[Any], lead: tuple[int, ...]) -> FailedResults:
    """Run each element of a block as a block of one element.

    Args:
        run: a body, called with the inputs and `lead`.
        arrays: the inputs of the block.
        lead: the sizes of its batch axes.
    """
    each = [
        run(
            *(a[tuple(slice(k, k + 1) if a.shape[n] > 1 else slice(1) for n, k in enumerate(index))] for a in arrays),
            lead=(1,) * len(lead),
        )
        for index in np.ndindex(*lead)
    ]
    columns = [np.stack(list(map(np.asarray, column))) for column in zip(*each)]
    found = FailedResults(c.reshape(*lead, *c.shape[1 + len(lead) :]) for c in columns)
    found.failed = np.reshape([np.any(getattr(values, "failed", False)) for values in each], lead)
    return found


def constants(
    fills: Sequence[Any], structs: Sequence[Struct], arrays: Sequence[Any], lead: tuple[int, ...]
) -> list[Any]:
    """Return arrays that are each filled with a constant, and replace the results of an element that failed.

    On the tape, the constants are written as functions of the inputs. Their derivatives of every order are zero, or NaN
    if the constant is NaN.

    Args:
        fills: the constants.
        structs: the shapes and dtypes of the arrays for one element.
        arrays: the inputs. On the tape, the returned arrays depend on them.
        lead: the sizes of the batch axes of the returned arrays.
    """
    taped = [a for a in arrays if isinstance(a, _jaxcore.Tracer) and is_inexact(a)]
    found: list[Any] = []
    for fill, struct in zip(fills, structs):
        value = np.full((*lead, *struct.shape), fill, struct.dtype)
        if taped and is_inexact(value):
            total = sum(jnp.sum(part(a)).astype(value.dtype) for a in taped for part in (jnp.real, jnp.imag))
            # No derivative of exp is zero, so NaN times exp is NaN in the derivatives of every order.
            value = jnp.exp(total) * value if is_nan(fill) else jnp.where(False, total, value)
        found.append(value)
    return found
