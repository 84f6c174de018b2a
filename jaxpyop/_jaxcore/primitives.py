"""Primitives: JAX's own that are treated specially, and tests for how JAX evaluates a primitive."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental

from jaxpyop._jaxcore.capabilities import JAX_VERSION, Primitive, parts_of


def _sample() -> Any:
    """Returns the jaxpr of a program that holds one of each kind of call."""
    forward, backward = jax.custom_jvp(lambda x: x), jax.custom_vjp(lambda x: x)
    forward.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    backward.defvjp(lambda x: (x, None), lambda _, ct: (ct,))

    def program(x: Any) -> Any:
        for ordered in (False, True):
            jax.experimental.io_callback(lambda: None, None, ordered=ordered)
        return jax.jit(lambda x: x * 2.0)(x), forward(x), backward(x)

    with jax.disable_jit(False):
        return jax.make_jaxpr(program)(1.0)


# JAX's primitives, effects and classes of jaxprs are read off this program, because not all of them have names that
# will stay.
SAMPLE = _sample()
_io, _ordered_io, _jit, _custom_jvp_call, _custom_vjp_call = SAMPLE.eqns
IO_EFFECT, ORDERED_IO = (next(iter(eqn.effects)) for eqn in (_io, _ordered_io))
jit_p = _jit.primitive
CUSTOM_CALLS = (_custom_jvp_call.primitive, _custom_vjp_call.primitive)
_apply_primitive, _xla_primitive_callable = parts_of("compiled_primitives", 2)


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
    if _xla_primitive_callable is not None and getattr(primitive.impl, "func", None) is _apply_primitive:
        return _xla_primitive_callable(primitive, **params)
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
