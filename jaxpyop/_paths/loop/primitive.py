"""A `while` on values as a primitive that can be differentiated both ways.

Without derivatives `loop` is a `lax.while_loop`. Its tangents come from a second loop, over the state and its
tangents, which is bound as a primitive of its own (`loop_tangents`): it is linear in the tangents, so it can be
transposed, and its transpose walks the turns backwards (see `pull`). What those walks are made of are loops again, so
derivatives of any order exist.

Under `vmap` a loop stays a loop with one condition: it goes on while any element does, and the elements that are done
keep their state. Thus the turns of a batch are counted once, and the states that a backward pass keeps are written
side by side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop import _jaxcore as core
from jaxpyop._jaxcore import ad

Marks = tuple[bool, ...]  # one per constant, or one per value of the state


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """The two functions of a loop, as jaxprs without constants.

    Attributes:
        test: of its constants and the state: whether to go on.
        body: of its constants and the state: the next state.
        test_consts: which of the loop's constants are the test's.
        body_consts: which are the body's.
        consts: how many constants there are.
        max_steps: how many turns a backward pass may keep, or None.
        place: the op, and the user's file and line.
        made: the loops that were derived from this one.
    """

    test: Any
    body: Any
    test_consts: Sequence[int]
    body_consts: Sequence[int]
    consts: int
    max_steps: int | None
    place: str
    made: dict[Any, Loop] = dataclasses.field(default_factory=dict)

    def goes_on(self, consts: Sequence[Any], state: Sequence[Any]) -> Any:
        return core.run_jaxpr(self.test, *[consts[i] for i in self.test_consts], *state)[0]

    def step(self, consts: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        return core.run_jaxpr(self.body, *[consts[i] for i in self.body_consts], *state)

    def derived(self, key: Any, make: Callable[[], Loop]) -> Loop:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def __repr__(self) -> str:
        return f"Loop({self.place})"


def loop_on(
    goes_on: Callable[..., Any],
    step: Callable[..., Sequence[Any]],
    state: Sequence[Any],
    max_steps: int | None,
    place: str,
) -> list[Any]:
    """Run a loop whose functions take the state's values, and may close over traced ones."""
    structs = [jax.ShapeDtypeStruct(jnp.shape(x), jax.typeof(x).dtype) for x in state]
    test = core.record(lambda *xs: [goes_on(*xs)], structs)
    body = core.record(step, structs)
    return bind_jaxprs(test, body, state, max_steps, place)


def bind_jaxprs(test: Any, body: Any, state: Sequence[Any], max_steps: int | None, place: str) -> list[Any]:
    """Run a loop of two closed jaxprs of the state."""
    (open_test, of_test), (open_body, of_body) = core.opened(test), core.opened(body)
    split, count = len(of_test), len(of_test) + len(of_body)
    loop = Loop(open_test, open_body, range(split), range(split, count), count, max_steps, place)
    operands = [*of_test, *of_body, *state]
    if test.effects or body.effects:  # which JAX's own loop knows how to order, or refuses
        return _run(*operands, loop=loop)
    return loop_p.bind(*core.cast_to_common_axes(operands), loop=loop)


def _made(goes_on: Any, step: Any, consts: Sequence[Any], state: Sequence[Any], like: Loop) -> Loop:
    """A loop of functions of lists of all constants and of the state."""
    count = len(consts)

    def record(function: Any) -> Any:
        closed = core.record(lambda *xs: function(list(xs[:count]), list(xs[count:])), [*consts, *state])
        jaxpr, own = core.opened(closed)
        assert not own, "a derived loop closes over nothing"
        return jaxpr

    everything = range(count)
    return Loop(
        record(lambda *xs: [goes_on(*xs)]), record(step), everything, everything, count, like.max_steps, like.place
    )


def struct_of(x: Any) -> jax.ShapeDtypeStruct:
    aval = jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


# ------------------------------------------------------- what depends on what


def _reached(jaxpr: Any, marks: Sequence[bool]) -> list[bool]:
    """Which results depend on a marked input."""
    marked = {v for v, mark in zip(jaxpr.invars, marks, strict=True) if mark}
    for eqn in jaxpr.eqns:
        if any(not isinstance(a, core.Literal) and a in marked for a in eqn.invars):
            marked.update(eqn.outvars)
    return [not isinstance(a, core.Literal) and a in marked for a in jaxpr.outvars]


def _spread(loop: Loop, consts: Sequence[bool], state: Sequence[bool]) -> Marks:
    """The state's values that come to depend on a marked one in some turn."""
    own, marks = [consts[i] for i in loop.body_consts], tuple(state)
    while True:
        found = _reached(loop.body, [*own, *marks])
        wider = tuple(a or b for a, b in zip(marks, found, strict=True))
        if wider == marks:
            return marks
        marks = wider


