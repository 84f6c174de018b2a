"""A loop on values as a primitive of JAX, with derivatives of any order, forward and reverse.

Without derivatives a `loop` is a `lax.while_loop`. The first value of its state says whether to go on.

Under `vmap` a loop stays a loop with one condition. It goes on while any element does, and the elements that are done
keep their state. So the iterations of a batch are counted once, and the states that a backward pass keeps are written
side by side.

The tangents are a second loop, over the state and its tangents. It is linear in the tangents, so it can be transposed.
Its transpose walks the iterations from the last to the first. The loop is run once more, and the state before each
iteration is kept, in arrays of `max_steps` rows. All of these are loops again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _dtypes
from jaxpyop import _jaxcore as core
from jaxpyop._jaxcore import ad

# One flag for each constant, or for each value of the state.
Mask = tuple[bool, ...]
# Which constants, and which values of the state, have tangents.
Perturbed = tuple[Mask, Mask]


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """The body of a loop, as a jaxpr without constants.

    Attributes:
        body: takes the loop's constants and the state; returns the next state.
        const_count: how many constants the loop has.
        max_steps: how many iterations a backward pass may keep, or None.
        label: the op, and the user's file and line.
        careful: the body to take derivatives of, if that is not `body`: it has the same results.
        tangents_of: the loop of which this one has the tangents, and which values have some.
        derived_loops: the batched loops and those with tangents that were made of this one.
    """

    body: Any
    const_count: int
    max_steps: int | None
    label: str
    careful: Any = None
    tangents_of: tuple[Loop, Perturbed] | None = None
    derived_loops: dict[Any, Loop] = dataclasses.field(default_factory=dict)

    def step(self, consts: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        return core.run_jaxpr(self.body, *consts, *state)

    def careful_step(self, consts: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        return core.run_jaxpr(self.body if self.careful is None else self.careful, *consts, *state)

    def derived(
        self, key: Any, step: Any, consts: Sequence[Any], state: Sequence[Any], careful: Any = None, of: Any = None
    ) -> Loop:
        """Returns the loop of a function of the constants and the state, recorded once for each key.

        Args:
            key: what the new loop is.
            step: takes lists of the constants and of the state; returns the next state.
            consts: values like the constants of the new loop.
            state: values like its state.
            careful: the function to take derivatives of, if that is not `step`.
            of: its `tangents_of`.
        """
        count, structs = len(consts), list(map(_strong_struct_of, (*consts, *state)))

        def record(function: Any) -> Any:
            closed = core.make_jaxpr(lambda *xs: function(list(xs[:count]), list(xs[count:])), structs)
            jaxpr, closed_over = core.opened(closed)
            assert not closed_over, "a derived loop closes over nothing"
            return jaxpr

        if key not in self.derived_loops:
            bodies = record(step), record(careful) if careful else None
            self.derived_loops[key] = Loop(bodies[0], count, self.max_steps, self.label, bodies[1], of)
        return self.derived_loops[key]

    def __repr__(self) -> str:
        return f"Loop({self.label})"


def run_loop(step: Callable[..., Any], state: Sequence[Any], max_steps: int | None, label: str) -> list[Any]:
    """Runs a loop of a function of the values of the state, which may close over traced values."""
    return bind_loop(core.make_jaxpr(step, list(map(_strong_struct_of, state))), state, max_steps, label)


def bind_loop(body: Any, state: Sequence[Any], max_steps: int | None, label: str) -> list[Any]:
    """Runs a loop of a closed jaxpr of the state."""
    jaxpr, consts = core.opened(body)
    operands, loop = [*consts, *state], Loop(jaxpr, len(consts), max_steps, label)
    if body.effects:
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


def _pick(values: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    """Returns the values that are flagged."""
    return [value for value, flag in zip(values, mask, strict=True) if flag]


def _put(values: Sequence[Any], mask: Sequence[bool], replacements: Sequence[Any]) -> list[Any]:
    """Returns the values, with those that are flagged replaced."""
    return core.replaced(values, [i for i, flag in enumerate(mask) if flag], replacements)


def _strong_struct_of(x: Any) -> jax.ShapeDtypeStruct:
    # The state of a loop has no weak types.
    aval = jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _goes_on(state: Sequence[Any]) -> Any:
    return jnp.any(state[0]) if jnp.ndim(state[0]) else state[0]


@with_64_bits
def _run(*operands: Any, loop: Loop) -> list[Any]:
    consts, state = operands[: loop.const_count], operands[loop.const_count :]
    return jax.lax.while_loop(_goes_on, lambda s: loop.step(consts, s), list(state))


loop_p = core.Primitive("loop")
loop_p.multiple_results = True
loop_p.def_impl(_run)


@loop_p.def_abstract_eval
def _loop_avals(*avals: Any, loop: Loop) -> list[Any]:
    return [aval.update(weak_type=False) for aval in avals[loop.const_count :]]


core.mlir.register_lowering(loop_p, core.mlir.lower_fun(_run, multiple_results=True))


def _dependent_state(loop: Loop, consts: Sequence[bool], state: Sequence[bool]) -> Mask:
    """Returns the values of the state that come to depend on a flagged one in some iteration."""
    mask = tuple(state)
    while True:
        flagged = {v for v, flag in zip(loop.body.invars, (*consts, *mask), strict=True) if flag}
        depends = lambda atom, flagged=flagged: not isinstance(atom, core.Literal) and atom in flagged
        for eqn in loop.body.eqns:
            if any(map(depends, eqn.invars)):
                flagged.update(eqn.outvars)
        wider = tuple(a or depends(out) for a, out in zip(mask, loop.body.outvars, strict=True))
        if wider == mask:
            return mask
        mask = wider


def _needed_state(loop: Loop, outs: Sequence[bool]) -> Mask:
    """Returns the values of the state on which a flagged one comes to depend in some iteration, and has a slope in."""
    mask = tuple(outs)
    while True:
        body, used = core.without_dead_code(loop.body, mask)
        needed = {v for v in body.outvars if not isinstance(v, core.Literal)}
        for eqn in reversed(body.eqns):
            if not needed.isdisjoint(eqn.outvars):
                needed.update(v for v in eqn.invars if not isinstance(v, core.Literal) and _dtypes.is_inexact(v.aval))
        of_inputs = _put([False] * len(used), used, [v in needed for v in body.invars])
        wider = tuple(a or b for a, b in zip(mask, of_inputs[loop.const_count :], strict=True))
        if wider == mask:
            return mask
        mask = wider


# ------------------------------------------------------------------------ vmap


def _batched_loop(loop: Loop, consts: Mask, state: Mask, size: int, operands: Sequence[Any]) -> Loop:
    """Returns the loop over a batch. Its flagged constants and values of the state have a leading axis."""
    axes, count = [[0 if flag else None for flag in mask] for mask in (consts, state)], loop.const_count

    def step(c: Any, s: Any) -> list[Any]:
        new = jax.vmap(loop.step, axes, axes[1])(c, s)
        return _where(_going(s), new, s) if state[0] else new

    def careful(c: Any, s: Any) -> list[Any]:
        one = jax.vmap(loop.careful_step, axes, axes[1])
        if not state[0]:
            return one(c, s)
        return _where(_going(s), one(_of_going(_going(s), c, consts), _of_going(_going(s), s, state)), s)

    has_slopes = any(_dtypes.is_inexact(jax.typeof(x)) for x in operands)
    return loop.derived(
        ("batched", consts, state, size), step, operands[:count], operands[count:], careful if has_slopes else None
    )


def _going(state: Sequence[Any]) -> Any:
    """Which elements of a batch go on. Each may be a batch itself."""
    return jnp.any(state[0].reshape(len(state[0]), -1), axis=1)


def _where(going: Any, new: Sequence[Any], old: Sequence[Any]) -> list[Any]:
    shape = lambda x: (len(going), *[1] * (x.ndim - 1))
    return [jnp.where(going.reshape(shape(x)), x, y) for x, y in zip(new, old, strict=True)]


def _of_going(going: Any, values: Sequence[Any], mask: Mask) -> list[Any]:
    """Gives the elements of a batch that are done the values of one that goes on.

    The next state of such an element is dropped. But the derivative of its iteration, times a cotangent of zero, is NaN
    if it is infinite. The derivative at the values of an element that goes on is needed anyway.
    """
    own, first = _pick(values, mask), jax.lax.argmax(going, 0, np.int32)  # of one type with and without x64
    others = [jnp.broadcast_to(jax.lax.stop_gradient(x[first]), x.shape) for x in own]
    return _put(values, mask, _where(going, own, others))


@with_64_bits
def _batch(args: Sequence[Any], dims: Sequence[int | None], *, loop: Loop) -> tuple[list[Any], list[int | None]]:
    mask = tuple(d is not None for d in dims)
    consts = mask[: loop.const_count]
    state = _dependent_state(loop, consts, mask[loop.const_count :])
    if state[0]:
        # An element that is done keeps its state, so each has one of its own.
        state = (True,) * len(state)
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    operands = [
        jnp.moveaxis(x, dim, 0) if dim is not None else jnp.broadcast_to(x, (size, *jnp.shape(x))) if flag else x
        for x, dim, flag in zip(args, dims, (*consts, *state), strict=True)
    ]
    outs = loop_p.bind(*operands, loop=_batched_loop(loop, consts, state, size, operands))
    return outs, [0 if flag else None for flag in state]


core.batching.primitive_batchers[loop_p] = _batch


# -------------------------------------------------------------------- tangents


def _perturbed_step(loop: Loop, consts: Sequence[Any], state: Sequence[Any], perturbed: Perturbed) -> Any:
    """Returns an iteration as a function of the perturbed values alone, and these values.

    The function returns the perturbed values of the next state, and the others.
    """

    def step(c: Sequence[Any], s: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        new = loop.careful_step(_put(consts, perturbed[0], c), _put(state, perturbed[1], s))
        return _pick(new, perturbed[1]), _pick(new, [not flag for flag in perturbed[1]])

    return step, (_pick(consts, perturbed[0]), _pick(state, perturbed[1]))


def _with_tangents(loop: Loop, consts: Sequence[Any], state: Sequence[Any], perturbed: Perturbed) -> Loop:
    """Returns the loop whose constants and whose state are those of a loop, and then their tangents."""
    count, size = len(consts), len(state)

    def step(c: Any, s: Any) -> list[Any]:
        function, primals = _perturbed_step(loop, c[:count], s[:size], perturbed)
        new, tangents, others = jax.jvp(function, primals, (c[count:], s[size:]), has_aux=True)
        all_new = _put([None] * size, perturbed[1], new)
        return [*_put(all_new, [not flag for flag in perturbed[1]], others), *tangents]

    like = [*consts, *_pick(consts, perturbed[0])], [*state, *_pick(state, perturbed[1])]
    return loop.derived(("tangents", perturbed), step, *like, of=(loop, perturbed))


@with_64_bits
def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, loop: Loop) -> tuple[list[Any], list[Any]]:
    count, nonzero = loop.const_count, tuple(not core.is_zero(t) for t in tangents)
    consts, state = primals[:count], primals[count:]
    reached = _dependent_state(loop, nonzero[:count], nonzero[count:])
    perturbed = nonzero[:count], tuple(flag and _dtypes.is_inexact(jax.typeof(x)) for flag, x in zip(reached, state))
    full = [_dtypes.zeros_of(jax.typeof(x)) if core.is_zero(t) else t for t, x in zip(tangents, primals, strict=True)]
    of_consts, of_state = _pick(full[:count], perturbed[0]), _pick(full[count:], perturbed[1])
    outs = loop_p.bind(*primals, loop=loop)
    # The state is computed once more, so that this loop is linear in the tangents.
    with_tangents = _with_tangents(loop, consts, state, perturbed)
    found = loop_p.bind(*consts, *of_consts, *state, *of_state, loop=with_tangents)[len(state) :]
    return outs, _put([ad.Zero(core.tangent_aval(out)) for out in outs], perturbed[1], found)


ad.primitive_jvps[loop_p] = _jvp


# -------------------------------------------------------------- the backward pass


def _kept_states(loop: Loop, consts: Sequence[Any], state: Sequence[Any], bound: int) -> tuple[Any, list[Any], Any]:
    """Runs at most `bound` iterations.

    Returns:
        How many there were, the states before each of them, in arrays of `bound` rows, and the last state.
    """
    count = len(state)

    def step(_: Any, i: Any, *xs: Any) -> list[Any]:
        values, kept = xs[:count], xs[count:]
        new = loop.step(consts, values)
        rows = [jax.lax.dynamic_update_index_in_dim(k, v, i, 0) for k, v in zip(kept, values, strict=True)]
        return [(i + 1 < bound) & _goes_on(new), i + 1, *new, *rows]

    empty = [jnp.broadcast_to(x, (bound, *jnp.shape(x))) for x in state]
    _, steps, *rest = run_loop(step, [_goes_on(state), jnp.int32(0), *state, *empty], bound, loop.label)
    return steps, rest[count:], rest[:count]


def _pull_back(
    loop: Loop, consts: Sequence[Any], state: Sequence[Any], cts: Sequence[Any], perturbed: Perturbed
) -> list[Any]:
    bound = loop.max_steps
    if bound is None:
        raise NotImplementedError(
            f"{loop.label}: a backward pass through a loop on values keeps the state of each iteration, and needs to "
            "know how many there can be; pass max_steps=, or mode='eager' (forward mode, jax.jvp and jax.jacfwd, needs "
            "none)"
        )
    steps, kept, last = _kept_states(loop, consts, state, bound)
    count = sum(perturbed[0])

    def step_back(_: Any, i: Any, *cts: Any) -> list[Any]:
        """The cotangents before one iteration. Those of the constants add up."""
        before = [jax.lax.dynamic_index_in_dim(k, i - 1, keepdims=False) for k in kept]
        step, primals = _perturbed_step(loop, consts, before, perturbed)
        _, pullback, _ = jax.vjp(step, *primals, has_aux=True)
        of_consts, of_state = pullback(list(cts[count:]))
        return [i > 1, i - 1, *map(jnp.add, cts[:count], of_consts), *of_state]

    # The derivative of a loop with more iterations than the bound would leave some out: it is NaN instead.
    cts = [jnp.where(_goes_on(last), np.nan, ct) for ct in cts]
    zeros = [_dtypes.zeros_of(jax.typeof(c)) for c in _pick(consts, perturbed[0])]
    return run_loop(step_back, [steps > 0, steps, *zeros, *cts], bound, loop.label)[2:]


@with_64_bits
def _transpose(cts: Sequence[Any], *operands: Any, loop: Loop) -> list[Any]:
    if loop.tangents_of is None:
        raise NotImplementedError(f"{loop.label}: a loop is transposed that is not the derivative of one")
    of, perturbed = loop.tangents_of
    size, split = len(perturbed[1]), sum(perturbed[0])
    consts, state = operands[: of.const_count], operands[loop.const_count : loop.const_count + size]
    avals = _pick([jax.typeof(x) for x in state], perturbed[1])
    full = [_dtypes.zeros_of(a) if type(ct) is ad.Zero else ct for ct, a in zip(cts[size:], avals, strict=True)]
    # The slope of a value that overflows is infinite, and times a cotangent of zero it would be NaN.
    needed = _needed_state(of, _put([False] * size, perturbed[1], [type(ct) is not ad.Zero for ct in cts[size:]]))
    is_needed = _pick(needed, perturbed[1])
    both = tuple(a and b for a, b in zip(perturbed[1], needed, strict=True))
    found = _pull_back(of, consts, state, _pick(full, is_needed), (perturbed[0], both))
    of_state = _put(list(map(_dtypes.zeros_of, avals)), is_needed, found[split:])
    of_all = [*[None] * of.const_count, *found[:split], *[None] * size, *of_state]
    return [ct if ad.is_undefined_primal(x) else None for ct, x in zip(of_all, operands, strict=True)]


ad.primitive_transposes[loop_p] = _transpose
