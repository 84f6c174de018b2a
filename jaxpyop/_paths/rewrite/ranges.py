"""`TracedRange`: a `range` with a traced limit or step. It counts in Python ints, whatever dtype its limits have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._paths.follow import bounds_of, counted, limits_of, weakened, with_bounds
from jaxpyop._paths.rewrite.context import is_traced, refuse
from jaxpyop._paths.rewrite.numbers import number_of
from jaxpyop._paths.rewrite.values import is_value

WRITE = 'write it with jax.lax.while_loop, split the body into several traced ops, or write mode="eager"'


class TracedRange:
    """A `range` with a traced limit or step.

    Attributes:
        bounds: bounds of its numbers.
        iterations: the greatest count of its numbers, None if it is not known.
    """

    def __init__(self, *limits: Any) -> None:
        start, stop, step = limits if len(limits) == 3 else (*limits, 1) if len(limits) == 2 else (0, *limits, 1)
        for limit in (start, stop, step):
            if not (isinstance(limit, (int, np.integer)) or _is_integer_scalar(limit)):
                what = jax.typeof(limit).str_short() if is_value(limit) else repr(limit)
                raise TypeError(f"range() takes integers, got {what}; write range(n.astype(int))")
        if not is_traced(step) and not step:
            raise ValueError("range() arg 3 must not be zero")
        # Python counts in ints, whatever the dtype of the limits is.
        numbers = [number_of(x, int) if is_traced(x) else int(x) for x in (start, stop, step)]
        bounds = [bounds_of(n) or limits_of(int) for n in numbers]
        if bounds[2][0] <= 0 <= bounds[2][1]:
            refuse("the step of a range may be zero, which Python refuses", "write a `while` loop")
        self.bounds, self.iterations = counted(*bounds)
        # The limits get no bounds, so that arithmetic on them is not refused: `after` itself prevents an overflow.
        self.start, self.stop, self.step = (with_bounds(n, None) for n in numbers)

    def __iter__(self) -> Iterator[Any]:
        self.refuse("is used where Python needs its numbers")

    def __len__(self) -> int:
        self.refuse("has no length that Python could know")

    def __eq__(self, other: object) -> bool:
        self.refuse("is compared")

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def refuse(self, why: str) -> NoReturn:
        advice = f"write a plain `for i in range(n):` loop, jnp.arange with a fixed length, or {WRITE}"
        refuse(f"a range of a traced number {why}", advice)

    def goes_on(self, i: Any) -> Any:
        return self._by_sign(lambda: i < self.stop, lambda: i > self.stop)

    def after(self, i: Any) -> Any:
        """Returns the number after `i`. If it would be beyond the end it returns the end, so it cannot overflow."""
        if not is_traced(self.step) and abs(self.step) == 1:
            return i + self.step
        distance = self._by_sign(lambda: self.stop - i, lambda: i - self.stop)
        # The distance of two signed numbers may overflow their dtype, but not an unsigned dtype of the same size.
        size = lambda x: jnp.asarray(x).astype(jax.dtypes.canonicalize_dtype(np.uint64))
        return weakened(jnp.where(size(distance) > size(abs(self.step)), i + self.step, self.stop))

    def _by_sign(self, up: Callable[[], Any], down: Callable[[], Any]) -> Any:
        if is_traced(self.step):
            return jnp.where(self.step > 0, up(), down())
        return up() if self.step > 0 else down()


def _is_integer_scalar(x: Any) -> bool:
    return isinstance(x, jax.Array) and x.ndim == 0 and bool(jax.dtypes.issubdtype(x.dtype, np.integer))
