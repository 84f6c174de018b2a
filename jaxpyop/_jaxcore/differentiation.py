"""Hooks into JAX's differentiation, checkpoints and loops, and tests for tangents."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._jaxcore.capabilities import ShapedArray, ad, using
from jaxpyop._jaxcore.jaxprs import equations_in
from jaxpyop._jaxcore.primitives import jit_p


@functools.cache
def _is_inexact(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, np.inexact))


def is_inexact(x: Any) -> bool:
    """Tells whether `x` can have a tangent, which means that its dtype is floating or complex."""
    return _is_inexact(x.dtype)


def is_zero(vector: Any) -> bool:
    """Tells whether a tangent or cotangent is known to be zero: a symbolic zero, or a float0 of an integer or bool."""
    return type(vector) is ad.Zero or getattr(vector, "dtype", None) == jax.dtypes.float0


def zeros(like: Any) -> jax.Array:
    """Returns zeros of the shape and dtype of `like`."""
    return jnp.zeros(like.shape, like.dtype)


def replaced(values: Sequence[Any], positions: Sequence[int], replacements: Sequence[Any]) -> list[Any]:
    """Returns `values` as a list, with `replacements` at `positions`."""
    full = list(values)
    for i, value in zip(positions, replacements, strict=True):
        full[i] = value
    return full


def tangent_aval(x: Any) -> Any:
    """Returns the type of a value's tangents."""
    # Every aval has this method (JAX 0.10 to 0.12).
    return jax.typeof(x).to_tangent_aval()


@functools.cache
def differentiated() -> Any:
    """Returns an object that `jax.closure_convert` takes for a differentiated value.

    JAX calls `_contents()` of the values that a function closes over, to find out which of them have to become
    arguments (JAX 0.10 to 0.12). The object is a tracer of `jax.jvp`, made without its constructor.
    """
    kinds: list[Any] = []
    jax.jvp(lambda x: (kinds.append(type(x)), x)[1], (1.0,), (1.0,))
    tracer = kinds[0].__new__(kinds[0])
    # JAX takes the tracer for differentiated unless its tangent is a symbolic zero. None is not one.
    tracer.aval, tracer.tangent = ShapedArray((), np.dtype(np.float32)), None
    return tracer


# What a linearize rule returns: the results, which of them have tangents, and the function from the operands' tangents
# to the results' tangents.
Linearized = tuple[list[Any], list[bool], Callable[[Sequence[Any]], Sequence[Any]]]


def set_linearization(primitive: Any, rule: Callable[..., Linearized]) -> None:
    """Makes `jax.grad` and `jax.linearize` call a rule, instead of tracing and splitting the primitive's JVP.

    Args:
        primitive: a primitive with several results.
        rule: is called with a bool for each operand (whether it has a tangent), the operands, and the parameters.
    """
    if found := using("linearize_rule"):
        rules, arrange = found
        rules[primitive] = arrange(rule)


def run_once_in_checkpoint(primitive: Any) -> None:
    """Makes `jax.checkpoint` keep a primitive's results for the backward pass, whatever its policy is.

    If the primitive ran a second time, a function that draws random numbers would give the value of one run and the
    gradient of another.
    """
    if (rules := using("checkpoint_rule")) is not None:
        rules[primitive] = _keep_results


def _keep_results(saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any) -> tuple[Any, ...]:
    """Splits an equation for JAX's `checkpoint`.

    The equation runs in the forward pass if all its operands are known there, and otherwise in the backward pass. The
    rule returns the equation of either pass (or None), for each result whether it is unknown in the forward pass and
    whether it is instantiated, and the values that the forward pass hands to the backward pass.
    """
    late, count = any(unknown), len(eqn.outvars)
    passed_on = [x for x, has in zip(eqn.invars, instantiated) if late and not has and not hasattr(x, "val")]
    return None if late else eqn, eqn if late else None, [late] * count, [late] * count, passed_on


def keep_in_loops(primitive: Any, has_effect: Callable[..., bool]) -> None:
    """Makes the derivative of `jax.lax.scan` leave calls with an effect in the loop.

    JAX moves what is the same in each iteration out of the loop, without regard to its effects.

    Args:
        primitive: the primitive of these calls.
        has_effect: tells from the parameters of a call whether it has an effect.
    """

    def holds_one(**params: Any) -> bool:
        return any(eqn.primitive is primitive and has_effect(**eqn.params) for eqn in equations_in(params))

    if found := using("loop_rule"):
        rules, make = found
        rules[primitive] = make(primitive, has_effect)
        # A call may be inside one of these primitives, which JAX would evaluate in part. It would drop a call without
        # results, and its caches would keep the outcome.
        for container in (jit_p, jax.lax.cond_p, jax.lax.while_p, jax.lax.scan_p):
            rules[container] = make(container, holds_one, rules.get(container))
