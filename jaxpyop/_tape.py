"""The tape: run a Python function once on concrete arrays, differentiate it later.

A `Tape` is a trace whose tracers hold concrete values.  Each primitive is
evaluated at once under the trace that was current before; one that touches a
differentiated value is also written down.  Since values are concrete, the
function may look at them (`float(x)`, `if x > 0:`), and the line of primitives
that comes out is that of the path taken.  A value looked at is a constant to
the derivative, as on TensorFlow's tape.

The parent trace evaluates everything, recording and derivatives alike, so
tapes nest: an inner tape's backward pass is recorded by the outer one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._backward import (
    MAX_LINE,
    Flow,
    Linear,
    Node,
    Op,
    Program,
    find_custom_jvp_op,
    find_op,
    full_flow,
    is_differentiable,
    linearise,
    pull_program,
    push_program,
)

_EVAL = _jaxcore.EVAL_TRACE
_set_current_trace = _jaxcore.set_current_trace
_typeof = jax.typeof


class TapeTracer(_jaxcore.Tracer):
    """An array on the tape: a value, and the slot it was recorded in."""

    __slots__ = ("slot", "value")

    def __init__(self, trace: Tape, aval: Any, value: Any, slot: int):
        # Not super().__init__: this runs for every output of every primitive.
        self._trace = trace
        self.aval = aval
        self.value = value
        self.slot = slot

    def to_concrete_value(self) -> Any:
        value = self.value
        return value.to_concrete_value() if isinstance(value, _jaxcore.Tracer) else value

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __complex__(self) -> complex:
        return complex(self.value)

    def __index__(self) -> int:
        return self.value.__index__()

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        return self.value.__array__(*args, **kwargs)

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value.__dlpack__(*args, **kwargs)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    def __reduce__(self) -> Any:
        return self.value.__reduce__()

    def item(self, *args: int) -> Any:
        return self.value.item(*args)

    def tolist(self) -> Any:
        return self.value.tolist()

    def tobytes(self, order: str = "C") -> bytes:
        return self.value.tobytes(order)

    def block_until_ready(self) -> TapeTracer:
        self.value.block_until_ready()
        return self

    def copy_to_host_async(self) -> None:
        self.value.copy_to_host_async()

    def devices(self) -> Any:
        return self.value.devices()

    @property
    def device(self) -> Any:
        return self.value.device

    @property
    def sharding(self) -> Any:
        return self.value.sharding

    @property
    def committed(self) -> bool:
        return self.value.committed


def _is_real(aval: Any) -> bool:
    return not jnp.issubdtype(aval.dtype, jnp.complexfloating)


def _is_exact(number: Any, aval: Any) -> bool:
    """Whether `aval.dtype.type(number)` is what jnp makes of it beside a scalar."""
    if aval.shape or aval.weak_type or aval.dtype.itemsize < 4:
        return False
    return type(number) is float or (type(number) is int and abs(number) <= 2**24)


def _operator(name: str, function: Callable, real: bool = False) -> Callable:
    """`name` of `TapeTracer`: calls `jax.lax` where jnp would end up there.

    That is for operands of one type, and for Python numbers with a scalar;
    everything else takes jnp's way, which costs three times as much.
    """
    general = getattr(_jaxcore.Tracer, name)
    reflected = name in ("__radd__", "__rsub__", "__rmul__", "__rtruediv__")

    def operate(self: TapeTracer, *others: Any) -> Any:
        aval = self.aval
        for other in others:
            if getattr(other, "aval", None) != aval:
                if not _is_exact(other, aval):
                    return general(self, *others)
                others = (aval.dtype.type(other),)
        if real and not _is_real(aval):
            return general(self, *others)
        return function(*others, self) if reflected else function(self, *others)

    operate.__name__ = name
    return operate


for _name, _function in {
    "add": jax.lax.add, "radd": jax.lax.add, "sub": jax.lax.sub, "rsub": jax.lax.sub,
    "mul": jax.lax.mul, "rmul": jax.lax.mul, "neg": jax.lax.neg,
    "truediv": jax.lax.div, "rtruediv": jax.lax.div,
}.items():
    setattr(TapeTracer, f"__{_name}__", _operator(f"__{_name}__", _function))
for _name, _function in {
    "lt": jax.lax.lt, "le": jax.lax.le, "gt": jax.lax.gt, "ge": jax.lax.ge,
    "abs": jax.lax.abs,
}.items():
    setattr(TapeTracer, f"__{_name}__", _operator(f"__{_name}__", _function, real=True))


class Tape(_jaxcore.Trace):
    """The trace that records; see the module's docstring."""

    __slots__ = ("_free", "_read", "_slots", "code", "nodes", "parent", "shareable", "values")

    def __init__(self, parent: Any):
        super().__init__()
        self.parent = parent
        self.values: list = []  # by slot
        self.nodes: list[Node] = []
        self.code: list[int] = []  # the program's key, flat
        self.shareable = True
        self._slots: dict[int, int] = {}  # id of a constant -> its slot
        self._free: list[int] = []  # slots of inputs and constants
        self._read: set[int] = set()  # slots that derivatives read

    def box_input(self, value: Any) -> Any:
        aval = _typeof(value)
        if not is_differentiable(aval.dtype):
            return value
        self._free.append(len(self.values))
        return self._box(aval, value)

    def _box(self, aval: Any, value: Any) -> TapeTracer:
        slot = len(self.values)
        self.values.append(value)
        return TapeTracer(self, aval, value, slot)

    def _constant(self, value: Any) -> int:
        if isinstance(value, np.ndarray):  # the body may write into it later
            self._free.append(len(self.values))
            self.values.append(value.copy())
            return self._free[-1]
        slot = self._slots.get(id(value))
        if slot is None:
            slot = self._slots[id(value)] = len(self.values)
            self.values.append(value)  # which also keeps the id taken
            self._free.append(slot)
        return slot

    def close(self) -> None:
        """Ends the recording: a tracer that leaked keeps no more than its value."""
        self.invalidate()
        self.values = self.nodes = self.code = self._slots = self._free = self._read = ()

    def finish(self, in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> tuple:
        """The program recorded, and the values that its derivatives need."""
        key = None
        if self.shareable and len(self.nodes) <= MAX_LINE:
            key = (tuple(self.code), in_slots, out_slots)
        program = Program(tuple(self.nodes), in_slots, out_slots, tuple(self._free), key)
        read, passed = self._read, {s for node in self.nodes for s in node.ins}
        passed.update(self._free)
        values = [v if s in read else _typeof(v) if s in passed else None
                  for s, v in enumerate(self.values)]
        return program, values

    def slot_of(self, x: Any) -> int:
        return x.slot if type(x) is TapeTracer and x._trace is self else -1

    # --- what JAX calls ---

    def stage_value(self, val: Any) -> Any:
        if type(val) is TapeTracer and val._trace is self:
            return val
        return self.parent.stage_value(val)

    def process_primitive(self, primitive: Any, args: Sequence, params: dict, /) -> Any:
        tracked = tuple([type(a) is TapeTracer and a._trace is self for a in args])
        if True not in tracked:
            if self.parent is _EVAL:
                with _set_current_trace(_EVAL):
                    return _EVAL.process_primitive(primitive, args, params)
            with _set_current_trace(self.parent):
                return primitive.bind(*args, **params)
        op = find_op(primitive, params, args)
        if op.stateful:
            raise NotImplementedError(
                f"{primitive}: a differentiated value was stored in a mutable array (jax.new_ref) "
                "that outlives the operation. Use `x.at[...].set(...)`, or store "
                "`jax.lax.stop_gradient(x)`.")
        values = [a.value if t else a for a, t in zip(args, tracked)]
        if op.effectful:
            outs = self._linearised(lambda *a: op.outputs(a), args, tracked, values)
        else:
            evaluate = op.run if self.parent is _EVAL else op.bind
            outs = self._recorded(op, args, tracked, values, evaluate)
        return outs if primitive.multiple_results else outs[0]

    def process_custom_jvp_call(self, primitive: Any, fun: Any, jvp: Any, tracers: Sequence, /,
                                **params: Any) -> Any:
        return self._custom(primitive, (fun, jvp), tracers, params,
                            find_custom_jvp_op(primitive, fun, jvp, params))

    def process_custom_vjp_call(self, primitive: Any, fun: Any, fwd: Any, bwd: Any,
                                tracers: Sequence, /, **params: Any) -> Any:
        return self._custom(primitive, (fun, fwd, bwd), tracers, params, None)

    def process_shard_map(self, primitive: Any, fun: Any, tracers: Sequence, /,
                          **params: Any) -> Any:
        if any(self.slot_of(a) >= 0 for a in tracers):
            raise NotImplementedError(
                "shard_map of a differentiated value outside jax.jit: write jax.jit(jax.shard_map(...))")
        with _set_current_trace(self.parent):
            return primitive.bind(*tracers, subfuns=(fun,), **params)

    # --- how it is done ---

    def _custom(self, primitive: Any, subfuns: tuple, args: Sequence, params: dict,
                op: Op | None) -> Any:
        def bind(*values):
            return primitive.bind(*values, subfuns=subfuns, **params)

        tracked = tuple([type(a) is TapeTracer and a._trace is self for a in args])
        if True not in tracked:
            with _set_current_trace(self.parent):
                return bind(*args)
        values = [a.value if t else a for a, t in zip(args, tracked)]
        if op is not None:
            # This call's own `bind`: JAX reads the output's pytree off the
            # wrapped functions of this call afterwards.
            return self._recorded(op, args, tracked, values, bind)
        return self._linearised(bind, args, tracked, values)

    def _recorded(self, op: Op, args: Sequence, tracked: tuple, values: list,
                  evaluate: Callable) -> list:
        with _set_current_trace(self.parent):
            outs = evaluate(*values)
            if not op.multiple:
                outs = (outs,)
            flow = op.flow(tracked, values, outs)
        if op.id is None:
            self.shareable = False
        return self._write(op, args, tracked, outs, flow, None)

    def _linearised(self, function: Callable, args: Sequence, tracked: tuple,
                    values: list) -> list:
        diff = tuple(i for i, t in enumerate(tracked) if t)
        with _set_current_trace(self.parent):
            outs, linear = linearise(function, diff, values)
        self.shareable = False
        flow = Flow(full_flow(tracked, outs).needs, ())
        return self._write(None, args, tracked, outs, flow, linear)

    def _write(self, op: Op | None, args: Sequence, tracked: tuple, outs: Sequence,
               flow: Flow, linear: Linear | None) -> list:
        needs, reads = flow
        if not any(needs):  # integers, comparisons, stop_gradient: constants from here on
            return list(outs)
        ins = tuple([a.slot if t else self._constant(a) for a, t in zip(args, tracked)])
        boxed = [self._box(o.aval, o) if need else o for o, need in zip(outs, needs)]
        slots = tuple([b.slot if need else -1 for b, need in zip(boxed, needs)])
        self.nodes.append(Node(op, ins, slots, needs, linear))
        self._read.update([ins[i] for i in reads])
        if op is not None and op.id is not None:
            self.code.append(op.id)
            self.code.extend(ins)
        return boxed


class Record:
    """What a function did: its program and the values that derivatives need."""

    __slots__ = ("__weakref__", "_in_avals", "_nbytes", "_out_avals", "_program", "_values")

    def __init__(self, program: Program, values: list, in_avals: list, out_avals: list):
        self._program = program
        self._values = values
        self._in_avals = in_avals
        self._out_avals = out_avals
        self._nbytes: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that this record keeps alive, each counted once."""
        if self._nbytes is None:
            arrays = {id(v): v for v in self._values if isinstance(v, (jax.Array, np.ndarray))}
            for node in self._program.nodes:
                if node.linear is not None:
                    arrays.update((id(v), v) for v in node.linear.arrays())
            self._nbytes = sum(v.nbytes for v in arrays.values())
        return self._nbytes

    def pullback(self, cotangents: Sequence[Any]) -> list:
        """Reverse mode, under whatever trace is current.

        Args:
          cotangents: one per output; None is zero, and the only choice for an
            output of an integer or bool dtype.

        Returns:
          One cotangent per input; None is zero, and what inputs without a
          tangent get.
        """
        cotangents = _vectors("cotangent", "output", cotangents, self._out_avals)
        return pull_program(self._program, self._values, cotangents)

    def pushforward(self, tangents: Sequence[Any]) -> list:
        """Forward mode: one tangent per input to one per output, None for zero."""
        tangents = _vectors("tangent", "input", tangents, self._in_avals)
        return push_program(self._program, self._values, tangents)


def _vectors(name: str, what: str, vectors: Sequence, avals: Sequence) -> list:
    """Checks cotangents or tangents against the values they belong to."""
    vectors = list(vectors)
    if len(vectors) != len(avals):
        raise ValueError(f"got {len(vectors)} {name}s for {len(avals)} {what}s: "
                         f"give one per {what}, None for zero")
    for i, (vector, aval) in enumerate(zip(vectors, avals, strict=True)):
        if vector is None:
            continue
        if not is_differentiable(aval.dtype):
            raise TypeError(f"{what} {i} is of dtype {aval.dtype}: its {name} must be None")
        if not isinstance(vector, jax.Array):
            vector = vectors[i] = jnp.asarray(vector, aval.dtype)
        if vector.shape != aval.shape or vector.dtype != aval.dtype:
            raise ValueError(
                f"{what} {i} is {aval.dtype}{list(aval.shape)}, but its {name} is "
                f"{vector.dtype}{list(vector.shape)}: they must be alike")
    return vectors


def _array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else jnp.asarray(value)


def record(func: Callable, inputs: Sequence[Any]) -> tuple[list, Record]:
    """Runs `func(*inputs)` once and records it.

    Args:
      func: a Python function of arrays; returns a flat list or tuple of
        arrays or of concrete values (NumPy arrays, Python numbers).
      inputs: arrays; those of a floating or complex dtype are differentiated.

    Returns:
      The outputs, as concrete as the inputs, and the record.

    >>> import jax.numpy as jnp
    >>> outputs, taken = record(lambda x: [x * x if float(x) > 1 else x], [jnp.float32(3.0)])
    >>> float(outputs[0]), float(taken.pullback([jnp.float32(1.0)])[0])
    (9.0, 6.0)
    """
    tape = Tape(_jaxcore.current_trace())
    inputs = [_array(x) for x in inputs]
    try:
        boxed = [tape.box_input(x) for x in inputs]
        with _set_current_trace(tape):
            outs = list(func(*boxed))
        ins, slots = map(tape.slot_of, boxed), [tape.slot_of(x) for x in outs]
        outputs = [x.value if s >= 0 else _array(x) for x, s in zip(outs, slots, strict=True)]
        program, values = tape.finish(tuple(ins), tuple(slots))
        in_avals, out_avals = map(_typeof, inputs), map(_typeof, outputs)
        return outputs, Record(program, values, list(in_avals), list(out_avals))
    finally:
        tape.close()


def vjp(func: Callable, inputs: Sequence[Any], cotangents: Sequence[Any]) -> list:
    """The cotangents of `func`'s inputs from those of its outputs."""
    return record(func, inputs)[1].pullback(cotangents)


def jvp(func: Callable, inputs: Sequence[Any], tangents: Sequence[Any]) -> tuple[list, list]:
    """`func`'s outputs and their tangents."""
    outputs, taken = record(func, inputs)
    return outputs, taken.pushforward(tangents)