# ------------------------------------------------------------- the loop itself


def _run(*operands: Any, loop: Loop) -> list[Any]:
    consts, state = operands[: loop.consts], operands[loop.consts :]
    return jax.lax.while_loop(lambda s: loop.goes_on(consts, s), lambda s: loop.step(consts, s), list(state))


loop_p = core.Primitive("loop")
loop_p.multiple_results = True
loop_p.def_impl(_run)


@loop_p.def_abstract_eval
def _loop_avals(*avals: Any, loop: Loop) -> list[Any]:
    return [aval.update(weak_type=False) for aval in avals[loop.consts :]]


core.mlir.register_lowering(loop_p, core.mlir.lower_fun(_run, multiple_results=True))

# ------------------------------------------------------------------------ vmap


def _batched(loop: Loop, consts: Marks, state: Marks, size: int, operands: Sequence[Any]) -> Loop:
    """The loop over a batch, of constants and state that have a leading axis where marked."""
    of_test, of_body = ([consts[i] for i in own] for own in (loop.test_consts, loop.body_consts))
    differs = _reached(loop.test, [*of_test, *state])[0]

    def mapped(function: Any, own: Sequence[bool], c: Any, s: Any, out_axes: Any) -> Any:
        if not any([*own, *state]):
            return function(c, s)
        axes = [[0 if mark else None for mark in marks] for marks in (consts, state)]
        return jax.vmap(function, axes, out_axes)(c, s)

    def each(c: Any, s: Any) -> Any:
        return mapped(loop.goes_on, of_test, c, s, 0 if differs else None)

    def goes_on(c: Any, s: Any) -> Any:
        return jnp.any(each(c, s)) if differs else each(c, s)

    def step(c: Any, s: Any) -> list[Any]:
        new = mapped(loop.step, of_body, c, s, [0 if mark else None for mark in state])
        if not differs:
            return new
        going = each(c, s)
        return [jnp.where(going.reshape(size, *[1] * (x.ndim - 1)), x, old) for x, old in zip(new, s, strict=True)]

    structs = [*map(struct_of, operands)]
    make = lambda: _made(goes_on, step, structs[: loop.consts], structs[loop.consts :], loop)
    return loop.derived(("batched", consts, state, size), make)


def _in_front(x: Any, dim: int | None, marked: bool, size: int) -> Any:
    """A value with its batch axis, if it has to have one, as the first."""
    if dim is not None:
        return jnp.moveaxis(x, dim, 0)
    return jnp.broadcast_to(x, (size, *jnp.shape(x))) if marked else x


def _size(args: Sequence[Any], dims: Sequence[int | None]) -> int:
    return next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)


def _batch(args: Sequence[Any], dims: Sequence[int | None], *, loop: Loop) -> tuple[list[Any], list[int | None]]:
    size, marks = _size(args, dims), tuple(d is not None for d in dims)
    consts = marks[: loop.consts]
    state = _spread(loop, consts, marks[loop.consts :])
    if _reached(loop.test, [*(consts[i] for i in loop.test_consts), *state])[0]:
        state = (True,) * len(state)  # an element that is done keeps its state
    operands = [_in_front(a, d, m, size) for a, d, m in zip(args, dims, (*consts, *state), strict=True)]
    outs = loop_p.bind(*operands, loop=_batched(loop, consts, state, size, operands))
    return outs, [0 if mark else None for mark in state]


core.batching.primitive_batchers[loop_p] = _batch

# -------------------------------------------------------------------- tangents


def is_inexact(x: Any) -> bool:
    return bool(jax.dtypes.issubdtype(x.dtype, jnp.inexact))


def chosen(values: Sequence[Any], marks: Sequence[bool]) -> list[Any]:
    return [value for value, mark in zip(values, marks, strict=True) if mark]


def filled(values: Sequence[Any], marks: Sequence[bool], chosen: Sequence[Any]) -> list[Any]:
    """The values, with those that are marked replaced."""
    rest = iter(chosen)
    return [next(rest) if mark else value for value, mark in zip(values, marks, strict=True)]


