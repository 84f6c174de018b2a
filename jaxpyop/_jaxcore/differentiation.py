"""Hooks for differentiation and batching, and tests for tangents."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._jaxcore.capabilities import ShapedArray, ad, using
from jaxpyop._jaxcore.frames import is_inside


@functools.cache
def _is_inexact(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, np.inexact))


def is_inexact(x: Any) -> bool:
    """Tells whether a value of the dtype of `x` can have a tangent: its numbers are floating or complex."""
    return _is_inexact(x.dtype)


def is_zero(vector: Any) -> bool:
    """Tells whether a tangent or cotangent is known to be zero: symbolically, or as one of an integer or a bool."""
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
    # Every aval has this method, JAX 0.10 to 0.12.
    return jax.typeof(x).to_tangent_aval()


@functools.cache
def differentiated() -> Any:
    """Returns an object that `jax.closure_convert` takes for a differentiated value.

    JAX asks the values that a function closes over for their `_contents()`, to tell which of them have to become
    arguments (JAX 0.10 to 0.12).
    """
    kinds: list[Any] = []
    jax.jvp(lambda x: (kinds.append(type(x)), x)[1], (1.0,), (1.0,))
    tracer = kinds[0].__new__(kinds[0])
    # A tangent of None is not a symbolic zero.
    tracer.aval, tracer.tangent = ShapedArray((), np.dtype(np.float32)), None
    return tracer


# The results, which of them have tangents, and the function from the operands' tangents to the results' tangents.
Linearized = tuple[list[Any], list[bool], Callable[[Sequence[Any]], Sequence[Any]]]


def set_linearization(primitive: Any, rule: Callable[..., Linearized]) -> None:
    """Makes `jax.grad` and `jax.linearize` call a rule, instead of tracing and splitting the primitive's JVP.

    Args:
        primitive: a primitive with several results.
        rule: called with which operands have tangents, with the operands, and with the parameters.
    """
    if found := using("linearize_rule"):
        rules, arrange = found
        rules[primitive] = arrange(rule)


def run_once_in_checkpoint(primitive: Any) -> None:
    """Makes `jax.checkpoint` keep a primitive's results for the backward pass, whatever its policy is.

    Computed a second time, a function that draws random numbers would give the value of one run and the gradient of
    another.
    """
    if (rules := using("checkpoint_rule")) is not None:
        rules[primitive] = _keep_results


def _keep_results(saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any) -> tuple[Any, ...]:
    """JAX's rule: an equation for the forward pass, one for the backward pass, and what is passed on between them.

    The equation runs in the forward pass if its operands are known there, and else in the backward pass.
    """
    late, count = any(unknown), len(eqn.outvars)
    passed_on = [x for x, has in zip(eqn.invars, instantiated) if late and not has and not hasattr(x, "val")]
    return None if late else eqn, eqn if late else None, [late] * count, [late] * count, passed_on


def keep_in_loops(primitive: Any, has_effect: Callable[..., bool]) -> None:
    """Makes the derivative of `jax.lax.scan` leave calls with an effect in the loop.

    JAX computes once what is the same in each iteration, and does not ask whether it has an effect.

    Args:
        primitive: whose calls these are.
        has_effect: tells it, from the parameters of a call.
    """

    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if has_effect(**params) and is_inside("_scan_known_hoisting"):
            tracers = tuple(map(trace.instantiate_const, tracers))
        return trace.default_process_primitive(primitive, tracers, params)

    if (rules := using("loop_rule")) is not None:
        rules[primitive] = rule
