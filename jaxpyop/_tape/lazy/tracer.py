"""The array that a lazily recorded function sees. It has a value as soon as somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxpyop import _jaxcore
from jaxpyop._tape.tracer import TapeTracer, equation_of, is_exact, set_operators

_current_trace = _jaxcore.current_trace


def _operator(name: str, function: Callable[..., Any], reflected: bool = False, real: bool = False) -> Any:
    """Makes an operator for operands of one type, and for a Python number. `TapeTracer` has all other cases."""
    general, of_any_type = getattr(TapeTracer, name), getattr(_jaxcore.Tracer, name)

    def operate(self: LazyTapeTracer, *others: Any) -> Any:
        trace = self.tape
        aval: Any = self.aval
        if aval.dtype.kind not in "fc":
            # A constant. Here `function` and jnp differ.
            return of_any_type(self, *others)
        if _current_trace() is not trace or (real and aval.dtype.kind == "c"):
            return general(self, *others)
        if not others:
            primitive, params = equation_of(function, 1)
            return trace.process_primitive(primitive, (self,), params)
        other = others[0]
        kind = type(other)
        if kind is LazyTapeTracer:
            if other.tape is trace and (other.aval is aval or other.aval == aval):
                return (
                    trace.process_operator(function, other, self)
                    if reflected
                    else trace.process_operator(function, self, other)
                )
        elif (kind is float or kind is int) and aval.dtype.kind == "f" and is_exact(other, aval):
            return trace.process_number(function, self, other, reflected)
        return general(self, other)

    operate.__name__ = name
    return operate


class LazyTapeTracer(TapeTracer):
    """An array on the lazy tape: a value, or a position in a run of a stretch.

    Attributes:
        tape: the tape that made it.
        slot: its slot on the tape if it is evaluated and depends on differentiated values, otherwise -1.
        run: the run that computes it, None if it will not be asked any more.
        position: its position there.
        is_differentiated: whether it depends on differentiated values.
    """

    __slots__ = ("_value", "is_differentiated", "position", "run", "tape")

    def __init__(
        self,
        tape: Any,
        aval: Any,
        value: Any,
        slot: int,
        run: Any = None,
        position: int = -1,
        is_differentiated: bool = True,
    ) -> None:
        self.tape = tape
        self.aval = aval
        self._value = value
        self.slot = slot
        self.run = run
        self.position = position
        self.is_differentiated = is_differentiated

    @property
    def _trace(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        # A constant that outlives the run is an array like any other.
        return self.tape if self.is_differentiated or self.tape.is_valid() else _jaxcore.EVAL_TRACE

    @property
    def value(self) -> Any:
        if self.run is not None:
            self.tape.evaluate(self)
        return self._value

    def is_over(self) -> bool:
        return not self.tape.is_valid()

    def settle(self, value: Any, slot: int) -> None:
        """Sets the value, and the slot on the tape."""
        self._value, self.slot = value, slot

    def full_lower(self) -> Any:
        # JAX asks this of every operand that it evaluates.
        return self if self.is_differentiated else self.value

    def _contents(self) -> list[tuple[str, Any]]:
        return super()._contents() if self.is_differentiated else [("value", self.value)]


set_operators(LazyTapeTracer, _operator)
