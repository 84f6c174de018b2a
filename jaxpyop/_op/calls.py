"""Reads the arguments of the public functions, and calls an op: directly, or as a part of the traced program.

Every public function ends here. A call reads its arguments each time, and a decorator only once. The three calls of a
py_function run the body, run it on the tape and keep a record, and answer from that record:

- `UserCall` runs the user's function.
- `RecordingCall` runs a body on the tape, and adds the receipt of the record as a result.
- `ReplayCall` answers a derivative from the record of a receipt. If the record is gone, it runs the body again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._config import config
from jaxpyop._host import Environment, strip_library_frames
from jaxpyop._op.body import Body, FilledBody, Pullback, Pushforward, RecordedDerivative, UserBody
from jaxpyop._op.primitive import (
    NO_RECORD,
    RECEIPT,
    RECORDS,
    Batching,
    Call,
    HandedRecord,
    Linearization,
    Operands,
    bind,
    find_record,
    receipt_of,
    run_now,
)
from jaxpyop._op.request import Op, make_op, mark_differentiable
from jaxpyop._op.traced import trace, trace_if_possible
from jaxpyop._op.user_rules import FwdCall, LinearCall, LinearFunction, linearize_by_rules
from jaxpyop._op.values import Inputs, as_jax, check_closure, flatten_inputs, show_shape, without_weak_type
from jaxpyop._tape import Record, record

# Stands for an argument that was left out, where None has a meaning of its own.
NOT_GIVEN: Any = "<not given>"


def call_op(op: Op, args: Sequence[Any], kwargs: Mapping[str, Any], when: Any = None) -> Any:
    """Call an op with its inputs: directly, or as a part of the traced program."""
    if op.out and "out" in kwargs:
        raise TypeError(f"{op.title}: out=True passes the results by the keyword out; give yours another name")
    arrays, inputs = flatten_inputs(args, dict(kwargs), op.title)
    flag = _read_when(when, op.title)
    call = UserCall(op, inputs, conditional=bool(flag))
    arrays = [*flag, *arrays]
    if _jaxcore.is_eager() and not any(isinstance(a, _jaxcore.Tracer) for a in arrays):
        try:
            outs = run_now(call, arrays)
        except BaseException as error:
            # The same error, without our frames.
            raise strip_library_frames(error, op.title)  # noqa: B904
    else:
        outs = _stage(op, inputs, call, arrays)
    spec = op.spec
    if spec.returned_spec is not None:
        outs = [out if leaf.encoding is None else leaf.encoding.wrap(out) for out, leaf in zip(outs, spec.leaves)]
    # None for Tout=None, and a new list for [].
    return jax.tree.unflatten(spec.tree, outs)


def _stage(op: Op, inputs: Inputs, call: UserCall, arrays: Sequence[Any]) -> list[Any]:
    with jax.named_scope(op.name):
        # The mode is that of `jaxpyop.config` where the keyword does not say.
        if op.mode != "eager":
            into = functools.partial(trace, op, inputs, _call_host)
            if call.operands.conditional:
                into = functools.partial(_trace_when, op, inputs)
            found = into(arrays) if op.mode == "traced" else trace_if_possible(op, into, arrays)
            if found is not None:
                return found
        check_closure(op.func, op.title)
        for what, rule in op.rules.functions():
            check_closure(rule, op.title, what)
        call.body.check_uses(arrays)
        return bind(call, *map(without_weak_type, arrays))


def _call_host(op: Op, array: Any) -> Any:
    """Calls the op that raises the errors of a traced program, with the number of the one to raise."""
    arrays, inputs = flatten_inputs([array], {}, op.title)
    call, raising = UserCall(op, inputs), cast(Any, op.func)
    # The error names the user's function, since a file and line of ours would say nothing to its reader.
    call.func = raising.traced
    return bind(call, *arrays)[0]


def _read_when(when: Any, title: str) -> list[Any]:
    """The inputs that `when=` adds: one, or none if the op always runs.

    Raises:
        TypeError: `when` is not a scalar boolean.
    """
    if when is None or when is True:
        return []
    array = when if isinstance(when, jax.Array) else np.asarray(when)
    if array.shape != () or array.dtype != np.bool_:
        got = f"{array.dtype} of shape {show_shape(array.shape)}" if isinstance(when, jax.Array) else repr(when)
        raise TypeError(f"{title}: when is {got}; expected one boolean, traced or not, such as when=step % 100 == 0")
    return [array]


def _trace_when(op: Op, inputs: Inputs, arrays: Sequence[Any]) -> list[Any]:
    """Trace a body of `mode="traced"` into a `cond` on the first array."""
    flag, *rest = arrays
    # `vmap` runs both sides of a `cond` for each element. One that `when=` leaves out must not raise.
    call_host = lambda raising, number: _call_host(raising, jnp.where(flag, number, 0))
    run = functools.partial(trace, op, inputs, call_host, rest)
    shapes = jax.eval_shape(run)

    def in_common_axes(outs: Sequence[Any]) -> list[Any]:
        # Inside shard_map, both branches need the same varying axes.
        return _jaxcore.cast_to_common_axes([*arrays, *outs])[len(arrays) :]

    def absent() -> list[Any]:
        return in_common_axes([jnp.full(s.shape, leaf.fill, s.dtype) for s, leaf in zip(shapes, op.spec.leaves)])

    return jax.lax.cond(flag, lambda: in_common_axes(run()), absent)


def apply_or_decorate(api: str, func: Any, inp: Any, tout: Any, name: Any, *, when: Any, **options: Any) -> Any:
    """Make an op and call it, or return a decorator if there is neither `func` nor `inp`.

    The options are passed to `make_op`.
    """
    if tout is NOT_GIVEN:
        raise TypeError(
            f"{api}: Tout was not given; write {api}(func, inp, Tout=jnp.float32), or Tout=None for no result; "
            f"as a decorator, @{api}(Tout=jnp.float32)"
        )
    leaves = jax.tree.leaves(inp)
    if leaves and all(isinstance(x, (jax.ShapeDtypeStruct, np.dtype, type(jnp.float32))) for x in leaves):
        raise TypeError(
            f"{api}: inp is {inp!r}, which declares results and holds no inputs; the order is func, inp, Tout "
            f"(jax.pure_callback has another): write {api}(func, [x, y], {inp!r})"
        )
    make = functools.partial(make_op, api, tout=tout, name=name, **options)
    if func is None and inp is None:
        return _decorator(make, when)
    return call_op(make(func), _read_inp(inp, api), {}, when)


def _read_inp(inp: Any, api: str) -> Sequence[Any]:
    if isinstance(inp, (list, tuple)):
        return inp
    if isinstance(inp, (str, bytes, Mapping)) or inp is None:
        raise TypeError(
            f"{api}: inp is {inp!r}; expected a list of inputs, inp=[x, y], or [] (a single pytree p: inp=[p])"
        )
    return [inp]


def _decorator(make: Callable[[Any], Op], when: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        # What Tout means depends on x64, and the mode on the config.
        op_for = functools.cache(lambda x64, mode: make(func))
        op = op_for(_jaxcore.x64_enabled(), config.mode)

        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return call_op(op_for(_jaxcore.x64_enabled(), config.mode), args, kwargs, when)

        return mark_differentiable(wrapper) if op.on_jax or op.rules.any_given else wrapper

    return decorate


# -------------------------------------------------------------------- the calls


class UserCall(Call):
    """Runs the user's function."""

    def __init__(self, op: Op, inputs: Inputs, *, conditional: bool = False) -> None:
        self.user_body = (FilledBody if op.out else UserBody)(op, inputs)
        flags = int(conditional)
        super().__init__(
            self.user_body,
            Environment(),
            on_jax=op.on_jax,
            copy=op.copy,
            has_effects=True,
            batching=Batching(op.vmap_method),
            operands=Operands(flags, flags, conditional=conditional, writes_out=op.out),
        )
        self.is_declared_linear = op.rules.transpose is not None

    def __repr__(self) -> str:
        return self.title

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        rules = self.op.rules
        if self.on_jax and not rules.any_given:
            perturbed = perturbed[self.operands.leading_inputs :]
            return _record_and_replay(self, self.body, perturbed, perturbed, self.operands.conditional)
        if rules.fwd is None and self.op.failures is None:
            return self.linearize_after(self, perturbed)
        # Without `fwd`, a plain FwdCall runs the function itself, for its receipt, which tells what failed.
        return self.linearize_after(FwdCall(self, plain=rules.fwd is None), perturbed)

    # An attribute because a `FwdCall` asks for it too, and may not import `choose`, which imports it.
    linearize_after = linearize_by_rules

    def linear_part(self, floating: tuple[bool, ...]) -> Call:
        flags = self.operands.leading_inputs
        return LinearCall(LinearFunction(self.body, floating[flags:]), self.environment, flags)


