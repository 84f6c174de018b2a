"""The lazy tape: it writes operations down, and evaluates all that are pending when a value is asked for.

Each operation is a step in the trie of stretches. The stretch that is pending is evaluated by one program. On the
tape, it is then one call, whose pullback computes cheap values again. A stretch that is seen for the first time is
evaluated and recorded call by call, as the eager tape does.

Only operations of JAX wait, which compute the same at any time. All others are evaluated at once, by the eager tape:
side effects, functions of the user's on the host, custom rules, transfers of memory, several devices, and whatever is
called under other settings of JAX than those at the start. An operation on arrays that do not come from the recorded
inputs is evaluated at once as well, because a helper may keep its result.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._jaxcore import EVAL_TRACE, set_current_trace, settings_of_traces
from jaxpyop._tape.dependence import Dependence
from jaxpyop._tape.lazy.run import Run, ancestors_of, is_number, is_plain, note_gain, pays
from jaxpyop._tape.lazy.stretch import CallStep, CompiledStretch, InputStep, NumberStep, Stretch
from jaxpyop._tape.lazy.tracer import LazyTapeTracer
from jaxpyop._tape.lazy.trie import Place, root
from jaxpyop._tape.replay import Node
from jaxpyop._tape.tape import Tape, typeof
from jaxpyop._tape.tracer import equation_of

# What it costs to evaluate a stretch, besides its operations, in calls of operations.
_COST = 2
# A longer stretch is evaluated in pieces. XLA takes longer for a long program than for its pieces.
_MAX_CALLS = 128


def lazy_tape(title: str, inputs: Sequence[Any]) -> LazyTape | None:
    """Returns a tape for a function with these inputs, None if it has to be recorded eagerly."""
    if not pays(title) or not _jaxcore.has("lazy_tape") or _jaxcore.evaluates_by_itself():
        return None
    if _jaxcore.current_trace() is not EVAL_TRACE or not jax.sharding.get_abstract_mesh().empty:
        return None
    return LazyTape(title, inputs) if all(map(is_plain, inputs)) else None


class LazyTape(Tape):
    """The trace that writes down. Its tracers are the inputs, and all that is computed from them."""

    __slots__ = ("_gain", "_input_ids", "_root", "_run", "_settings", "_thread")

    tracer_type = LazyTapeTracer

    def __init__(self, title: str, inputs: Sequence[Any]) -> None:
        super().__init__(EVAL_TRACE, title)
        self._gain = 0
        self._settings = settings_of_traces()
        self._root = root(self._settings)
        self._run = Run(self._root)
        self._thread = threading.get_ident()
        # Integers come without tracers.
        self._input_ids = set(map(id, inputs))

    def box_constant(self, value: Any) -> Any:
        # The operators of a tracer take a third of the time that those of an array take on a tape.
        aval = typeof(value)
        if not _jaxcore.is_inexact(aval):
            return value
        return LazyTapeTracer(self, aval, value, -1, is_differentiated=False)

    def evaluated(self, results: Sequence[Any]) -> Sequence[Any]:
        for x in results:
            if self._owns(x) and x.run is self._run:
                x.run.place.stretch = stretch = x.run.place.stretch or Stretch()
                stretch.use(x.position)
        self._flush()
        note_gain(self.title, self._gain)
        return [self._settled(x) for x in results]

    def close(self) -> None:
        super().close()
        self._run = Run(self._root)

    # ------------------------------------------------------------ what JAX calls

    def stage_value(self, val: Any) -> Any:
        return val if self._owns(val) else self.parent.stage_value(val)

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any], /) -> Any:
        run = self._run
        ins = [a.position if type(a) is LazyTapeTracer and a.run is run else -1 for a in args]
        if (-1 in ins and not self._can_enter(args)) or self._is_disturbed():
            return self._at_once(primitive, args, params)
        if -1 in ins:
            ins = [i if i >= 0 else self._enter(a) for i, a in zip(ins, args)]
        place = run.place
        is_jit = primitive is _jaxcore.jit_p
        key = (params["jaxpr"], *ins) if is_jit else (primitive, *params.items(), *ins)
        try:
            following = place.moves.get(key)
        except TypeError:
            # A parameter has no hash.
            key = following = None
        # The key of a `jit` has not all of its parameters.
        if following is None or (is_jit and following.params != tuple(params.values())):
            following = place.after_call(primitive, params, tuple(ins), args)
            if following is None:
                return self._at_once(primitive, args, params)
            if key is not None:
                place.remember(key, following)
        outs = self._step_to(following)
        return outs if primitive.multiple_results else outs[0]

    def process_operator(self, function: Callable[..., Any], x: LazyTapeTracer, y: LazyTapeTracer) -> Any:
        """Calls a function of `jax.lax` on two arrays of one type."""
        primitive, params = equation_of(function, 2)
        if self._is_disturbed():
            return self._at_once(primitive, (x, y), params)
        run = self._run
        i = x.position if x.run is run else self._enter(x)
        j = y.position if y.run is run else self._enter(y)
        place = run.place
        following = place.moves.get((function, i, j))
        if following is None:
            following = place.after_call(primitive, params, (i, j), (x, y))
            place.remember((function, i, j), following)
        return self._step_to(following)[0]

    def process_number(
        self, function: Callable[..., Any], tracer: LazyTapeTracer, number: float, reflected: bool
    ) -> Any:
        """Calls a function of `jax.lax` on an array and a Python number, as jnp would."""
        primitive, params = equation_of(function, 2)
        aval: Any = tracer.aval
        scalar = aval.dtype.type(number)
        if not self._is_disturbed():
            run = self._run
            i = tracer.position if tracer.run is run else self._enter(tracer)
            place = run.place
            # There are two zeros, which are equal.
            key = (primitive, i, reflected, number or repr(number), type(number))
            if (following := place.moves.get(key)) is not None:
                return self._step_to(following)[0]
            if (after := place.after_number(scalar)) is not None:
                j = after.first
                following = after.after_call(primitive, params, (j, i) if reflected else (i, j), (tracer, tracer))
                place.remember(key, following)
                return self._step_to(following)[0]
        return self.process_primitive(primitive, (scalar, tracer) if reflected else (tracer, scalar), params)

    def process_custom_jvp_call(self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **params: Any) -> Any:
        return super().process_custom_jvp_call(primitive, fun, jvp, list(map(self._settled, tracers)), **params)

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **params: Any
    ) -> Any:
        return super().process_custom_vjp_call(primitive, fun, fwd, bwd, list(map(self._settled, tracers)), **params)

    def process_shard_map(self, primitive: Any, fun: Any, tracers: Any, /, **params: Any) -> Any:
        return super().process_shard_map(primitive, fun, list(map(self._settled, tracers)), **params)

    # ------------------------------------------------------------ writing down

    def _owns(self, x: Any) -> bool:
        return type(x) is LazyTapeTracer and x.tape is self

    def _is_disturbed(self) -> bool:
        return settings_of_traces() != self._settings or _jaxcore.evaluates_by_itself()

    def _can_enter(self, args: Sequence[Any]) -> bool:
        is_of_inputs = False
        for a in args:
            if type(a) is LazyTapeTracer:
                if a.tape is self:
                    is_of_inputs = True
                elif a.is_differentiated or not is_plain(a.value):
                    return False
            elif isinstance(a, jax.Array):
                if not is_plain(a):
                    return False
                is_of_inputs = is_of_inputs or id(a) in self._input_ids
            elif not (isinstance(a, (np.bool_, np.number)) or is_number(a)):
                return False
        return is_of_inputs

    def _enter(self, x: Any) -> int:
        """Returns the position, in the pending stretch, of a value from outside."""
        run = self._run
        slot, value = -1, x
        if type(x) is LazyTapeTracer:
            value, slot = x.value, x.slot
        elif not isinstance(x, jax.Array) and (following := run.place.after_number(x)) is not None:
            run.place = following
            run.pending.append(None)
            return following.first
        key = ~slot if slot >= 0 else id(value)
        if (position := run.entered.get(key)) is None:
            run.place = run.place.after_input(typeof(value), slot >= 0)
            position = run.entered[key] = run.place.first
            run.inputs.append(value)
            run.has_numbers = run.has_numbers or not isinstance(value, jax.Array)
            run.slots.append(slot)
            run.pending.append(None)
        return position

    def _step_to(self, place: Place) -> list[LazyTapeTracer]:
        run = self._run
        pending, position = run.pending, place.first
        while len(pending) < position:
            pending.append(None)
        if len(place.avals) == 1:
            outs = [LazyTapeTracer(self, place.avals[0], None, -1, run, position, place.tracked[0])]
        else:
            of_each = enumerate(zip(place.avals, place.tracked), position)
            outs = [LazyTapeTracer(self, aval, None, -1, run, i, tracked) for i, (aval, tracked) in of_each]
        pending.extend(outs)
        run.place = place
        if place.depth >= _MAX_CALLS:
            self._flush()
        return outs

    # ------------------------------------------------------------ evaluating

    def _settled(self, x: Any) -> Any:
        """Returns a tracer with its value on the tape, or the value itself if it is a constant."""
        if type(x) is not LazyTapeTracer or (x.is_differentiated and x.tape is not self):
            return x
        value = x.value
        return x if x.is_differentiated else value

    def _at_once(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        args = list(map(self._settled, args))
        if primitive is _jaxcore.jit_p and any(params["donated_invars"]):
            # What is pending, or evaluated again, may read these arrays.
            with set_current_trace(EVAL_TRACE):
                args = [jnp.copy(a) if d and is_plain(a) else a for a, d in zip(args, params["donated_invars"])]
        if any(isinstance(a, np.ndarray) for a in args):
            # JAX may use the memory as it is, and the function may write into it.
            args = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        return super().process_primitive(primitive, args, params)

    def evaluate(self, tracer: LazyTapeTracer) -> None:
        """Evaluates a tracer, if it has no value yet. It is noted as used."""
        run = tracer.run
        if run.place.stretch is None:
            run.place.stretch = Stretch()
        run.place.stretch.use(tracer.position)
        if run is self._run and threading.get_ident() == self._thread:
            self._flush()
        if tracer._value is None:
            # The program did not return it.
            with self._evaluating():
                values = self._interpret(
                    run, tracer.position, threading.get_ident() == self._thread and self.is_valid()
                )
            _settle(tracer, values[tracer.position])
        if run is not self._run:
            tracer.run = None

    def _evaluating(self) -> contextlib.AbstractContextManager[Any]:
        evaluating = set_current_trace(EVAL_TRACE)
        return evaluating if settings_of_traces() == self._settings else _both(self._settings, evaluating)

    def _flush(self) -> None:
        """Evaluates what is pending."""
        run = self._run
        place = run.place
        if not place.depth:
            return
        self._run = Run(self._root)
        stretch = place.stretch
        if stretch is None:
            stretch = place.stretch = Stretch()
        with self._evaluating():
            program = stretch.program(place)
            if program is None:
                self._gain -= place.saving
                for tracer, value in zip(run.pending, self._interpret(run, None, True)):
                    if tracer is not None:
                        _settle(tracer, value)
                run.inputs = []
            else:
                self._gain += place.saving - _COST
                self._run_program(run, program)
        run.pending = []

    def _run_program(self, run: Run, program: CompiledStretch) -> None:
        # The compiler holds the numbers that do not change.
        outs = _jaxcore.with_transfers(program.run, *run.inputs) if run.has_numbers else program.run(*run.inputs)
        slots = [-1] * len(program.returned)
        saved: list[int] = []
        if any(program.needs):
            values = self._values
            ins = [s if s >= 0 else self._constant(v) for s, v in zip(run.slots, run.inputs)]
            for j, need in enumerate(program.needs):
                if need:
                    slots[j] = len(values)
                    values.append(outs[j])
            for k in program.saved:
                if k < len(slots) and slots[k] >= 0:
                    saved.append(slots[k])
                else:
                    saved.append(len(values))
                    values.append(outs[k])
            self._read.update(saved)
            self._read.update([ins[i] for i in program.reads])
            self._nodes.append(Node(program.op, (*ins, *saved), tuple(slots), program.needs))
            self._code += [program.id, *ins]
        for position, value, slot in zip(program.returned, outs, slots):
            if (tracer := run.pending[position]) is not None:
                tracer.settle(value, slot)
                tracer.run = None

    def _interpret(self, run: Run, wanted: int | None, on_tape: bool) -> list[Any]:
        """Evaluates a run call by call, all of it or what one value depends on, and returns the values by position."""
        place = run.place
        chain = place.chain()
        positions = ancestors_of(chain, wanted)
        values: list[Any] = []
        inputs = iter(zip(run.inputs, run.slots))
        for p in chain:
            step = p.step
            if type(step) is InputStep:
                value, slot = next(inputs)
                values.append(value if slot < 0 else LazyTapeTracer(self, p.avals[0], value, slot))
            elif type(step) is NumberStep:
                values.append(step.value)
            elif positions is not None and positions.isdisjoint(range(p.first, p.count)):
                values.extend([None] * len(p.avals))
            else:
                values.extend(self._call(step, [values[i] for i in step.ins], on_tape))
        return values

    def _call(self, step: CallStep, args: Sequence[Any], on_tape: bool) -> Sequence[Any]:
        tracked = self._tracked(args)
        out = step.op.run(*[a._value if t else a for a, t in zip(args, tracked)])
        outs = out if step.op.multiple_results else (out,)
        if not on_tape or True not in tracked:
            return outs
        return self._write(step.op, args, tracked, outs, Dependence(step.needs, step.reads))


@contextlib.contextmanager
def _both(settings: tuple[Any, ...], evaluating: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    with _jaxcore.under_settings(settings), evaluating:
        yield


def _settle(tracer: LazyTapeTracer, value: Any) -> None:
    if type(value) is LazyTapeTracer:
        tracer.settle(value._value, value.slot)
    else:
        tracer.settle(value, -1)
