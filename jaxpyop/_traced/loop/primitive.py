"""A `while` on values as a primitive: the loop itself, and its batching.

Without derivatives a `loop` is a `lax.while_loop`. Its derivatives are in `derivatives`.

Under `vmap` a loop stays a loop with one condition. It goes on while any element does, and the elements that are done
keep their state. So the iterations of a batch are counted once, and the states that a backward pass keeps are written
side by side.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore as core

# One flag for each constant, or for each value of the state.
Mask = tuple[bool, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """The two functions of a loop, as jaxprs without constants.

    Attributes:
        test: takes its constants and the state; says whether to go on.
        body: takes its constants and the state; returns the next state.
        test_consts: which of the loop's constants the test takes.
        body_consts: which of the loop's constants the body takes.
        const_count: how many constants the loop has.
        max_steps: how many iterations a backward pass may keep, or None.
        label: the op, and the user's file and line.
        differentiable: the body to take derivatives of, if that is not `body`: it has the same results.
        derived_loops: the batched loops and those with tangents that were made of this one.
    """

    test: Any
    body: Any
    test_consts: Sequence[int]
    body_consts: Sequence[int]
    const_count: int
    max_steps: int | None
    label: str
    differentiable: Any = None
    derived_loops: dict[Any, Loop] = dataclasses.field(default_factory=dict)

    def goes_on(self, consts: Sequence[Any], state: Sequence[Any]) -> Any:
        return core.run_jaxpr(self.test, *[consts[i] for i in self.test_consts], *state)[0]

    def step(self, consts: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        return core.run_jaxpr(self.body, *[consts[i] for i in self.body_consts], *state)

    def differentiable_step(self, consts: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        body = self.body if self.differentiable is None else self.differentiable
        return core.run_jaxpr(body, *[consts[i] for i in self.body_consts], *state)

    def derived(
        self, key: Any, goes_on: Any, step: Any, consts: Sequence[Any], state: Sequence[Any], differentiable: Any = None
    ) -> Loop:
        """Returns the loop of two functions of all constants and the state, recorded once for each key.

        Args:
            key: what the new loop is.
            goes_on: takes lists of the constants and of the state; says whether to go on.
            step: takes the same; returns the next state.
            consts: values like the constants of the new loop.
            state: values like its state.
            differentiable: the function to take derivatives of, if that is not `step`.
        """
        if key in self.derived_loops:
            return self.derived_loops[key]
        count = len(consts)
        structs = [_strong_struct_of(x) for x in (*consts, *state)]

        def record(function: Any) -> Any:
            jaxpr, closed_over = core.opened(
                core.make_jaxpr(lambda *xs: function(list(xs[:count]), list(xs[count:])), structs)
            )
            assert not closed_over, "a derived loop closes over nothing"
            return jaxpr

        test, body, everything = record(lambda *xs: [goes_on(*xs)]), record(step), range(count)
        careful = record(differentiable) if differentiable else None
        self.derived_loops[key] = Loop(test, body, everything, everything, count, self.max_steps, self.label, careful)
        return self.derived_loops[key]

    def __repr__(self) -> str:
        return f"Loop({self.label})"


def run_loop(
    goes_on: Callable[..., Any],
    step: Callable[..., Sequence[Any]],
    state: Sequence[Any],
    max_steps: int | None,
    label: str,
) -> list[Any]:
    """Runs a loop of functions that take the values of the state, and may close over traced values."""
    structs = list(map(_strong_struct_of, state))
    test = core.make_jaxpr(lambda *xs: [goes_on(*xs)], structs)
    return bind_jaxprs(test, core.make_jaxpr(step, structs), state, max_steps, label)


def bind_jaxprs(test: Any, body: Any, state: Sequence[Any], max_steps: int | None, label: str) -> list[Any]:
    """Runs a loop of two closed jaxprs of the state."""
    (open_test, of_test), (open_body, of_body) = core.opened(test), core.opened(body)
    split, count = len(of_test), len(of_test) + len(of_body)
    loop = Loop(open_test, open_body, range(split), range(split, count), count, max_steps, label)
    operands = [*of_test, *of_body, *state]
    if test.effects or body.effects:
        # JAX's own loop knows how to order effects, or refuses them.
        return _run(*operands, loop=loop)
    return loop_p.bind(*core.cast_to_common_axes(operands), loop=loop)


def with_64_bits(rule: Any) -> Any:
    """A rule of a loop for which JAX has 64 bits, because the numbers of Python in the state of a loop have them."""

    @functools.wraps(rule)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(True):
            return rule(*args, **kwargs)

    return wrapped


def pick(values: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    """Returns the values that are flagged."""
    return [value for value, flag in zip(values, mask, strict=True) if flag]


def put(values: Sequence[Any], mask: Sequence[bool], replacements: Sequence[Any]) -> list[Any]:
    """Returns the values, with those that are flagged replaced."""
    return core.replaced(values, [i for i, flag in enumerate(mask) if flag], replacements)


def _strong_struct_of(x: Any) -> jax.ShapeDtypeStruct:
    # The state of a loop has no weak types.
    aval = jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


@with_64_bits
def _run(*operands: Any, loop: Loop) -> list[Any]:
    consts, state = operands[: loop.const_count], operands[loop.const_count :]
    return jax.lax.while_loop(lambda s: loop.goes_on(consts, s), lambda s: loop.step(consts, s), list(state))


loop_p = core.Primitive("loop")
loop_p.multiple_results = True
loop_p.def_impl(_run)


@loop_p.def_abstract_eval
def _loop_avals(*avals: Any, loop: Loop) -> list[Any]:
    return [aval.update(weak_type=False) for aval in avals[loop.const_count :]]


core.mlir.register_lowering(loop_p, core.mlir.lower_fun(_run, multiple_results=True))


# ------------------------------------------------------- what depends on what


def _dependent_results(jaxpr: Any, mask: Sequence[bool]) -> list[bool]:
    """Tells which results depend on a flagged input."""
    flagged = {v for v, flag in zip(jaxpr.invars, mask, strict=True) if flag}

    def depends(atom: Any) -> bool:
        return not isinstance(atom, core.Literal) and atom in flagged

    for eqn in jaxpr.eqns:
        if any(map(depends, eqn.invars)):
            flagged.update(eqn.outvars)
    return list(map(depends, jaxpr.outvars))


def dependent_state(loop: Loop, consts: Sequence[bool], state: Sequence[bool]) -> Mask:
    """Returns the values of the state that come to depend on a flagged one in some iteration."""
    own, mask = [consts[i] for i in loop.body_consts], tuple(state)
    while True:
        found = _dependent_results(loop.body, [*own, *mask])
        wider = tuple(a or b for a, b in zip(mask, found, strict=True))
        if wider == mask:
            return mask
        mask = wider


def _test_depends(loop: Loop, consts: Sequence[bool], state: Sequence[bool]) -> bool:
    return _dependent_results(loop.test, [*(consts[i] for i in loop.test_consts), *state])[0]


# ------------------------------------------------------------------------ vmap


def batched_loop(loop: Loop, consts: Mask, state: Mask, size: int, operands: Sequence[Any]) -> Loop:
    """Returns the loop over a batch. Its flagged constants and values of the state have a leading axis."""
    test_depends = _test_depends(loop, consts, state)

    def mapped(function: Any, own: Sequence[int], c: Any, s: Any, out_axes: Any) -> Any:
        if not any([*(consts[i] for i in own), *state]):
            return function(c, s)
        axes = [[0 if flag else None for flag in mask] for mask in (consts, state)]
        return jax.vmap(function, axes, out_axes)(c, s)

    def each(c: Any, s: Any) -> Any:
        return mapped(loop.goes_on, loop.test_consts, c, s, 0 if test_depends else None)

    def goes_on(c: Any, s: Any) -> Any:
        return jnp.any(each(c, s)) if test_depends else each(c, s)

    def step_of(function: Any, c: Any, s: Any) -> list[Any]:
        return mapped(function, loop.body_consts, c, s, [0 if flag else None for flag in state])

    def step(c: Any, s: Any) -> list[Any]:
        new = step_of(loop.step, c, s)
        return _where(each(c, s), new, s) if test_depends else new

    def differentiable(c: Any, s: Any) -> list[Any]:
        going = each(c, s)
        new = step_of(loop.differentiable_step, _of_going(going, c, consts), _of_going(going, s, state))
        return _where(going, new, s)

    count = loop.const_count
    careful = differentiable if test_depends and any(core.is_inexact(jax.typeof(x)) for x in operands) else None
    key = ("batched", consts, state, size)
    return loop.derived(key, goes_on, step, operands[:count], operands[count:], careful)


def _where(going: Any, new: Sequence[Any], old: Sequence[Any]) -> list[Any]:
    shape = lambda x: (len(going), *[1] * (x.ndim - 1))
    return [jnp.where(going.reshape(shape(x)), x, y) for x, y in zip(new, old, strict=True)]


def _of_going(going: Any, values: Sequence[Any], mask: Mask) -> list[Any]:
    """Gives the elements of a batch that are done the values of one that goes on.

    The next state of such an element is dropped. But the derivative of its iteration, times a cotangent of zero, is NaN
    if it is infinite. The derivative at the values of an element that goes on is needed anyway.
    """
    own, first = pick(values, mask), jax.lax.argmax(going, 0, np.int32)  # of one type with and without x64
    others = [jnp.broadcast_to(jax.lax.stop_gradient(x[first]), x.shape) for x in own]
    return put(values, mask, _where(going, own, others))


def with_batch_axes(args: Sequence[Any], dims: Sequence[int | None], mask: Sequence[bool]) -> tuple[int, list[Any]]:
    """Returns the size of a batch, and the values with its axis, if they have or need one, as the first."""
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    return size, [
        jnp.moveaxis(x, dim, 0) if dim is not None else jnp.broadcast_to(x, (size, *jnp.shape(x))) if flag else x
        for x, dim, flag in zip(args, dims, mask, strict=True)
    ]


@with_64_bits
def _batch(args: Sequence[Any], dims: Sequence[int | None], *, loop: Loop) -> tuple[list[Any], list[int | None]]:
    mask = tuple(d is not None for d in dims)
    consts = mask[: loop.const_count]
    state = dependent_state(loop, consts, mask[loop.const_count :])
    if _test_depends(loop, consts, state):
        # An element that is done keeps its state, so each has one of its own.
        state = (True,) * len(state)
    size, operands = with_batch_axes(args, dims, (*consts, *state))
    outs = loop_p.bind(*operands, loop=batched_loop(loop, consts, state, size, operands))
    return outs, [0 if flag else None for flag in state]


core.batching.primitive_batchers[loop_p] = _batch
