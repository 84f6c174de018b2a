"""Primitives: JAX's own that are treated specially, and tests for how JAX evaluates a primitive."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as _extend
from jax._src import dispatch as _dispatch

JAX_VERSION = tuple(int(part) for part in jax.__version__.split(".")[:2])
Primitive = _extend.Primitive
ShapedArray = jax.core.ShapedArray
jit_p = _extend.primitives.jit_p
CUSTOM_CALLS = (_extend.primitives.custom_jvp_call_p, _extend.primitives.custom_vjp_call_p)


def is_high(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> bool:
    """Tells whether JAX expands a primitive into others before it evaluates it (JAX 0.10 to 0.12)."""
    if primitive is jit_p:
        # For the most frequent primitive the types of the operands do not matter.
        return bool(params["jaxpr"].is_high if JAX_VERSION >= (0, 12) else params["jaxpr"].jaxpr.is_high)
    if getattr(primitive.is_high, "__func__", None) is Primitive.is_high:
        return False
    return bool(primitive.is_high(*map(jax.typeof, args), **params))


def is_of_high_type(x: Any) -> bool:
    """Tells whether a value's type is one that JAX expands into others first (JAX 0.10 to 0.12)."""
    return bool(getattr(jax.typeof(x), "is_high", False))


def is_ref(x: Any) -> bool:
    """Tells whether a value is a mutable array."""
    # The class has no public name up to JAX 0.12.
    return type(jax.typeof(x)).__name__ == "AbstractRef"


def allocates_ref(primitive: Any) -> bool:
    """Tells whether a primitive makes a mutable array."""
    return bool(primitive.ref_allocating)


def is_plain_jit(params: dict[str, Any]) -> bool:
    """Tells whether the parameters of a `jit` give no effects, shardings or donated arguments."""
    # The class of a sharding that is not given has no public name up to JAX 0.12.
    shardings = (*params["in_shardings"], *params["out_shardings"])
    is_sharded = any(type(s).__name__ != "UnspecifiedValue" for s in shardings)
    return not (is_sharded or params["jaxpr"].effects or any(params["donated_invars"]))


def has_compiler_options(params: dict[str, Any]) -> bool:
    """Tells whether the parameters of a `jit` give options for XLA."""
    return bool(params["compiler_options_kvs"])


def compiled(primitive: Any, params: dict[str, Any]) -> Callable[..., Any]:
    """Returns the function that evaluates a primitive on concrete arrays, which JAX looks up at every call."""
    # There are no public names for these up to JAX 0.12.
    if getattr(primitive.impl, "func", None) is _dispatch.apply_primitive:
        return _dispatch.xla_primitive_callable(primitive, **params)
    return functools.partial(primitive.impl, **params)


def compiles_alone(primitive: Any, holds_jaxprs: bool) -> bool:
    """Tells whether evaluating a primitive compiles it as one program, and finds that program again.

    Where a primitive holds jaxprs, its `impl` may evaluate equation by equation. The primitives of random numbers run
    loops over fresh functions (random_gamma, JAX 0.10 to 0.12).
    """
    # The partial is one of apply_primitive, which compiles.
    if isinstance(primitive.impl, functools.partial):
        return True
    return not (holds_jaxprs or primitive.impl.__module__.startswith("jax._src.random"))


def function_behind(wrapped: Any) -> Any:
    """Returns the function behind one that JAX wrapped to call a custom rule, None if a transformation wrapped it too.

    The wrapper of a transformation such as `vmap` can be called only once (JAX 0.10 to 0.12).
    """
    return getattr(wrapped, "f", None) if len(wrapped.transforms) <= 1 else None


def is_of_jax(thing: Any) -> bool:
    """Tells whether JAX itself defines a function or a class."""
    return (getattr(thing, "__module__", None) or "").startswith("jax.")
