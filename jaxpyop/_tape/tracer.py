"""The array that a recorded function sees. It has concrete values, like any other array outside of tracing.

Where a differentiated value leaves the tape, it is a constant to the derivative from there on, and that is a warning.
NumPy cannot be recorded, so `x * np.exp(x)` is differentiated as `x * c` with a constant `c`. Converting an array
(`np.asarray(x)`) warns once per op and line, or raises, depending on `config.constants`. Functions use `float(x)` and
`x.item()` to make decisions. So these do not warn at once. They warn when the run is over, and only if the number may
be hidden in a result: a floating result depends on no differentiated input, or an input is in no result, while a
constant came into one after the number was taken. They raise if `config.constants` is "error". `bool(x)` and `int(x)`
have no derivative to lose.
"""

# The methods of JAX's Tracer that are overridden here are typed to raise.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpyop import _dtypes, _jaxcore, _settings
from jaxpyop._config import config
from jaxpyop._refusal import refusal
from jaxpyop._tape.operations import shared

_current_trace = _jaxcore.current_trace


def _is_exact(number: float, aval: Any) -> bool:
    """Tells whether jnp makes `dtype.type(number)` of a Python number beside an array of this type."""
    return not aval.weak_type and aval.dtype.itemsize >= 4 and (type(number) is float or abs(number) <= 2**24)


def _operand(other: Any, aval: Any) -> Any:
    """Returns `other` as an operand of `jax.lax` beside one of type `aval`, or None if jnp has to convert it."""
    if type(other) in (float, int):
        if aval.shape or not _is_exact(other, aval):
            return None
        number = aval.dtype.type(other)
        # There are two zeros, which are equal as keys.
        if not other:
            return number
        # The array is on the device already. Some programs delete all arrays that JAX has.
        found = shared(other, aval)
        if not found or found[0].is_deleted():
            with _jaxcore.eval_context():
                found[:] = [_settings.with_transfers(jnp.asarray, number)]
        return found[0]
    return other if getattr(other, "aval", None) == aval else None


def _is_operand(x: Any, trace: Any) -> bool:
    return x._trace is trace if isinstance(x, _jaxcore.Tracer) else isinstance(x, (jax.Array, np.generic))


def _power(self: Any, other: Any) -> Any:
    aval, trace = self.aval, self._trace
    if type(other) is int and aval.dtype.kind in "fc" and not aval.weak_type and _current_trace() is trace:
        # This is what jnp comes to.
        return trace.process_primitive(lax.integer_pow_p, (self,), {"y": other})
    return _general_power(self, other)


_general_power = _jaxcore.Tracer.__pow__


