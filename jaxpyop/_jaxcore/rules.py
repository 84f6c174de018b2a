"""Rules for JAX's transformations: derivatives, checkpoints, loops, and effects."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._frames import PACKAGE
from jaxpyop._jaxcore.changes import before_first_op, make, makes
from jaxpyop._jaxcore.jaxprs import IO_EFFECT, ORDERED_IO, jaxpr_of, jaxprs_in, jit_p
from jaxpyop._jaxcore.private import has, linearize_rule, private, why_without
from jaxpyop._jaxcore.public import ShapedArray, Tracer, ad, custom_partial_eval_rules, rules_of_checkpoint
from jaxpyop._jaxcore.traces import Unusable, replaced, tangent_aval


def differentiated() -> Any:
    """Returns an object that `jax.closure_convert` takes for a differentiated value.

    JAX calls `_contents()` of the values that a function closes over, to find out which of them have to become
    arguments (JAX 0.10 to 0.12). The object is a tracer of `jax.jvp`, made without its constructor.
    """
    tracer = private.JVPTracer.__new__(private.JVPTracer)
    # JAX takes the tracer for differentiated unless its tangent is a symbolic zero. None is not one.
    tracer.aval, tracer.tangent = ShapedArray((), np.dtype(np.float32)), None
    return tracer


# ------------------------------------------------------- derivatives and checkpoints


@makes("files")
def _leave_files_out() -> None:
    """Leaves the package out of tracebacks and of the source lines that JAX shows for operations, as JAX its own."""
    if has("errors"):
        private.leave_out_of_tracebacks(PACKAGE)
        private.leave_out_of_source_lines(PACKAGE)


before_first_op.append(lambda: make("files"))

# What a linearize rule returns: the results, which of them have tangents, and the function from the operands' tangents
# to the results' tangents.
Linearized = tuple[list[Any], list[bool], Callable[[Sequence[Any]], Sequence[Any]]]


def set_linearize_rule(primitive: Any, linearize: Callable[..., Linearized]) -> None:
    """Sets what `jax.grad` and `jax.linearize` call, instead of tracing and splitting the primitive's JVP.

    JAX has no public table for it, so a portable package does without.

    Args:
        primitive: a primitive with several results.
        linearize: the rule. It gets a bool for each operand (whether it has a tangent), the operands, and the
            parameters.
    """

    def set_rule() -> None:
        if has("linearize rules"):
            private.primitive_linearizations[primitive] = linearize_rule(linearize)

    before_first_op.append(set_rule)


def set_rules_of_programs(primitive: Any) -> None:
    """Sets the rules of a primitive of ours in programs, beside those that JAX documents.

    Args:
        primitive: a primitive with several results. Its lowering rule gets the devices, as that of `pure_callback`
            does, and `jax.checkpoint` keeps its results where a policy says so.
    """
    rules_of_checkpoint[primitive] = _keep_results

    def set_rules() -> None:
        if has("several devices"):
            private.requires_devices.add(primitive)
        if not has("loops"):
            custom_partial_eval_rules[primitive] = _refusal_in_derivative_of_loop(primitive)

    before_first_op.append(set_rules)


def _keep_results(saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any) -> tuple[Any, ...]:
    """Splits an equation for JAX's `checkpoint`, which keeps its results for the backward pass whatever the policy is.

    If a function that draws random numbers ran a second time, there would be the value of one run and the gradient of
    another. The equation runs in the forward pass if all its operands are known there, and otherwise in the backward
    pass. The rule returns the equation of either pass (or None), for each result whether it is unknown in the forward
    pass and whether it is instantiated, and the values that the forward pass hands to the backward pass.
    """
    late, count = any(unknown), len(eqn.outvars)
    passed_on = [x for x, has in zip(eqn.invars, instantiated) if late and not has and not hasattr(x, "val")]
    return None if late else eqn, eqn if late else None, [late] * count, [late] * count, passed_on


def _unusable_in(value: Any) -> Unusable | None:
    """Returns the unusable value in tracers of an eager `vmap` or `jvp`, by their attributes `val` and `primal`."""
    while isinstance(value, Tracer) and type(value) is not Unusable:
        value = getattr(value, "val", None) if hasattr(value, "val") else getattr(value, "primal", None)
    return value if type(value) is Unusable else None


@makes("tangents")
def _wrap_jvp_of_jit() -> None:
    ad.primitive_jvps[jit_p] = _with_unusable_tangents(ad.primitive_jvps[jit_p])


def _with_unusable_tangents(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the JVP rule of `jit`, to raise the error of an unusable tangent only if the function uses it.

    Any other operation does use its tangents. A jitted function such as `x > 0` need not.
    """

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        unusable = {i: found for i, t in enumerate(tangents) if (found := _unusable_in(t)) is not None}
        if not unusable:
            return rule(primals, tangents, **params)
        none = [ad.Zero(tangent_aval(x)) for x in primals]

        def tangents_of(given: Sequence[Any]) -> list[Any]:
            found = rule(primals, replaced(none, list(unusable), given), **params)[1]
            return [t for t in found if type(t) is not ad.Zero]

        if jax.eval_shape(tangents_of, [jax.ShapeDtypeStruct(tangents[i].shape, tangents[i].dtype) for i in unusable]):
            raise next(iter(unusable.values())).error()
        return rule(primals, [none[i] if i in unusable else t for i, t in enumerate(tangents)], **params)

    return jvp


# ------------------------------------------------------------------------ effects


