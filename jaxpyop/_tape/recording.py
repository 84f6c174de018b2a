"""Records a function, and differentiates the recording: `record`.

A recording is differentiated call by call, or compiled as one when the same program came back often. Cotangents go from
the end of the program to its start, tangents the other way.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _dtypes, _jaxcore, _settings, _sharding
from jaxpyop._jaxcore import replaced
from jaxpyop._refusal import refusal
from jaxpyop._tape.derivatives import (
    OFTEN,
    Derivative,
    Linear,
    Traced,
    full_dependence,
    linearize,
    traced_derivative,
    typeof,
)
from jaxpyop._tape.tape import Entry, Tape
from jaxpyop._tape.tracer import warn_of_constants

# The bytes that a record takes besides its arrays, as measured on JAX 0.10 to 0.12: in all, per call, and per call that
# was linearized, which holds a jaxpr.
_RECORD_BYTES = 600
_ENTRY_BYTES = 500
_LINEAR_BYTES = 20_000

# What JAX raises where a traced value is asked for.
_ASKED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@functools.lru_cache(256)
def _recorded_programs(*key: Any) -> list[Program]:
    """An empty list, the same one for equal keys, which the caller fills with the program of these recordings."""
    return []


# What JAX has only under `jax.enable_x64`.
_WIDE = frozenset(map(np.dtype, ("float64", "complex128", "int64", "uint64")))

# The bytes that a jax.Array takes besides its data, as measured on JAX 0.10 to 0.12.
_ARRAY_BYTES = 1600


def _size_of(value: Any) -> int:
    """Returns about how many bytes a value takes. JAX takes microseconds to tell the size of a new array."""
    return _ARRAY_BYTES + value.nbytes if isinstance(value, (jax.Array, np.ndarray)) else 0


class Record:
    """One recorded run of a function: its program, and the values that derivatives read.

    Attributes:
        nbytes: about how many bytes of memory it takes. A program that records share does not count.
    """

    def __init__(self, program: Program, kept: list[Any], in_avals: list[Any], out_avals: list[Any]) -> None:
        self._program = program
        self._kept = kept
        self._in_avals = in_avals
        self._out_avals = out_avals
        if program.is_shared:
            self.nbytes = sum({id(v): n for v, n in zip(kept, program.sizes)}.values(), _RECORD_BYTES)
            return
        calls = sum([_LINEAR_BYTES if isinstance(entry.how, Linear) else _ENTRY_BYTES for entry in program.entries])
        self.nbytes = sum(map(_size_of, self.arrays()), _RECORD_BYTES + calls)

    def arrays(self) -> list[Any]:
        """Returns the arrays that this record keeps alive, each once."""
        held = [v for v in self._kept if isinstance(v, (jax.Array, np.ndarray))]
        for entry in self._program.entries:
            if isinstance(entry.how, Linear):
                held += entry.how.arrays()
        return list({id(v): v for v in held}.values())

    def pullback(self, cotangents: Sequence[Any]) -> list[Any]:
        """Reverse mode, under whatever trace is current.

        Args:
            cotangents: one array per output, of its shape and dtype. None is zero, and the only choice for an output
                of an integer or bool dtype.

        Returns:
            One cotangent per input. None is zero; inputs without a tangent always get it.
        """
        # The body may have turned on 64 bits for a block. Without them its values would have no derivative.
        with _dtypes.with_wide_types(self._program.is_wide):
            return self._program.pullback(self._kept, _sharded(cotangents, self._out_avals))

    def pushforward(self, tangents: Sequence[Any]) -> list[Any]:
        """Forward mode: one tangent per output from one per input; None is zero."""
        with _dtypes.with_wide_types(self._program.is_wide):
            return self._program.pushforward(self._kept, _sharded(tangents, self._in_avals))


def _sharded(vectors: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
    """Returns cotangents or tangents, sharded as the values that they belong to, if these are on a mesh."""
    pairs = zip(vectors, avals, strict=True)
    return [v if v is None or aval.sharding.mesh.empty else _sharding.shard_as(v, aval) for v, aval in pairs]


def _array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else _settings.with_transfers(jnp.asarray, value)


def record(
    body: Callable[[list[Any]], Sequence[Any]],
    inputs: Sequence[Any],
    perturbed: Sequence[bool],
    title: str = "a recorded function",
) -> tuple[list[Any], Record]:
    """Runs `body(inputs)` once and records it.

    Args:
        body: a Python function of a list of arrays, which returns a flat list or tuple of arrays or of concrete values
            (NumPy arrays, Python numbers).
        inputs: arrays.
        perturbed: which of them are differentiated. Their dtypes are floating-point or complex. The others are
            constants, and operations on constants alone are not recorded.
        title: what warnings call the function.

    Returns:
        The outputs, as concrete as the inputs, and the record.

    Example:
        >>> import jax.numpy as jnp
        >>> outputs, taken = record(lambda xs: [xs[0] ** 2 if float(xs[0]) > 1 else xs[0]], [jnp.float32(3.0)], [True])
        >>> float(outputs[0]), float(taken.pullback([jnp.float32(1.0)])[0])
        (9.0, 6.0)
    """
    inputs = [_array(x) for x in inputs]
    if not _jaxcore.has("the tape"):
        return _record_by_vjp(body, inputs, perturbed, title)
    tape = Tape(_jaxcore.current_trace(), title)
    try:
        boxed = [tape.box_input(x) if p else x for x, p in zip(inputs, perturbed, strict=True)]
        with _jaxcore.set_current_trace(tape):
            outs = list(body(boxed))
        in_slots = tuple([tape.slot_of(x) for x in boxed])
        out_slots = tuple([tape.slot_of(x) for x in outs])
        outputs = [x.value if s >= 0 else _array(x) for x, s in zip(outs, out_slots)]
        warn_of_constants(tape, in_slots, outputs, out_slots, inputs)
        program = _program_of(tape, in_slots, out_slots)
        kept = [tape.values[s] for s in program.kept]
        avals = [typeof(x) for x in inputs], [typeof(x) for x in outputs]
        return outputs, Record(program, kept, *avals)
    finally:
        tape.close()


def _record_by_vjp(
    body: Callable[[list[Any]], Sequence[Any]], inputs: Sequence[Any], perturbed: Sequence[bool], title: str
) -> tuple[list[Any], Record]:
    """Records `body(inputs)` on a JAX on which the tape cannot stand: it runs under `jax.vjp`, as a single call.

    Its values are then traced.

    Raises:
        TypeError: the function asks for a value that is differentiated.
    """

    def call(*args: Any) -> list[Any]:
        return list(map(_array, body(list(args))))

    try:
        outputs, linear = linearize(call, [i for i, p in enumerate(perturbed) if p], inputs, forward=False)
    except _ASKED as error:
        text = (
            f"{title}: it asks for the value of what is differentiated, which is not possible without the tape "
            f"({_jaxcore.why_without('the tape')}). Write jnp.where or jax.lax.cond instead, or give the op a vjp="
        )
        raise refusal(TypeError(text)) from error
    linear.keep_values()
    needs = full_dependence(perturbed, outputs).needs
    ins = tuple(range(len(inputs)))
    outs = tuple([len(inputs) + j if need else -1 for j, need in enumerate(needs)])
    in_slots = tuple([i if p else -1 for i, p in enumerate(perturbed)])
    types = (None,) * (len(inputs) + len(outputs))
    program = Program([Entry(linear, ins, outs, needs)], in_slots, outs, types=types)
    return outputs, Record(program, [], list(map(jax.typeof, inputs)), list(map(jax.typeof, outputs)))


def _program_of(tape: Tape, in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> Program:
    """Returns the program that was recorded: that of an equal recording, if there was one."""
    if len(tape.entries) > MAX_COMPILED or any(isinstance(entry.how, Linear) for entry in tape.entries):
        return _new_program(tape, in_slots, out_slots, is_shared=False)
    calls = tuple([(entry.how, entry.ins) for entry in tape.entries])
    # What is traced under `jax.set_mesh` does not run outside, nor the other way round.
    settings = _jaxcore.settings_of_traces()
    types = [typeof(tape.values[s]) for s in tape.free]
    found = _recorded_programs(calls, in_slots, out_slots, settings, *types)
    if not found:
        found.append(_new_program(tape, in_slots, out_slots, is_shared=True))
    return found[0]


def _new_program(tape: Tape, in_slots: tuple[int, ...], out_slots: tuple[int, ...], *, is_shared: bool) -> Program:
    typed = {s for entry in tape.entries for s in entry.ins}.union(tape.free) - tape.read
    is_wide = any(typeof(v).dtype in _WIDE for v in tape.values)
    types = tuple([typeof(v) if s in typed else None for s, v in enumerate(tape.values)])
    kept = tuple(sorted(tape.read))
    sizes = tuple([_size_of(tape.values[s]) for s in kept])
    return Program(tuple(tape.entries), in_slots, out_slots, kept, types, sizes, is_shared, is_wide)


# Longer programs are pulled back call by call: tracing takes about a millisecond a call, and the time of XLA grows
# faster than linearly.
MAX_COMPILED = 512

# The pullbacks of a program that are kept: one for each set of outputs with a cotangent, and for settings of JAX.
_MAX_PULLBACKS = 16


@dataclasses.dataclass(eq=False)
class Program:
    """A recorded sequence of calls, without its values.

    Attributes:
        entries: the calls, in order.
        ins: the slots of the inputs, -1 for those without a tangent.
        outs: the slots of the outputs, -1 for constants.
        kept: the slots whose values derivatives read.
        types: by slot, the types of the other values that go into calls.
        sizes: the sizes of the kept values in bytes.
        is_shared: whether all records of the same calls on the same types share this object.
        is_wide: whether a value has a dtype of 64 bits, which a function may turn on for some of its calls only.
    """

    entries: Sequence[Entry]
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    kept: tuple[int, ...] = ()
    types: tuple[Any, ...] = ()
    sizes: tuple[int, ...] = ()
    is_shared: bool = False
    is_wide: bool = False
    # By outputs with a cotangent and settings of JAX: how often it was asked for, and from then on compiled.
    _pullbacks: dict[Any, int | Traced] = dataclasses.field(default_factory=dict[Any, int | Traced])

    def pushforward(self, kept: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Returns the tangents of the outputs for these tangents of the inputs; None is zero."""
        values = replaced(self.types, self.kept, kept)
        by_slot = {s: t for s, t in zip(self.ins, tangents, strict=True) if s >= 0 and t is not None}
        for how, ins, outs, needs in self.entries:
            perturbed = [i for i, slot in enumerate(ins) if slot in by_slot]
            outnums = tuple([j for j, need in enumerate(needs) if not set(perturbed).isdisjoint(need)])
            if not outnums:
                continue
            argnums = tuple([i for i in perturbed if any(i in needs[j] for j in outnums)])
            nonzero = [by_slot[ins[i]] for i in argnums]
            if isinstance(how, Linear):
                results = how.push(outnums, dict(zip(argnums, nonzero, strict=True)))
            else:
                derivative = Derivative(how, outnums, argnums, forward=True)
                results = _apply(derivative, [values[s] for s in ins], nonzero, within_trace=False)
            by_slot.update((outs[j], t) for j, t in zip(outnums, results, strict=True))
        return [by_slot.get(s) for s in self.outs]

    def pullback(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Returns the cotangents of the inputs for these cotangents of the outputs; None is zero."""
        nonzero = tuple([j for j, c in enumerate(cotangents) if c is not None and self.outs[j] >= 0])
        if not nonzero:
            return [None] * len(self.ins)
        seeds = [cotangents[j] for j in nonzero]
        traced = self._often(nonzero, kept, seeds) if self.is_shared else None
        return traced.compiled(kept, seeds) if traced else self._pull(nonzero, kept, seeds, within_trace=False)

    def _often(self, nonzero: tuple[int, ...], kept: Sequence[Any], seeds: Sequence[Any]) -> Traced | None:
        """Returns the traced pullback if it was asked for often."""
        # A pullback may run outside of the `jax.set_mesh` in which its program was recorded.
        key = nonzero, _jaxcore.settings_of_traces()
        found = self._pullbacks.get(key, 0)
        if isinstance(found, int) and found < OFTEN and _jaxcore.is_eager():
            if len(self._pullbacks) >= _MAX_PULLBACKS:
                self._pullbacks.clear()
            self._pullbacks[key] = found + 1
            return None
        if isinstance(found, int):

            def tape_pullback(kept: list[Any], seeds: list[Any]) -> list[Any]:
                return self._pull(nonzero, kept, seeds, within_trace=True)

            found = self._pullbacks[key] = Traced(tape_pullback, list(kept), list(seeds))
        return found

    def _pull(
        self, nonzero: tuple[int, ...], kept: Sequence[Any], seeds: Sequence[Any], *, within_trace: bool
    ) -> list[Any]:
        """Propagates the `seeds`, which are cotangents of the outputs `nonzero`, back to the inputs.

        With `within_trace` it runs under a trace that takes down each operation.
        """
        # Where no derivative reads a value, only its type is known.
        values = replaced(self.types, self.kept, kept)
        by_slot: dict[int, Any] = {}

        def add(slot: int, cotangent: Any) -> None:
            old = by_slot.get(slot)
            by_slot[slot] = cotangent if old is None else jax.lax.add(old, cotangent)

        # An output may be returned twice.
        for j, seed in zip(nonzero, seeds, strict=True):
            add(self.outs[j], seed)
        for how, ins, outs, needs in reversed(self.entries):
            outnums = tuple([j for j, slot in enumerate(outs) if slot in by_slot])
            if not outnums:
                continue
            cotangents = [by_slot.pop(outs[j]) for j in outnums]
            argnums = tuple(sorted({i for j in outnums for i in needs[j]}))
            if isinstance(how, Linear):
                results = how.pull(outnums, cotangents)
            else:
                derivative = Derivative(how, outnums, argnums, forward=False)
                results = _apply(derivative, [values[s] for s in ins], cotangents, within_trace)
            for i, cotangent in zip(argnums, results, strict=True):
                add(ins[i], cotangent)
        return [by_slot.get(s) for s in self.ins]


def _apply(derivative: Derivative, args: Sequence[Any], vectors: Sequence[Any], within_trace: bool) -> Sequence[Any]:
    traced = traced_derivative(derivative, args, vectors)
    return traced.inlined(args, vectors) if within_trace else traced(args, vectors)
