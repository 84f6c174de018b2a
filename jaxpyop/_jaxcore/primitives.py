"""JAX's own primitives that are treated specially, and tests for how JAX evaluates a primitive."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental

from jaxpyop._jaxcore.capabilities import JAX_VERSION, Primitive, parts_of


def _sample() -> Any:
    """Returns the jaxpr of a program with one equation for each primitive that is needed here."""
    forward, backward = jax.custom_jvp(lambda x: x), jax.custom_vjp(lambda x: x)
    forward.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    backward.defvjp(lambda x: (x, None), lambda _, ct: (ct,))

    def program(x: Any) -> Any:
        for ordered in (False, True):
            jax.experimental.io_callback(lambda: None, None, ordered=ordered)
        outs = jax.jit(lambda x: x * 2.0)(x), forward(x), backward(x)
        jax.new_ref(x)
        return outs

    with jax.disable_jit(False):
        return jax.make_jaxpr(program)(1.0)


# JAX's primitives, effects and classes are taken from the equations of this program, because not all of them have a
# public name.
SAMPLE = _sample()
_io, _ordered_io, _jit, _custom_jvp_call, _custom_vjp_call, _new_ref = SAMPLE.eqns
_AbstractRef, _Unspecified = type(_new_ref.outvars[0].aval), type(_jit.params["in_shardings"][0])
IO_EFFECT, ORDERED_IO = (next(iter(eqn.effects)) for eqn in (_io, _ordered_io))
jit_p = _jit.primitive
CUSTOM_CALLS = (_custom_jvp_call.primitive, _custom_vjp_call.primitive)
_apply_primitive, _xla_primitive_callable = parts_of("compiled_primitives", 2)


def is_high(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> bool:
    """Tells whether JAX expands a primitive into others before it evaluates it (JAX 0.10 to 0.12)."""
    if primitive is jit_p:
        # `jit` is the most frequent primitive. Its jaxpr tells, so the types of the operands need not be computed.
        return bool(params["jaxpr"].is_high if JAX_VERSION >= (0, 12) else params["jaxpr"].jaxpr.is_high)
    if getattr(primitive.is_high, "__func__", None) is Primitive.is_high:
        return False
    return bool(primitive.is_high(*map(jax.typeof, args), **params))


def is_of_high_type(x: Any) -> bool:
    """Tells whether a value's type is one that JAX expands into others first (JAX 0.10 to 0.12)."""
    return bool(getattr(jax.typeof(x), "is_high", False))


def is_ref(x: Any) -> bool:
    """Tells whether a value is a mutable array."""
    return is_ref_type(jax.typeof(x))


def is_ref_type(aval: Any) -> bool:
    """Tells whether a type is the type of a mutable array."""
    return isinstance(aval, _AbstractRef)


def allocates_ref(primitive: Any) -> bool:
    """Tells whether a primitive makes a mutable array."""
    return bool(primitive.ref_allocating)


def is_plain_jit(params: dict[str, Any]) -> bool:
    """Tells whether a `jit` with these parameters has no effects, shardings or donated arguments."""
    return not (is_sharded_jit(params) or params["jaxpr"].effects or any(params["donated_invars"]))


def is_sharded_jit(params: dict[str, Any]) -> bool:
    """Tells whether a `jit` with these parameters has shardings."""
    return not all(isinstance(s, _Unspecified) for s in (*params["in_shardings"], *params["out_shardings"]))


def has_compiler_options(params: dict[str, Any]) -> bool:
    """Tells whether a `jit` with these parameters has options for XLA."""
    return bool(params["compiler_options_kvs"])


def compiled(primitive: Any, params: dict[str, Any]) -> Callable[..., Any]:
    """Returns the function that evaluates a primitive on concrete arrays. JAX itself looks it up at every call."""
    if _xla_primitive_callable is not None and getattr(primitive.impl, "func", None) is _apply_primitive:
        return _xla_primitive_callable(primitive, **params)
    return functools.partial(primitive.impl, **params)


def compiles_alone(primitive: Any, holds_jaxprs: bool) -> bool:
    """Tells whether JAX evaluates a primitive by compiling it as one program, which it finds again at the next call.

    If a primitive holds jaxprs, its `impl` may evaluate them equation by equation. The primitives of random numbers run
    loops over functions that are new at each call, so JAX compiles again (random_gamma, JAX 0.10 to 0.12).
    """
    # An `impl` that is a partial is a partial of apply_primitive, which compiles.
    if isinstance(primitive.impl, functools.partial):
        return True
    return not (holds_jaxprs or primitive.impl.__module__.startswith("jax._src.random"))


def function_behind(wrapped: Any) -> Any:
    """Returns the function inside the wrapper that JAX makes for a custom rule.

    It returns None if a transformation such as `vmap` put a wrapper around it too, because that wrapper can be called
    only once (JAX 0.10 to 0.12).
    """
    return getattr(wrapped, "f", None) if len(wrapped.transforms) <= 1 else None


def is_of_jax(thing: Any) -> bool:
    """Tells whether JAX itself defines a function or a class."""
    return (getattr(thing, "__module__", None) or "").startswith("jax.")
