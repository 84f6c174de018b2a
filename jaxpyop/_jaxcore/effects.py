"""The effects of stateful ops. JAX accepts and rejects them wherever it accepts and rejects those of io_callback.

A `vmap` of a `cond` or `while_loop` is the exception. JAX rejects each one that holds an effect of io_callback. A cond
whose predicate is the same for the whole batch stays a cond, so its effects are safe. JAX's rules are wrapped here, to
accept that, and to raise errors that name the op.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxpyop._jaxcore.capabilities import has, using
from jaxpyop._jaxcore.jaxprs import jaxprs_in
from jaxpyop._jaxcore.primitives import IO_EFFECT, ORDERED_IO

# Whether JAX's batching rule of a cond is running, whose predicate is the same for the whole batch.
_in_safe_cond: contextvars.ContextVar[bool] = contextvars.ContextVar("_in_safe_cond", default=False)


class _OpEffect:
    """The effect of one stateful op, mixed into the classes of io_callback's effects.

    JAX recognizes an effect by `isinstance`, which these classes pass, or by `effect in effects`, which `__eq__`
    decides. The effects of one op are equal, because `jax_enable_checks` infers them again and compares. Where JAX
    prints the effects that it refuses, this one says what to do.
    """

    # The effect of io_callback that this one stands in for.
    like: Any

    def __init__(self, title: str, cure: str) -> None:
        self.title = title
        self.cure = cure

    def __hash__(self) -> int:
        return hash(self.like)

    def __eq__(self, other: object) -> bool:
        if other is self.like:
            return not _in_safe_cond.get()
        return isinstance(other, type(self)) and str(other) == str(self)

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

    __hash__ = _OpEffect.__hash__

    def __eq__(self, other: object) -> bool:
        # Tokens order by effect, and XLA aborts on a program with two ordered effects. So the effects
        # of all ordered ops are equal, even across two imports of jaxpyop.
        return (other is not self.like and isinstance(other, _OrderedIoEffect)) or super().__eq__(other)


def _make_effect_classes() -> tuple[Callable[[str, str], Any], Callable[[str, str], Any]]:
    """Returns what makes the effect of a stateful op, and of an ordered one, from the op's title and a cure."""
    if (kept := using("own_effects")) is None:
        return lambda title, cure: IO_EFFECT, lambda title, cure: ORDERED_IO
    # A differentiated scan drops effects without a result (io_callback's too), except for these.
    for kind in (_StatefulEffect, _OrderedEffect):
        kept.add_type(kind)
    return _StatefulEffect, _OrderedEffect


StatefulEffect, OrderedEffect = _make_effect_classes()


# --------------------------------------------------- vmap of cond and while_loop


def _op_effects(params: dict[str, Any]) -> Iterator[_OpEffect]:
    return (effect for jaxpr in jaxprs_in(params) for effect in jaxpr.effects if isinstance(effect, _OpEffect))


class RefusedEffectError(NotImplementedError):
    """A stateful op is in a loop or branch that cannot hold it."""


def _refusal(effect: _OpEffect, reason: str) -> RefusedEffectError:
    return RefusedEffectError(f"a vmap of a {reason.format(effect.title)}; or {effect.cure}")


_COND = (
    "cond on a predicate that differs by element cannot hold the stateful {}: call it outside the cond, with the "
    "predicate as when=, which decides for each element"
)
_WHILE = (
    "while_loop (ordered, or of a length that differs by element) cannot hold the stateful {}: loop to the longest "
    "length with fori_loop, and pass as when= a boolean that is true while the element continues"
)


def _wrapped_cond(rule: Callable[..., Any]) -> Callable[..., Any]:
    def batch_cond(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        effect = next(_op_effects(params), None)
        # The first operand is the predicate.
        if effect is not None and dims[0] is not None:
            raise _refusal(effect, _COND)
        token = _in_safe_cond.set(effect is not None)
        try:
            return rule(axis_data, args, dims, **params)
        finally:
            _in_safe_cond.reset(token)

    return batch_cond


def _wrapped_while(rule: Callable[..., Any]) -> Callable[..., Any]:
    def batch_while(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        token = _in_safe_cond.set(False)
        try:
            return rule(axis_data, args, dims, **params)
        except RefusedEffectError:
            raise
        except Exception as error:
            # JAX's refusal has no class of its own, so it is recognized by the word "effect" in its text. Any other
            # error comes from a rule inside the loop, and explains itself better than ours would.
            effect = next(_op_effects(params), None)
            if effect is None or "effect" not in str(error):
                raise
            raise _refusal(effect, _WHILE) from None
        finally:
            _in_safe_cond.reset(token)

    return batch_while


if has("batched_conds") and has("own_effects"):
    _rules = using("batched_conds")
    _rules[jax.lax.cond_p] = _wrapped_cond(_rules[jax.lax.cond_p])
    _rules[jax.lax.while_p] = _wrapped_while(_rules[jax.lax.while_p])
