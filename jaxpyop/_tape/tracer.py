"""The array that a recorded function sees. It has concrete values, like any other array outside of tracing."""

# The methods of JAX's Tracer that are overridden here are typed to raise.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._tape.detached import array_detached, number_detached

# Python numbers that were operands beside a scalar before, as arrays on the device. The key has the scalar's type.
_MAX_NUMBERS = 512
_numbers: dict[tuple[Any, ...], Any] = {}

_current_trace = _jaxcore.current_trace


def is_exact(number: float, aval: Any) -> bool:
    """Tells whether jnp makes `dtype.type(number)` of a Python number beside an array of this type."""
    return not aval.weak_type and aval.dtype.itemsize >= 4 and (type(number) is float or abs(number) <= 2**24)


def _scalar(number: Any, aval: Any) -> Any:
    """Returns a Python number as jnp converts it. From its second use on, it is an array on the device."""
    scalar = aval.dtype.type(number)
    # There are two zeros, which are equal as keys.
    if number == 0:
        return scalar
    key = type(number), number, aval
    if key not in _numbers:
        if len(_numbers) >= _MAX_NUMBERS:
            _numbers.clear()
        _numbers[key] = None
        return scalar
    with _jaxcore.eval_context():
        found = _numbers[key] = _jaxcore.with_transfers(jnp.asarray, scalar)
    return found


def _operand(other: Any, aval: Any) -> Any:
    """Returns `other` as an operand of `jax.lax` beside one of type `aval`, or None if jnp has to convert it."""
    kind = type(other)
    if kind is float or kind is int:
        found = _numbers.get((kind, other, aval))
        if found is not None and not found.is_deleted():
            return found
        return _scalar(other, aval) if not aval.shape and is_exact(other, aval) else None
    return other if getattr(other, "aval", None) == aval else None


def _is_operand(x: Any, trace: Any) -> bool:
    return x._trace is trace if isinstance(x, _jaxcore.Tracer) else isinstance(x, (jax.Array, np.generic))


@functools.cache
def equation_of(function: Callable[..., Any], count: int) -> tuple[Any, dict[str, Any]]:
    """Returns the primitive and parameters that a function of `jax.lax` binds for operands of one type."""
    with _jaxcore.eval_context():
        (equation,) = jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct((), np.float32)] * count).eqns
    return equation.primitive, equation.params


def _power(self: Any, other: Any) -> Any:
    # This is what jnp comes to.
    if type(other) is int and self.aval.dtype.kind in "fc" and not self.aval.weak_type:
        trace = self._trace
        if _current_trace() is trace:
            return trace.process_primitive(equation_of(_cube, 1)[0], (self,), {"y": other})
        return jax.lax.integer_pow(self, other)
    return _general_power(self, other)


def _cube(x: Any) -> Any:
    return jax.lax.integer_pow(x, 3)


_general_power = _jaxcore.Tracer.__pow__


def _operator(name: str, function: Callable[..., Any], reflected: bool = False, real: bool = False) -> Any:
    """Makes an operator of `TapeTracer` that calls `jax.lax` where jnp would end up there.

    That is so for operands of one type, and for a Python number beside a scalar. Everything else goes through jnp,
    which takes three times as long.

    Args:
        name: the name of the method.
        function: the function of `jax.lax`.
        reflected: whether `self` is the second operand.
        real: whether `function` and jnp differ for complex numbers.
    """
    general = getattr(_jaxcore.Tracer, name)

    def operate(self: TapeTracer, *others: Any) -> Any:
        aval: Any = self.aval
        if real and aval.dtype.kind == "c":
            return general(self, *others)
        if others:
            if (other := _operand(others[0], aval)) is None:
                return general(self, *others)
            others = (other,)
        operands = (*others, self) if reflected else (self, *others)
        trace = self._trace
        if _current_trace() is trace and all(map(_is_operand, operands, itertools.repeat(trace))):
            # This is what `function` and `bind` come to for such operands, in less than half the time.
            primitive, params = equation_of(function, len(operands))
            return trace.process_primitive(primitive, operands, params)
        return function(*operands)

    operate.__name__ = name
    return operate


