"""Jaxprs: made, taken apart, evaluated and compared; and how JAX's own primitives are told apart.

From JAX 0.12 a closed jaxpr and a jaxpr are one class; until 0.11 they are two. The functions here take either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.experimental

from jaxpyop._jaxcore.private import private
from jaxpyop._jaxcore.public import JAX_VERSION, Primitive


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
        jax.lax.create_token(x)
        return outs

    with jax.disable_jit(False):
        return jax.make_jaxpr(program)(1.0)


# JAX's primitives, effects and classes are taken from the equations of this program, because not all of them have a
# public name.
SAMPLE = _sample()
_io, _ordered_io, _jit, _custom_jvp_call, _custom_vjp_call, _new_ref, _token = SAMPLE.eqns
_AbstractRef, _Unspecified = type(_new_ref.outvars[0].aval), type(_jit.params["in_shardings"][0])
# The type of the tokens by which XLA orders effects.
TOKEN_TYPE = _token.outvars[0].aval
IO_EFFECT, ORDERED_IO = (next(iter(eqn.effects)) for eqn in (_io, _ordered_io))
jit_p = _jit.primitive
CUSTOM_CALLS = (_custom_jvp_call.primitive, _custom_vjp_call.primitive)
_closed = _jit.params["jaxpr"]
JAXPR_TYPES: Any = tuple({type(_closed), type(getattr(_closed, "jaxpr", _closed))})
Variable, Literal = map(type, _closed.eqns[0].invars)


def jaxpr_of(closed: Any) -> Any:
    """Returns the Jaxpr of a ClosedJaxpr."""
    return getattr(closed, "jaxpr", closed)


def names_of_inputs(closed: Any) -> list[str]:
    """Returns what JAX's errors call the inputs of a traced function, such as `weights['a']`."""
    # JAX writes them down for each function that it traces (0.10 to 0.12).
    return list(jaxpr_of(closed).debug_info.arg_names)


def consts_of(closed: Any) -> Sequence[Any]:
    """Returns the constants of a jaxpr itself, not of the jaxprs in it."""
    return getattr(closed, "consts", ())


def jaxprs_in(params: dict[str, Any]) -> list[Any]:
    """Returns the jaxprs among a primitive's parameters."""
    found: list[Any] = []
    pending = list(params.values())
    while pending:
        value = pending.pop()
        if isinstance(value, JAXPR_TYPES):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            pending.extend(value)
    return found


def equations_in(params: dict[str, Any]) -> Iterator[Any]:
    """Returns the equations of the jaxprs among a primitive's parameters, and of the jaxprs in them."""
    for jaxpr in jaxprs_in(params):
        for eqn in jaxpr_of(jaxpr).eqns:
            yield eqn
            yield from equations_in(eqn.params)


def opened(closed: Any) -> tuple[Any, list[Any]]:
    """Returns a closed jaxpr as one whose first inputs are its constants, and the constants."""
    jaxpr, consts = jaxpr_of(closed), list(closed.consts)
    if JAX_VERSION >= (0, 12):
        return (jaxpr.replace(consts=()) if consts else jaxpr), consts
    return jaxpr.replace(constvars=(), invars=[*jaxpr.constvars, *jaxpr.invars]), consts


def within_scope(eqn: Any, scope: Any) -> Any:
    """Returns an equation of an inner function with the named scopes around that function."""
    info = eqn.source_info
    return eqn.replace(source_info=info.replace(name_stack=scope + info.name_stack))


def scan_counts(eqn: Any) -> tuple[int, int]:
    """Returns how many operands of a `scan` are constants, and how many are carried."""
    params = eqn.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    # JAX 0.12 has a tree of the operands instead.
    consts, carry, _ = params["ft_in"].update(range(len(eqn.invars))).unpack()
    return len(list(consts)), len(list(carry))


def converted(x: Any, dtype: Any, *, weak: bool) -> Any:
    """Returns a value in another dtype. A weak one gives way to other dtypes, as that of a Python number does."""
    return jax.lax.convert_element_type_p.bind(x, new_dtype=dtype, weak_type=weak, sharding=None)


def with_weak_type(x: Any, aval: Any) -> Any:
    """Returns a value whose type is weak if this type of the same dtype is, and only then."""
    is_weak, weak = (bool(getattr(kind, "weak_type", False)) for kind in (jax.typeof(x), aval))
    return x if is_weak == weak else converted(x, aval.dtype, weak=weak)


def make_jaxpr(function: Callable[..., Sequence[Any]], args: Sequence[Any]) -> Any:
    """Traces a function that takes and returns flat lists of values, and returns its closed jaxpr."""
    # JAX may have traced the same function under a state that it does not know, so it gets a new one.
    return jax.make_jaxpr(lambda *xs: list(function(*xs)))(*args)


def without_dead_code(jaxpr: Any, used: Sequence[bool] | None = None) -> tuple[Any, list[bool]]:
    """Returns a jaxpr without the equations that its results do not need, and which inputs they need.

    Args:
        jaxpr: the jaxpr.
        used: which of its results count. The default is all.
    """
    return private.dce_jaxpr(jaxpr, list(used or [True] * len(jaxpr.outvars)))


# ------------------------------------------------------------------- evaluation


def run_equations(eqns: Iterable[Any], env: dict[Any, Any]) -> None:
    """Evaluates equations in order under the current trace, with their source lines, named scopes and settings.

    Args:
        eqns: the equations.
        env: the values by variable, which gets the results.
    """
    for eqn in eqns:
        operands = [x.val if isinstance(x, Literal) else env[x] for x in eqn.invars]
        stack = private.current_name_stack() + eqn.source_info.name_stack
        with private.user_context(eqn.source_info.traceback, name_stack=stack), eqn.ctx.manager:
            outs = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
        env.update(zip(eqn.outvars, outs if eqn.primitive.multiple_results else [outs], strict=True))


def run_jaxpr(closed: Any, *args: Any) -> list[Any]:
    """Evaluates a jaxpr with its own constants under the current trace."""
    return private.eval_jaxpr(jaxpr_of(closed), list(consts_of(closed)), *args)


# -------------------------------------------------------------------- primitives


def is_high(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> bool:
    """Tells whether JAX expands a primitive into others before it evaluates it (JAX 0.10 to 0.12)."""
    if primitive is jit_p:
        # `jit` is the most frequent primitive. Its jaxpr tells, so the types of the operands need not be computed.
        return bool(params["jaxpr"].is_high if JAX_VERSION >= (0, 12) else params["jaxpr"].jaxpr.is_high)
    if getattr(primitive.is_high, "__func__", None) is Primitive.is_high:
        return False
    return bool(primitive.is_high(*map(jax.typeof, args), **params))


def is_ref_type(aval: Any) -> bool:
    """Tells whether a type is the type of a mutable array."""
    return isinstance(aval, _AbstractRef)


def is_plain_jit(params: dict[str, Any]) -> bool:
    """Tells whether a `jit` with these parameters has no effects, shardings or donated arguments."""
    return not (is_sharded_jit(params) or params["jaxpr"].effects or any(params["donated_invars"]))


def is_sharded_jit(params: dict[str, Any]) -> bool:
    """Tells whether a `jit` with these parameters has shardings."""
    return not all(isinstance(s, _Unspecified) for s in (*params["in_shardings"], *params["out_shardings"]))


def compiled(primitive: Any, params: dict[str, Any]) -> Callable[..., Any]:
    """Returns the function that evaluates a primitive on concrete arrays. JAX itself looks it up at every call."""
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