def moving_step(loop: Loop, consts: Sequence[Any], state: Sequence[Any], moves: tuple[Marks, Marks]) -> Any:
    """A turn as a function of what moves only, and the values at which it is."""
    of_consts, of_state = moves

    def step(c: Sequence[Any], s: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        new = loop.step(filled(consts, of_consts, c), filled(state, of_state, s))
        return chosen(new, of_state), chosen(new, [not m for m in of_state])

    return step, (chosen(consts, of_consts), chosen(state, of_state))


def _pushed(loop: Loop, operands: Sequence[Any], moves: tuple[Marks, Marks]) -> Loop:
    """The loop over the state and its tangents."""
    of_consts, of_state = moves
    count, values = loop.consts, len(of_state)

    def goes_on(c: Any, s: Any) -> Any:
        return loop.goes_on(c[:count], s[:values])

    def step(c: Any, s: Any) -> list[Any]:
        turn, primals = moving_step(loop, c[:count], s[:values], moves)
        new, tangents, still = jax.jvp(turn, primals, (c[count:], s[values:]), has_aux=True)
        return [*filled(filled([None] * values, of_state, new), [not m for m in of_state], still), *tangents]

    consts, state = operands[:count], operands[count : count + values]
    structs = [[*map(struct_of, xs)] for xs in (consts, chosen(consts, of_consts), state, chosen(state, of_state))]
    make = lambda: _made(goes_on, step, [*structs[0], *structs[1]], [*structs[2], *structs[3]], loop)
    return loop.derived(("pushed", moves), make)


def _tangents(*operands: Any, loop: Loop, moves: tuple[Marks, Marks]) -> list[Any]:
    count, values = loop.consts, len(moves[1])
    primals, tangents = operands[: count + values], operands[count + values :]
    of_consts = sum(moves[0])
    pushed = _pushed(loop, primals, moves)
    ordered = [*primals[:count], *tangents[:of_consts], *primals[count:], *tangents[of_consts:]]
    return loop_p.bind(*ordered, loop=pushed)[values:]


loop_tangents_p = core.Primitive("loop_tangents")
loop_tangents_p.multiple_results = True
loop_tangents_p.def_impl(_tangents)


@loop_tangents_p.def_abstract_eval
def _tangent_avals(*avals: Any, loop: Loop, moves: tuple[Marks, Marks]) -> list[Any]:
    state = avals[loop.consts : loop.consts + len(moves[1])]
    return [aval.update(weak_type=False) for aval in chosen(state, moves[1])]


core.mlir.register_lowering(loop_tangents_p, core.mlir.lower_fun(_tangents, multiple_results=True))


def _moves(tangent: Any) -> bool:
    # JAX hands Python numbers through as they are.
    return type(tangent) is not ad.Zero and getattr(tangent, "dtype", None) != jax.dtypes.float0


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, loop: Loop) -> tuple[list[Any], list[Any]]:
    marks = tuple(map(_moves, tangents))
    of_consts, inits = marks[: loop.consts], primals[loop.consts :]
    reached = _spread(loop, of_consts, marks[loop.consts :])
    of_state = tuple(mark and is_inexact(jax.typeof(x)) for mark, x in zip(reached, inits, strict=True))
    outs = loop_p.bind(*primals, loop=loop)
    given = [t if _moves(t) else jnp.zeros(jnp.shape(x), jax.typeof(x).dtype) for t, x in zip(tangents, primals)]
    moved = chosen(given, (*of_consts, *of_state))
    found = iter(loop_tangents_p.bind(*primals, *moved, loop=loop, moves=(of_consts, of_state)))
    zeros = (ad.Zero(core.tangent_aval(out)) for out in outs)
    return outs, [next(found) if mark else zero for mark, zero in zip(of_state, zeros, strict=True)]


ad.primitive_jvps[loop_p] = _jvp


def _jvp_of_tangents(
    primals: Sequence[Any], tangents: Sequence[Any], *, loop: Loop, moves: tuple[Marks, Marks]
) -> tuple[list[Any], list[Any]]:
    marks = [*map(_moves, tangents)]
    outs = loop_tangents_p.bind(*primals, loop=loop, moves=moves)

    def function(*xs: Any) -> list[Any]:
        return _tangents(*filled(primals, marks, xs), loop=loop, moves=moves)

    return outs, jax.jvp(function, chosen(primals, marks), chosen(tangents, marks))[1]


ad.primitive_jvps[loop_tangents_p] = _jvp_of_tangents


def _batch_of_tangents(
    args: Sequence[Any], dims: Sequence[int | None], *, loop: Loop, moves: tuple[Marks, Marks]
) -> tuple[list[Any], list[int]]:
    size, count, values = _size(args, dims), loop.consts, len(moves[1])
    of_dots = iter(dims[count + values : count + values + sum(moves[0])])
    with_dots = [next(of_dots) if moves_ else None for moves_ in moves[0]]
    # What moves is batched like its tangent. The state is so throughout.
    consts = tuple(a is not None or b is not None for a, b in zip(dims[:count], with_dots, strict=True))
    state = (True,) * values
    marks = (*consts, *state, *chosen(consts, moves[0]), *chosen(state, moves[1]))
    operands = [_in_front(a, d, m, size) for a, d, m in zip(args, dims, marks, strict=True)]
    batched = _batched(loop, consts, state, size, operands[: count + values])
    outs = loop_tangents_p.bind(*operands, loop=batched, moves=moves)
    return outs, [0] * len(outs)


core.batching.primitive_batchers[loop_tangents_p] = _batch_of_tangents
