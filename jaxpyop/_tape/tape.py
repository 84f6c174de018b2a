"""The tape: run a Python function once on concrete arrays, differentiate it later.

A `Tape` is a trace whose tracers hold concrete values. Each primitive is
evaluated at once under the trace that was current before; one that touches a
differentiated value is also written down. Since values are concrete, the
function may look at them (`float(x)`, `if x > 0:`), and what is written down
is the line of primitives on the path taken. A value looked at is a constant to
the derivative, as on TensorFlow's tape.

The trace that was current evaluates everything, recording and derivatives
alike, so tapes nest: an inner tape's backward pass is recorded by the outer one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxpyop import _jaxcore
from jaxpyop._jaxcore import KnownTrace
from jaxpyop._tape.flow import Flow, full_flow
from jaxpyop._tape.keys import Hashed, value_type
from jaxpyop._tape.linear import Linear, linearise
from jaxpyop._tape.ops import Operation, find_custom_jvp_op, find_op, find_plain
from jaxpyop._tape.replay import MAX_LINE, Node, Program, programs, pull_program, push_program
from jaxpyop._tape.shared import take_apart
from jaxpyop._tape.tracer import TapeTracer
from jaxpyop._tape.vjp import is_differentiable

_EVAL = _jaxcore.EVAL_TRACE
_current_trace = _jaxcore.current_trace
_set_current_trace = _jaxcore.set_current_trace


def _typeof(x: Any) -> Any:
    """As `jax.typeof`, which asks an array for its mesh, in less time where there is none."""
    if not isinstance(x, _jaxcore.Tracer) and type(getattr(x, "sharding", None)) is SingleDeviceSharding:
        return x.aval
    return jax.typeof(x)


# What a record takes beside the arrays' own bytes: measured, JAX 0.10 to 0.12.
_OF_RECORD = 600
_OF_ARRAY = 1600  # a jax.Array of a scalar
_OF_NODE = 500
_OF_LINEAR = 20_000  # a derivative's jaxpr


class Tape(KnownTrace):
    """The trace that records; see the module's docstring."""

    __slots__ = ("_code", "_constants", "_free", "_nodes", "_read", "_shareable", "_values", "parent", "title")

    def __init__(self, parent: Any, title: str = "") -> None:
        super().__init__()
        self.parent = parent
        self.title = title  # of what is recorded, in warnings
        self.requires_low = False  # as those of JAX that differentiate
        self._values: list[Any] = []  # by slot
        self._nodes: list[tuple[Any, ...]] = []  # to be nodes, in a program that is new
        self._code: list[int] = []  # the program's key, flat
        self._shareable = True
        self._constants: dict[int, int] = {}  # id of a constant -> its slot
        self._free: list[int] = []  # slots of inputs and constants
        self._read: set[int] = set()  # slots that derivatives read

    def box_input(self, value: Any) -> Any:
        """The tracer of an input, or the input itself if it has no tangent."""
        aval = _typeof(value)
        if not is_differentiable(aval.dtype):
            return value
        return TapeTracer(self, aval, value, self._free_slot(value))

    def slot_of(self, x: Any) -> int:
        """The slot of a tracer of this tape, -1 for anything else."""
        return x.slot if type(x) is TapeTracer and x._trace is self else -1

    def finish(self, in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> tuple[Program, list[Any]]:
        """The program recorded, and the values that its derivatives read."""
        key = None
        if self._shareable and len(self._nodes) <= MAX_LINE:
            types = [value_type(self._values[s]) for s in self._free]
            key = Hashed((tuple(self._code), in_slots, out_slots, *types))
        program = programs.compiled(key, lambda: self._program(in_slots, out_slots, key)) if key else None
        if program is None:
            program = self._program(in_slots, out_slots, key)
        return program, [self._values[s] for s in program.kept]

    def _program(self, in_slots: tuple[int, ...], out_slots: tuple[int, ...], key: Hashed | None) -> Program:
        nodes = tuple([Node(*parts) for parts in self._nodes])
        typed = {s for node in nodes for s in node.ins}.union(self._free) - self._read
        types = tuple([_typeof(v) if s in typed else None for s, v in enumerate(self._values)])
        kept = tuple(sorted(self._read))
        sizes = tuple([_size_of(self._values[s]) for s in kept]) if key is not None else ()
        return Program(nodes, in_slots, out_slots, kept, types, sizes, key)

    def close(self) -> None:
        """End the recording: a tracer that leaked keeps no more than its value."""
        super().close()
        for store in (self._values, self._nodes, self._code, self._constants, self._free, self._read):
            store.clear()

    # ------------------------------------------------------------ what JAX calls

    def stage_value(self, val: Any) -> Any:
        return val if self.slot_of(val) >= 0 else self.parent.stage_value(val)

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any], /) -> Any:
        tracked = self._tracked(args)
        if True not in tracked:
            return self._plain(primitive, args, params)
        op, evaluate = find_op(primitive, params, args), None
        if op.once and not op.calls_python and (apart := take_apart(op, primitive, params, args, tracked)) is not None:
            op, evaluate = apart.op, apart.evaluate
            args, tracked = (*apart.first, *args), (False,) * len(apart.first) + tracked
        if op.stateful:
            raise NotImplementedError(
                f"{primitive}: a differentiated value was stored in a mutable array (jax.new_ref) "
                "that outlives the operation. Use `x.at[...].set(...)`, or store "
                "`jax.lax.stop_gradient(x)`."
            )
        if op.once:
            outs = self._linearised(lambda *values: op.outputs(values), args, tracked, op.calls_python)
        else:
            outs = self._recorded(op, evaluate or (op.run if self.parent is _EVAL else op.bind), args, tracked)
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

    def process_shard_map(self, primitive: Any, fun: Any, tracers: Sequence[Any], /, **params: Any) -> Any:
        if True in self._tracked(tracers):
            raise NotImplementedError(
                "shard_map of a differentiated value outside jax.jit: write jax.jit(jax.shard_map(...))"
            )
        with _set_current_trace(self.parent):
            return primitive.bind(*tracers, subfuns=(fun,), **params)

    # ------------------------------------------------------------ how it is done

    def _plain(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Evaluate a primitive on values without a tangent."""
        if self.parent is not _EVAL:
            with _set_current_trace(self.parent):
                return primitive.bind(*args, **params)
        if _current_trace() is _EVAL:  # as inside JAX's `bind` on 0.10
            return _evaluate(primitive, args, params)
        with _set_current_trace(_EVAL):
            return _evaluate(primitive, args, params)

    def _tracked(self, args: Sequence[Any]) -> tuple[bool, ...]:
        return tuple([type(a) is TapeTracer and a._trace is self for a in args])

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
            with _set_current_trace(self.parent):
                return bind(*args)
        if op is not None:
            # This call's own `bind`: JAX reads the output's pytree off the
            # wrapped functions of this call afterwards.
            return self._recorded(op, bind, args, tracked)
        return self._linearised(bind, args, tracked, forward=False)

    def _recorded(
        self, op: Operation, evaluate: Callable[..., Any], args: Sequence[Any], tracked: tuple[bool, ...]
    ) -> list[Any]:
        values = [a.value if t else a for a, t in zip(args, tracked)]
        if _current_trace() is self.parent:  # as inside JAX's `bind` on 0.10
            outs, flow = op.followed(evaluate, tracked, values)
        else:
            with _set_current_trace(self.parent):
                outs, flow = op.followed(evaluate, tracked, values)
        return self._write(op, args, tracked, outs, flow)

    def _linearised(
        self, function: Callable[..., Sequence[Any]], args: Sequence[Any], tracked: tuple[bool, ...], forward: bool
    ) -> list[Any]:
        values = [a.value if t else a for a, t in zip(args, tracked)]
        with _set_current_trace(self.parent):
            outs, linear = linearise(function, [i for i, t in enumerate(tracked) if t], values, forward)
        return self._write(linear, args, tracked, outs, full_flow(tracked, outs)._replace(reads=()))

    def _write(
        self, how: Operation | Linear, args: Sequence[Any], tracked: tuple[bool, ...], outs: Sequence[Any], flow: Flow
    ) -> list[Any]:
        needs, reads = flow
        if not any(needs):  # integers, comparisons, stop_gradient: constants from here on
            return list(outs)
        values, boxed, slots = self._values, list(outs), [-1] * len(outs)
        ins = tuple([a.slot if t else self._constant(a) for a, t in zip(args, tracked)])
        for j, need in enumerate(needs):
            if need:
                slots[j] = slot = len(values)
                values.append(out := outs[j])
                boxed[j] = TapeTracer(self, out.aval, out, slot)
        self._nodes.append((how, ins, tuple(slots), needs))
        for i in reads:
            self._read.add(ins[i])
        if isinstance(how, Operation) and how.id is not None:
            self._code.append(how.id)
            self._code.extend(ins)
        else:
            self._shareable = False
        return boxed

    def _constant(self, value: Any) -> int:
        if isinstance(value, np.ndarray):  # the body may write into it later
            return self._free_slot(value.copy())
        slot = self._constants.get(id(value))
        if slot is None:  # from now on the value is kept, so its id is not taken again
            slot = self._constants[id(value)] = self._free_slot(value)
        return slot

    def _free_slot(self, value: Any) -> int:
        slot = len(self._values)
        self._values.append(value)
        self._free.append(slot)
        return slot


def _evaluate(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    if _jaxcore.is_high(primitive, args, params):
        return primitive.bind(*args, **params)
    if (op := find_plain(primitive, params, args)) is None:
        return _EVAL.process_primitive(primitive, args, params)  # what `bind` comes to, in less time
    outs = op.run(*args)
    return [outs] if primitive.multiple_results and not op.multiple else outs


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray))


def _size_of(value: Any) -> int:
    return _OF_ARRAY + value.nbytes if _is_array(value) else 0


class Record:
    """What a function did: its program and the values that derivatives read."""

    __slots__ = ("__weakref__", "_in_avals", "_kept", "_nbytes", "_out_avals", "_program")

    def __init__(self, program: Program, kept: list[Any], in_avals: list[Any], out_avals: list[Any]) -> None:
        self._program = program
        self._kept = kept
        self._in_avals = in_avals
        self._out_avals = out_avals
        self._nbytes: int | None = None

    def arrays(self) -> list[Any]:
        """The arrays that this record keeps alive, each once."""
        held = [v for v in self._kept if _is_array(v)]
        for node in self._program.nodes:
            if isinstance(node.how, Linear):
                held += node.how.arrays()
        return list({id(v): v for v in held}.values())

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory this record takes; its program counts where no other record has it."""
        if self._nbytes is None:
            program = self._program
            if programs.holds(program.key, program):
                self._nbytes = sum({id(v): n for v, n in zip(self._kept, program.sizes)}.values(), _OF_RECORD)
            else:
                nodes = sum([_OF_LINEAR if isinstance(n.how, Linear) else _OF_NODE for n in program.nodes])
                self._nbytes = sum(map(_size_of, self.arrays()), _OF_RECORD + nodes)
        return self._nbytes

    def pullback(self, cotangents: Sequence[Any]) -> list[Any]:
        """Reverse mode, under whatever trace is current.

        Args:
            cotangents: one per output; None is zero, and the only choice for
                an output of an integer or bool dtype.

        Returns:
            One cotangent per input; None is zero, and what inputs without a
            tangent get.
        """
        cotangents = _vectors("cotangent", "output", cotangents, self._out_avals)
        return pull_program(self._program, self._kept, cotangents)

    def pushforward(self, tangents: Sequence[Any]) -> list[Any]:
        """Forward mode: one tangent per output from one per input; None is zero."""
        tangents = _vectors("tangent", "input", tangents, self._in_avals)
        return push_program(self._program, self._kept, tangents)


def _vectors(name: str, what: str, vectors: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
    """Cotangents or tangents as arrays, checked against the values they belong to."""
    if len(vectors) != len(avals):
        raise ValueError(f"got {len(vectors)} {name}s for {len(avals)} {what}s: give one per {what}, None for zero")
    arrays = list(vectors)
    for i, (vector, aval) in enumerate(zip(vectors, avals)):
        if vector is None:
            continue
        if not is_differentiable(aval.dtype):
            raise TypeError(f"{what} {i} is of dtype {aval.dtype}: its {name} must be None")
        if not isinstance(vector, jax.Array):
            vector = arrays[i] = jnp.asarray(vector, aval.dtype)
        if vector.shape != aval.shape or vector.dtype != aval.dtype:
            raise ValueError(
                f"{what} {i} is {aval.dtype}{list(aval.shape)}, but its {name} is "
                f"{vector.dtype}{list(vector.shape)}: they must be alike"
            )
        arrays[i] = _jaxcore.shard_as(vector, aval)
    return arrays


def _array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else _jaxcore.with_transfers(jnp.asarray, value)


def record(
    func: Callable[..., Sequence[Any]], inputs: Sequence[Any], moving: Sequence[bool] | None = None
) -> tuple[list[Any], Record]:
    """Run `func(*inputs)` once and record it.

    Args:
        func: a Python function of arrays; returns a flat list or tuple of
            arrays or of concrete values (NumPy arrays, Python numbers). Its
            `title`, if it has one, is what warnings call it.
        inputs: arrays; those of a floating or complex dtype are differentiated.
        moving: which of them; the others are constants, and what depends on
            them alone is not recorded. By default all.

    Returns:
        The outputs, as concrete as the inputs, and the record.

    Example:
        >>> import jax.numpy as jnp
        >>> outputs, taken = record(lambda x: [x * x if float(x) > 1 else x], [jnp.float32(3.0)])
        >>> float(outputs[0]), float(taken.pullback([jnp.float32(1.0)])[0])
        (9.0, 6.0)
    """
    tape = Tape(_jaxcore.current_trace(), getattr(func, "title", "a recorded function"))
    inputs = [_array(x) for x in inputs]
    try:
        boxed = [tape.box_input(x) if moves else x for x, moves in zip(inputs, moving or itertools.repeat(True))]
        with _set_current_trace(tape):
            outs = list(func(*boxed))
        in_slots = tuple([tape.slot_of(x) for x in boxed])
        out_slots = tuple([tape.slot_of(x) for x in outs])
        outputs = [x.value if s >= 0 else _array(x) for x, s in zip(outs, out_slots)]
        program, kept = tape.finish(in_slots, out_slots)
        return outputs, Record(program, kept, [_typeof(x) for x in inputs], [_typeof(x) for x in outputs])
    finally:
        tape.close()


def vjp(
    func: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    cotangents: Sequence[Any],
    wanted: Sequence[bool] | None = None,
) -> list[Any]:
    """The cotangents of `func`'s inputs, all or those `wanted`, from those of its outputs."""
    return record(func, inputs, wanted)[1].pullback(cotangents)


def jvp(
    func: Callable[..., Sequence[Any]], inputs: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """`func`'s outputs and their tangents."""
    outputs, taken = record(func, inputs, [t is not None for t in tangents])
    return outputs, taken.pushforward(tangents)