class RecordingCall(Call):
    """Runs a body on the tape, for the inputs that `perturbed` marks. Its last result is the record's receipt."""

    def __init__(self, body: Body, environment: Environment, perturbed: tuple[bool, ...], conditional: bool) -> None:
        operands = Operands(int(conditional), int(conditional), extra_results=(RECEIPT,), conditional=conditional)
        super().__init__(body, environment, label="jvp({})", has_effects=True, operands=operands)
        self.perturbed = perturbed
        # A worker may have the record. With `when=` there may be none.
        self.can_hand_over = self.op.executor is None and not conditional

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if not self.runs(arrays):
            return self.absent_results(arrays, lead)
        RECORDS.make_room()
        outs, taken = record(self.body, as_jax(arrays[self.operands.unread_inputs :]), self.perturbed)
        if self.hands_over:
            # A cut program takes the record itself from one of its steps to another.
            return [*outs, HandedRecord(taken)]
        return [*outs, receipt_of(RECORDS.put(taken, once_made=self.op.stateful, owner=self.op.name), outs)]

    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        return [*super().from_worker(values, arrays, lead), receipt_of(NO_RECORD, values)]

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        # A second derivative reads the same record as the first, so it is made for the inputs of both.
        perturbed = perturbed[self.operands.leading_inputs :]
        recorded = tuple(a or b for a, b in zip(self.perturbed, perturbed))
        return _record_and_replay(self, self.body, perturbed, recorded, self.operands.conditional)


