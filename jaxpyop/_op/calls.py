"""Reads the arguments of the public functions, and calls an op: directly, or as a part of the traced program.

Every public function ends here. A call reads its arguments each time, and a decorator only once. `UserCall` is the
equation of a program that runs the user's function. Its derivative is made on the tape (`taped`) or by the user's rules
(`user_rules`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _dtypes, _jaxcore
from jaxpyop._config import config
from jaxpyop._host import Environment, strip_library_frames
from jaxpyop._op.body import FilledBody, UserBody
from jaxpyop._op.primitive import Call, Linearization, Operands, bind, run_now
from jaxpyop._op.request import Op, make_op, mark_differentiable
from jaxpyop._op.taped import linearize_on_tape
from jaxpyop._op.traced import can_trace, trace, trace_if_possible
from jaxpyop._op.user_rules import linearize_by_rules
from jaxpyop._values import Inputs, check_closure, flatten_inputs, show_shape, without_weak_type

# Stands for an argument that was left out, where None has a meaning of its own.
NOT_GIVEN: Any = "<not given>"


def call_op(op: Op, args: Sequence[Any], kwargs: Mapping[str, Any], when: Any = None) -> Any:
    """Call an op with its inputs: directly, or as a part of the traced program."""
    if op.out and "out" in kwargs:
        raise TypeError(f"{op.title}: out=True passes the results by the keyword out; give yours another name")
    arrays, inputs = flatten_inputs(args, dict(kwargs), op.title)
    flag = _read_when(when, op.title)
    call = UserCall(op, inputs, has_flag=bool(flag))
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
        # Of the op's own results, only typed keys have an encoding.
        outs = [out if leaf.encoding is None else leaf.encoding.wrap(out) for out, leaf in zip(outs, spec.leaves)]
    # None for Tout=None, and a new list for [].
    return jax.tree.unflatten(spec.tree, outs)


def _stage(op: Op, inputs: Inputs, call: UserCall, arrays: Sequence[Any]) -> list[Any]:
    with jax.named_scope(op.name):
        # The mode is that of `jaxpyop.config` where the keyword does not say.
        if op.mode != "eager" and can_trace(op):
            into = functools.partial(trace, op, inputs, _call_host)
            found = into(arrays) if op.mode == "traced" else trace_if_possible(op, into, arrays)
            if found is not None:
                return found
        check_closure(op.func, op.title)
        for what, rule in op.rules.functions():
            check_closure(rule, op.title, what)
        given = arrays[call.operands.leading :]
        call.body.check_uses(given)
        if not op.stateful and call.body.may_use_traced_values(given):
            # As an op with effects it cannot be left out of a derivative. So it runs, and raises where it uses a value
            # that was traced.
            call = UserCall(dataclasses.replace(op, stateful=True), inputs, has_flag=call.operands.has_flag)
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
    make = functools.partial(make_op, api, tout=tout, name=name, has_when=not (when is None or when is True), **options)
    if func is None and inp is None:
        return _decorator(make, when)
    return call_op(make(func), _read_inp(inp, api), {}, when)


def _read_inp(inp: Any, api: str) -> Sequence[Any]:
    if isinstance(inp, (list, tuple)):
        return inp
    if isinstance(inp, (str, bytes, Mapping)) or inp is None:
        raise TypeError(
            f"{api}: inp is {inp!r}; expected a list of inputs, inp=[x, y], or [] (a single pytree p: inp=[p]); "
            f"to call the op later, {api}(Tout=...)(func)"
        )
    return [inp]


def _decorator(make: Callable[[Any], Op], when: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        # What Tout means depends on the settings of 64 bits, and the mode on the config.
        op_for = functools.cache(lambda x64, explicit, mode: make(func))
        settings = lambda: (_dtypes.x64_enabled(), _dtypes.explicit_x64_mode(), config.mode)
        op = op_for(*settings())

        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return call_op(op_for(*settings()), args, kwargs, when)

        return mark_differentiable(wrapper) if op.on_jax or op.rules.any_given else wrapper

    return decorate


# -------------------------------------------------------------- the user's call


class UserCall(Call):
    """Runs the user's function."""

    def __init__(self, op: Op, inputs: Inputs, *, has_flag: bool = False) -> None:
        super().__init__(
            (FilledBody if op.out else UserBody)(op, inputs),
            Environment(),
            on_jax=op.on_jax,
            copy=op.copy,
            has_effects=True,
            method=op.vmap_method,
            operands=Operands(has_flag=has_flag, writes_out=op.out),
        )

    def __repr__(self) -> str:
        return self.title

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        if self.on_jax and not self.op.rules.any_given:
            perturbed = perturbed[self.operands.leading :]
            return linearize_on_tape(self, self.body, perturbed, perturbed, has_flag=self.operands.has_flag)
        return linearize_by_rules(self, perturbed)