class TapeTracer(_jaxcore.Tracer):
    """An array on the tape: a value, and the slot in which it was recorded."""

    __slots__ = ("slot", "value")
    # The lazy tape has tracers of constants as well.
    is_differentiated: Any = True

    def __init__(self, trace: Any, aval: Any, value: Any, slot: int) -> None:
        # This runs for every output of every primitive, and is faster than super().__init__.
        self._trace = trace
        self.aval = aval
        self.value = value
        self.slot = slot

    def is_over(self) -> bool:
        """Tells whether the run that made this array is over."""
        return not self._trace.is_valid()

    def to_concrete_value(self) -> Any:
        value = self.value
        return value.to_concrete_value() if isinstance(value, _jaxcore.Tracer) else value

    # JAX asks for the contents of the values that a function closes over, in `jax.closure_convert`.
    def _contents(self) -> list[tuple[str, Any]]:
        return [("value", self.value), ("tangent", _jaxcore.differentiated())]

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        number_detached(self, "float(x)")
        return float(self.value)

    def __complex__(self) -> complex:
        number_detached(self, "complex(x)")
        return complex(self.value)

    def __index__(self) -> int:
        return self.value.__index__()

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        array_detached(self, "NumPy")
        return self.value.__array__(*args, **kwargs)

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        array_detached(self, "DLPack")
        return self.value.__dlpack__(*args, **kwargs)

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()

    def __bytes__(self) -> bytes:
        array_detached(self, "bytes(x)")
        return bytes(self.value)

    def __buffer__(self, flags: int, /) -> memoryview:
        array_detached(self, "NumPy")
        # Python asks for it from 3.12 on.
        return memoryview(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    def __reduce__(self) -> Any:
        return self.value.__reduce__()

    def item(self, *args: int) -> Any:
        number_detached(self, "x.item()")
        return self.value.item(*args)

    def tolist(self) -> Any:
        array_detached(self, "x.tolist()")
        return self.value.tolist()

    def tobytes(self, order: str = "C") -> bytes:
        array_detached(self, "x.tobytes()")
        return self.value.tobytes(order)

    def block_until_ready(self) -> TapeTracer:
        self.value.block_until_ready()
        return self

    def copy_to_host_async(self) -> None:
        self.value.copy_to_host_async()

    def devices(self) -> Any:
        return self.value.devices()

    __pow__ = _power


def set_operators(cls: Any, make: Callable[..., Any]) -> None:
    """Gives a class the operators that are functions of `jax.lax`. `make` has the arguments of `_operator`."""
    for name, function in {"add": jax.lax.add, "sub": jax.lax.sub, "mul": jax.lax.mul, "truediv": jax.lax.div}.items():
        setattr(cls, f"__{name}__", make(f"__{name}__", function))
        setattr(cls, f"__r{name}__", make(f"__r{name}__", function, reflected=True))
    cls.__neg__ = make("__neg__", jax.lax.neg)
    for name in ("abs", "lt", "le", "gt", "ge"):
        setattr(cls, f"__{name}__", make(f"__{name}__", getattr(jax.lax, name), real=True))


set_operators(TapeTracer, _operator)


def _of_the_value(name: str) -> property:
    return property(lambda self: getattr(self.value, name))


# The properties and methods of jax.Array that tell where and how the value is kept.
for _name in (
    *("device", "sharding", "format", "committed", "is_fully_addressable", "is_fully_replicated", "is_deleted"),
    *("is_ready", "addressable_shards", "global_shards", "addressable_data", "unsafe_buffer_pointer"),
    *("on_device_size_in_bytes",),
):
    setattr(TapeTracer, _name, _of_the_value(_name))