class _OpEffect:
    """The effect of one stateful op, mixed into the classes of io_callback's effects.

    JAX recognizes an effect by `isinstance`, and by `effect in effects`. So the effects of all ops are equal to the one
    of io_callback: JAX accepts and rejects them wherever it accepts and rejects those, and has one token for all that
    are ordered. Where JAX prints the effects that it refuses, this one says what to do.
    """

    # The effect of io_callback that this one stands in for.
    like: Any

    def __init__(self, title: str, cure: str) -> None:
        self.title = title
        self.cure = cure

    def __hash__(self) -> int:
        return hash(self.like)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self.like))

    def __str__(self) -> str:
        return f"the stateful {self.title} ({self.cure})"

    __repr__ = __str__


# The classes of the two effects have no names to import.
_IoEffect: Any = type(IO_EFFECT)
_OrderedIoEffect: Any = type(ORDERED_IO)


class _StatefulEffect(_OpEffect, _IoEffect):
    like = IO_EFFECT


class _OrderedEffect(_OpEffect, _OrderedIoEffect):
    like = ORDERED_IO


def effect_of_op(title: str, cure: str, ordered: bool) -> Any:
    """Returns the effect of a stateful op.

    Args:
        title: the op, in errors.
        cure: what to write where JAX refuses the effect.
        ordered: whether the op runs in the order of all ordered ones.
    """
    make("effects")
    return (_OrderedEffect if ordered else _StatefulEffect)(title, cure)


@makes("effects")
def _wrap_rules_for_effects() -> None:
    if has("loops"):
        hoist = private.scan_known_hoisting
        setattr(sys.modules[hoist.__module__], hoist.__name__, _without_hoisting_of_effects(hoist))
        # A differentiated scan drops effects without a result (io_callback's too), except for these.
        for kind in (_StatefulEffect, _OrderedEffect):
            private.kept_effects.add_type(kind)
    if has("vmap of cond"):
        rules = private.fancy_primitive_batchers
        for primitive, reason in ((jax.lax.cond_p, _COND), (jax.lax.while_p, _WHILE)):
            rules[primitive] = _batched(rules[primitive], reason)


def _refusal_in_derivative_of_loop(primitive: Any) -> Callable[..., Any]:
    """Returns a rule that refuses a stateful op where JAX splits the function of a loop to differentiate it."""

    def split(trace: Any, *tracers: Any, **params: Any) -> Any:
        for effect in primitive.abstract_eval(*(t.aval for t in tracers), **params)[1]:
            raise RefusedEffectError(
                f"the derivative of a loop cannot hold the stateful {effect.title}, which would run once in all, or "
                f"not at all ({why_without('loops')}): call it outside of the loop; or {effect.cure}"
            )
        return trace.default_process_primitive(primitive, tracers, params)

    return split


def _op_effects(jaxprs: Sequence[Any]) -> Iterator[_OpEffect]:
    return (effect for jaxpr in jaxprs for effect in jaxpr.effects if isinstance(effect, _OpEffect))


def _without_hoisting_of_effects(hoist: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function that moves what is the same in each iteration out of a loop that is differentiated.

    JAX has no regard to effects there: a stateful op would run once in all, and not in each iteration. In a loop with
    such an op nothing is moved out.
    """

    @functools.wraps(hoist)
    def keep(jaxpr: Any, *others: Any) -> Any:
        if not any(_op_effects([jaxpr])):
            return hoist(jaxpr, *others)
        # This is what a comment in JAX's function says it returns if nothing moves.
        consts, count, *_ = others
        return jaxpr, consts, [False] * count, []

    return keep


# --------------------------------------------------- vmap of cond and while_loop


class RefusedEffectError(NotImplementedError):
    """A stateful op is in a loop or branch that cannot hold it."""


_COND = (
    "cond on a predicate that differs by element cannot hold the stateful {}: call it outside the cond, with the "
    "predicate as when=, which decides for each element"
)
_WHILE = (
    "while_loop (ordered, or of a length that differs by element) cannot hold the stateful {}: loop to the longest "
    "length with fori_loop, and pass as when= a boolean that is true while the element continues"
)


def _batched(rule: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """Wraps the rule of `vmap` for a cond or a while_loop, which refuses the effects of io_callback.

    A cond whose predicate is the same for the whole batch stays a cond, so that its effects are safe. JAX's rule gets
    the branches with the effects of our ops left out, and finds them again when it traces the batched branches. Where
    JAX refuses them, the error names the op.
    """

    def batch(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        effect = next(_op_effects(jaxprs_in(params)), None)
        # The first operand of a cond is the predicate.
        if effect is not None and "branches" in params and dims[0] is None:
            params["branches"] = tuple(map(_without_op_effects, params["branches"]))
        try:
            return rule(axis_data, args, dims, **params)
        except RefusedEffectError:
            raise
        except Exception as error:
            # JAX's refusal has no class of its own, so it is recognized by the word "effect" in its text. Any other
            # error comes from a rule inside, and explains itself better than ours would.
            if effect is None or "effect" not in str(error):
                raise
            refusal = (
                f"a vmap of a {reason.format(effect.title)}; in a loop or branch that a library owns, call "
                f"jax.debug.callback instead, for a log; or {effect.cure}"
            )
        raise RefusedEffectError(refusal)

    return batch


def _without_op_effects(closed: Any) -> Any:
    jaxpr = jaxpr_of(closed)
    bare = jaxpr.replace(effects=frozenset(e for e in jaxpr.effects if not isinstance(e, _OpEffect)))
    return bare if jaxpr is closed else closed.replace(jaxpr=bare)
