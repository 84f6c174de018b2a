"""`Tape`: the trace that evaluates a function and records it. What is special about a primitive is in `operations`.

The tracers of a `Tape` hold concrete values. Each primitive is evaluated at once, under the trace that was current
before. A primitive that touches a differentiated value is also recorded, as an `Entry` of a `Program`. Since values
are concrete, the function may look at them (`float(x)`, `if x > 0:`), and the recording is the sequence of
primitives on the path that was taken. A value that was looked at is a constant to the derivative, as on TensorFlow's
tape. To differentiate, the program is replayed, backward or forward.

The trace that was current evaluates everything, recording and derivatives alike. So tapes nest: an inner tape's
backward pass is recorded by the outer one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._jaxcore import EVAL_TRACE, set_current_trace
from jaxpyop._refusal import refusal
from jaxpyop._tape.derivatives import Dependence, Linear, dependence_of, full_dependence, linearize, typeof
from jaxpyop._tape.operations import Operation, find_custom_jvp_op, find_op, find_op_to_evaluate, hoisted
from jaxpyop._tape.tracer import TapeTracer


class Entry(NamedTuple):
    """One recorded call.

    Attributes:
        how: the operation that was called, or the derivative of a call that is never evaluated again.
        ins: the slots of the inputs' values.
        outs: the slots of the outputs' values, -1 for those without a tangent.
        needs: for each output, the inputs that its tangent depends on.
    """

    how: Operation | Linear
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    needs: tuple[tuple[int, ...], ...]


class Tape(_jaxcore.RecurringTrace):
    """The trace that records.

    Args:
        parent: the trace that evaluates, which was current before.
        title: what warnings call the recorded function.
    """

    def __init__(self, parent: Any, title: str = "") -> None:
        super().__init__()
        self.parent = parent
        self.title = title
        # The slots of the differentiated values of which the body made Python numbers, each with the line that did so.
        self.numbers: dict[int, Any] = {}
        # How and where the body did so, by these lines, and the number of slots before the first one.
        self.lines_of_numbers: dict[Any, tuple[str, Any]] = {}
        self.slots_before_numbers = 0
        # Otherwise JAX would rewrite a primitive on its high-level types before this trace gets it.
        self.requires_low = False
        # Every value has a slot: its position here. Those of inputs and constants are free slots.
        self.values: list[Any] = []
        self.free: list[int] = []
        # The slots of constants, by the id of their value.
        self._constants: dict[int, int] = {}
        # The slots whose values derivatives read.
        self.read: set[int] = set()
        self.entries: list[Entry] = []

    def box_input(self, value: Any) -> Any:
        """Returns the tracer of an input that is differentiated."""
        return TapeTracer(self, typeof(value), value, self._free_slot(value))

    def slot_of(self, x: Any) -> int:
        """Returns the slot of a tracer of this tape, -1 for anything else."""
        return x.slot if type(x) is TapeTracer and x._trace is self else -1

    def close(self) -> None:
        """Ends the recording: a tracer that leaked keeps no more than its value."""
        super().close()
        stores = self.values, self.entries, self._constants, self.free, self.read, self.numbers, self.lines_of_numbers
        for store in stores:
            store.clear()

    # ------------------------------------------------------------ what JAX calls

    def stage_value(self, val: Any) -> Any:
        return val if self.slot_of(val) >= 0 else self.parent.stage_value(val)

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any], /) -> Any:
        tracked = self._tracked(args)
        if True not in tracked:
            return self._evaluate(primitive, args, params)
        op = find_op(primitive, params, args)
        if op.linearize_now and not op.calls_python and (found := hoisted(primitive, params)) is not None:
            op, constants = found
            args, tracked = (*constants, *args), (False,) * len(constants) + tracked
        if op.uses_refs:
            text = (
                f"{primitive}: a differentiated value was stored in a mutable array (jax.new_ref) "
                "that outlives the operation. Use `x.at[...].set(...)`, or store "
                "`jax.lax.stop_gradient(x)`."
            )
            raise refusal(NotImplementedError(text))
        if op.linearize_now:
            outs = self._linearized(lambda *values: op.outputs(values), args, tracked, op.calls_python)
        else:
            outs = self._recorded(op, op.run if self.parent is EVAL_TRACE else op.bind, args, tracked)
        return outs if primitive.multiple_results else outs[0]

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, tracers: Sequence[Any], /, **params: Any
    ) -> Any:
        op = find_custom_jvp_op(primitive, fun, jvp, tracers, params)
        return self._custom(primitive, (fun, jvp), tracers, params, op)

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Sequence[Any], /, **params: Any
    ) -> Any:
        return self._custom(primitive, (fun, fwd, bwd), tracers, params, None)

    def process_shard_map(self, *args: Any, **params: Any) -> Any:
        text = (
            f"{self.title}: shard_map in a differentiated function, outside jax.jit: write jax.jit(jax.shard_map(...))"
        )
        raise refusal(NotImplementedError(text))

    # ------------------------------------------------------------ how it is done

    def _tracked(self, args: Sequence[Any]) -> tuple[bool, ...]:
        return tuple([type(a) is TapeTracer and a._trace is self for a in args])

    def _evaluate(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Evaluates a primitive on values without a tangent."""
        with set_current_trace(self.parent):
            if self.parent is not EVAL_TRACE or _jaxcore.is_high(primitive, args, params):
                return primitive.bind(*args, **params)
            if (op := find_op_to_evaluate(primitive, params, args)) is None:
                # This is what `bind` comes to, in less time.
                return EVAL_TRACE.process_primitive(primitive, args, params)
            outs = op.run(*args)
            return [outs] if primitive.multiple_results and not op.multiple_results else outs

    def _custom(
        self,
        primitive: Any,
        subfuns: tuple[Any, ...],
        args: Sequence[Any],
        params: dict[str, Any],
        op: Operation | None,
    ) -> Any:
        def bind(*values: Any) -> Any:
            return primitive.bind(*values, subfuns=subfuns, **params)

        tracked = self._tracked(args)
        if True not in tracked:
            with set_current_trace(self.parent):
                return bind(*args)
        if op is not None:
            # This call's own `bind` is used, because JAX reads the pytree of the output off the wrapped functions of
            # this call afterwards.
            return self._recorded(op, bind, args, tracked)
        # JAX may know no transpose of the one rule, and none of the transposed other one.
        return self._linearized(bind, args, tracked, forward=len(subfuns) == 2)

    def _recorded(
        self, op: Operation, evaluate: Callable[..., Any], args: Sequence[Any], tracked: tuple[bool, ...]
    ) -> list[Any]:
        values = [a.value if t else a for a, t in zip(args, tracked)]
        with set_current_trace(self.parent):
            out = evaluate(*values)
            outs = out if op.multiple_results else (out,)
            dependence = dependence_of(op, tracked, values, outs)
        return self._write(op, args, tracked, outs, dependence)

    def _linearized(
        self, function: Callable[..., Sequence[Any]], args: Sequence[Any], tracked: tuple[bool, ...], forward: bool
    ) -> list[Any]:
        # The body may write into a NumPy array later, which the derivative would read then.
        values = [a.value if t else a.copy() if isinstance(a, np.ndarray) else a for a, t in zip(args, tracked)]
        with set_current_trace(self.parent):
            outs, linear = linearize(function, [i for i, t in enumerate(tracked) if t], values, forward)
        return self._write(linear, args, tracked, outs, full_dependence(tracked, outs)._replace(reads=()))

    def _write(
        self,
        how: Operation | Linear,
        args: Sequence[Any],
        tracked: tuple[bool, ...],
        outs: Sequence[Any],
        dependence: Dependence,
    ) -> list[Any]:
        """Writes a call down, and returns its outputs: tracers where they depend on a differentiated value."""
        needs, reads = dependence
        # Integers, comparisons and stop_gradient give constants.
        if not any(needs):
            return list(outs)
        values, boxed, slots = self.values, list(outs), [-1] * len(outs)
        ins = tuple([a.slot if t else self._constant(a) for a, t in zip(args, tracked)])
        for j, need in enumerate(needs):
            if need:
                slots[j] = slot = len(values)
                values.append(out := outs[j])
                boxed[j] = TapeTracer(self, out.aval, out, slot)
        self.entries.append(Entry(how, ins, tuple(slots), needs))
        for i in reads:
            self.read.add(ins[i])
        return boxed

    def _constant(self, value: Any) -> int:
        # The body may write into a NumPy array later.
        if isinstance(value, np.ndarray):
            return self._free_slot(value.copy())
        slot = self._constants.get(id(value))
        if slot is None:
            # From now on the value is kept, so that no other one gets its id.
            slot = self._constants[id(value)] = self._free_slot(value)
        return slot

    def _free_slot(self, value: Any) -> int:
        slot = len(self.values)
        self.values.append(value)
        self.free.append(slot)
        return slot