def _operator(name: str, function: Callable[..., Any], eqn: Any, reflected: bool = False, real: bool = False) -> Any:
    """Makes an operator of `TapeTracer` that calls `jax.lax` where jnp would end up there.

    That is so for operands of one type, and for a Python number beside a scalar. Everything else goes through jnp,
    which takes three times as long.

    Args:
        name: the name of the method.
        function: the function of `jax.lax`.
        eqn: the equation that it comes to for operands of one type.
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
            return trace.process_primitive(eqn.primitive, operands, eqn.params)
        return function(*operands)

    operate.__name__ = name
    return operate


class TapeTracer(_jaxcore.Tracer):
    """An array on the tape: a value, and the slot in which it was recorded.

    The operators are set below the class. A comparison has no derivative, so `x > 0` gives a plain array, and not a
    tracer, which `if` then asks.
    """

    __slots__ = ("slot", "value")

    def __init__(self, trace: Any, aval: Any, value: Any, slot: int) -> None:
        # This runs for every output of every primitive, and is faster than super().__init__.
        self._trace = trace
        self.aval = aval
        self.value = value
        self.slot = slot

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

    def __bytes__(self) -> bytes:
        _array_detached(self, "bytes(x)")
        return bytes(self.value)

    def __buffer__(self, flags: int, /) -> memoryview:
        _array_detached(self, "NumPy")
        # Python asks for it from 3.12 on.
        return memoryview(self.value)

    def block_until_ready(self) -> TapeTracer:
        self.value.block_until_ready()
        return self

    __pow__ = _power


_ARITHMETIC = {"add": lax.add, "sub": lax.sub, "mul": lax.mul, "truediv": lax.div}
_COMPARISONS = {"lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge}
_FUNCTIONS = _ARITHMETIC | _COMPARISONS | {"abs": lax.abs, "neg": lax.neg}


def _all_operations(x: Any) -> list[Any]:
    return [function(*[x] * (1 if name in ("abs", "neg") else 2)) for name, function in _FUNCTIONS.items()]


_equations = _jaxcore.make_jaxpr(_all_operations, [jax.ShapeDtypeStruct((), np.float32)]).eqns
for (_name, _function), _eqn in zip(_FUNCTIONS.items(), _equations, strict=True):
    _real = _name == "abs" or _name in _COMPARISONS
    setattr(TapeTracer, f"__{_name}__", _operator(f"__{_name}__", _function, _eqn, real=_real))
    if _name in _ARITHMETIC:
        setattr(TapeTracer, f"__r{_name}__", _operator(f"__r{_name}__", _function, _eqn, reflected=True))


def _of_the_value(name: str) -> property:
    return property(lambda self: getattr(self.value, name))


# What shows a value, and tells where and how it is kept. JAX's Tracer has methods of its own with some of these names.
for _name in (
    *("__index__", "__dlpack_device__", "__format__", "__str__", "__repr__", "__reduce__", "devices"),
    *("copy_to_host_async",),
    *("device", "sharding", "format", "committed", "is_fully_addressable", "is_fully_replicated", "is_deleted"),
    *("is_ready", "addressable_shards", "global_shards", "addressable_data", "unsafe_buffer_pointer"),
    *("on_device_size_in_bytes",),
):
    setattr(TapeTracer, _name, _of_the_value(_name))


# ------------------------------------------------ where a differentiated value leaves the tape


def _array_detached(tracer: Any, how: str) -> None:
    """Warns that an array's values leave the tape, or raises.

    Args:
        tracer: the array.
        how: what took them, for the text of the warning.

    Raises:
        TypeError: where `config.constants` is "error".
    """
    # Nothing is lost in a run that is over.
    if config.constants == "allow" or not tracer._trace.is_valid():
        return
    text = (
        f"{tracer._trace.title}: {how} takes a differentiated {tracer.aval.str_short()} out of JAX. Everything "
        "that is computed from it there is a constant, whose derivative is zero. Use jnp's function instead, or a "
        "numpy_function with vjp=, or np.asarray(jax.lax.stop_gradient(x)) if you want a constant"
    )
    if config.constants == "error":
        raise refusal(TypeError(f"{text} (jaxpyop.config.constants is 'error')"))
    frame = _users_frame()
    place, code = _jaxcore.place_of(frame), hash(frame and frame.f_code)
    text = f"{text} (for all calls: jaxpyop.config.constants = 'allow', or 'error')"
    # Many functions are called "lambda", and many were made of text, whose file has no name.
    _jaxcore.warn_once(("array", tracer._trace.title, *place[:2], code), text, place)


def _number_detached(tracer: Any, how: str) -> None:
    """Raises if a scalar must not become a Python number; otherwise notes it for `warn_of_constants`.

    Args:
        tracer: the scalar.
        how: what took its value.

    Raises:
        TypeError: where `config.constants` is "error".
    """
    tape = tracer._trace
    if config.constants == "error" and tape.is_valid():
        text = (
            f"{tape.title}: {how} makes a constant of a differentiated {tracer.aval.str_short()}, whose "
            "derivative is zero. Use x itself (`if x > 0:` works), or jax.lax.stop_gradient(x) if you want a "
            "constant (jaxpyop.config.constants is 'error')"
        )
        raise refusal(TypeError(text))
    if config.constants == "warn":
        # A loop takes many numbers at one line, and finding the user's line takes long.
        caller = sys._getframe(2)
        line = caller.f_code, caller.f_lineno
        if not tape.numbers:
            tape.slots_before_numbers = len(tape.values)
        if line not in tape.lines_of_numbers:
            taken = f"{how} took the value of a differentiated {tracer.aval.str_short()}"
            tape.lines_of_numbers[line] = taken, _jaxcore.place_of(_users_frame())
        tape.numbers.setdefault(tracer.slot, line)


def warn_of_constants(
    tape: Any, in_slots: Sequence[int], outputs: Sequence[Any], out_slots: Sequence[int], constants: Sequence[Any]
) -> None:
    """Warns if a differentiated scalar became a Python number which may be in a result, without its derivative.

    The warning comes once for each op and line that took the number.

    Args:
        tape: the recorded run.
        in_slots: the slots of the inputs, -1 for those that are not differentiated.
        outputs: the results.
        out_slots: their slots, -1 for constants.
        constants: the inputs that are not differentiated.
    """
    if not tape.numbers:
        return
    inexact = [k for k, output in enumerate(outputs) if _dtypes.is_inexact(output)]
    detached = [k for k in inexact if out_slots[k] < 0]
    number, what = next(iter(tape.numbers)), ""
    if detached:
        what = f"array {detached[0]} of the results depends on no differentiated input, so its derivative is zero"
    elif lost := _lost_input(tape, in_slots, {out_slots[k] for k in inexact}, set(map(id, constants))):
        k, number = lost
        what = f"no result depends on array {k} of the inputs otherwise, so the derivative in this input is zero"
    if what:
        line = tape.numbers[number]
        taken, place = tape.lines_of_numbers[line]
        text = (
            f"{tape.title}: {taken}, and {what}. Use x itself (`if x > 0:` works) and jnp's functions, or "
            "float(jax.lax.stop_gradient(x)) if you want a constant (for all calls: "
            "jaxpyop.config.constants = 'allow', or 'error')"
        )
        _jaxcore.warn_once(("number", tape.title, *place[:2], hash(line)), text, place)


def _lost_input(tape: Any, in_slots: Sequence[int], results: set[int], others: set[int]) -> tuple[int, int] | None:
    """Returns an input that is in no result but perhaps as a number, and the slot of that number."""
    needed = set(results)
    for entry in reversed(tape.entries):
        if not needed.isdisjoint(entry.outs):
            needed.update(entry.ins)
    # A number that only steers brings no new constant into the results.
    later = [s for s in tape.free if s >= tape.slots_before_numbers and s in needed]
    if not any(_dtypes.is_inexact(tape.values[s]) and id(tape.values[s]) not in others for s in later):
        return None
    for k, slot in enumerate(in_slots):
        if slot >= 0 and slot not in needed:
            derived = {slot}
            for entry in tape.entries:
                if not derived.isdisjoint(entry.ins):
                    derived.update(entry.outs)
            if numbers := [s for s in tape.numbers if s in derived]:
                return k, numbers[0]
    return None


def _users_frame() -> types.FrameType | None:
    """The frame of the user's line."""
    # An installed package may convert an array on behalf of the user, whose line is the one to change.
    return _jaxcore.users_frame(_jaxcore.is_own_file) or _jaxcore.users_frame()


def _off_the_tape(name: str, note: Callable[[Any, str], None], how: str) -> Callable[..., Any]:
    def method(self: TapeTracer, *args: Any, **kwargs: Any) -> Any:
        note(self, how)
        return getattr(self.value, name)(*args, **kwargs)

    return method


for _name, _how in {"__float__": "float(x)", "__complex__": "complex(x)", "item": "x.item()"}.items():
    setattr(TapeTracer, _name, _off_the_tape(_name, _number_detached, _how))
_LEAVING = {"__array__": "NumPy", "__dlpack__": "DLPack", "tolist": "x.tolist()", "tobytes": "x.tobytes()"}
for _name, _how in _LEAVING.items():
    setattr(TapeTracer, _name, _off_the_tape(_name, _array_detached, _how))