class ReplayCall(Call):
    """Answers a derivative from a record. Its first input is the record's receipt."""

    body: RecordedDerivative
    takes_records = True

    def __init__(self, body: RecordedDerivative, environment: Environment) -> None:
        super().__init__(body, environment, label="jvp({})", operands=Operands(body.leading_inputs))
        self.conditional = body.leading_inputs > 1

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        ran_there = bool(np.all(np.asarray(arrays[0])[..., 0] == NO_RECORD)) and not self.op.stateful
        return arrays if ran_there else None

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if isinstance(arrays[0], HandedRecord):
            return self._answer(arrays[0].record, arrays)
        token = int(np.asarray(arrays[0])[0])
        if token == 0:
            # vmap of cond also runs the backward pass of the branch that was not taken, on residuals filled with zeros.
            return self.body.absent_results(arrays)
        if (taken := find_record(self.op, token)) is not None:
            return self._answer(taken, arrays)
        return self.body(arrays[0], *as_jax(arrays[1:]))

    def _answer(self, taken: Record, arrays: Sequence[Any]) -> list[Any]:
        # A record may move arrays to where they are needed, whatever `jax_transfer_guard` says.
        return _jaxcore.with_transfers(self.body.answer, taken, arrays)

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        if self.op.stateful:
            raise NotImplementedError(
                f"{self.title}: a second derivative runs func again, which a stateful op does not allow; "
                "pass stateful=False"
            )
        # The receipt has no tangent, so the derivative is that of the body behind the record.
        perturbed = perturbed[self.operands.leading_inputs :]
        return _record_and_replay(self, self.body.derivative, perturbed, perturbed, self.conditional, skip=1)

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> Call:
        # We ask for `Pullback`, because a program from before a reload of jaxpyop has its own class `Pushforward`.
        derivative = self.body.derivative
        if isinstance(derivative, Pullback):
            return super().transposed(nonzero_cotangents)
        pullback = Pullback(derivative.base, nonzero_cotangents, derivative.perturbed)
        return ReplayCall(RecordedDerivative(pullback, self.body.recorded, self.conditional), self.environment)


def _record_and_replay(
    call: Call, body: Body, perturbed: tuple[bool, ...], recorded: tuple[bool, ...], conditional: bool, skip: int = 0
) -> Linearization:
    """Return the linearization of a call that runs `body`: record a run of the body, and answer from the record.

    Args:
        call: the call.
        body: the body.
        perturbed: which inputs of the body have tangents.
        recorded: for which inputs the body is recorded.
        conditional: whether the flag of `when=` comes before the inputs of the body.
        skip: how many inputs the call has before these.
    """
    forward = RecordingCall(body, call.environment, recorded, conditional)
    derivative = RecordedDerivative(Pushforward(body, perturbed), recorded, conditional)
    return Linearization(forward, ReplayCall(derivative, call.environment), skip=skip)
