"""The effects of stateful ops. JAX accepts and rejects them where it does io_callback's effects."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental
from jax._src import effects as _effects

from jaxpyop._jaxcore.frames import outer_frame


def _effects_of(**kwargs: Any) -> Any:
    sds = jax.ShapeDtypeStruct((), "float32")
    traced = jax.make_jaxpr(lambda: jax.experimental.io_callback(lambda: 0.0, sds, **kwargs))()
    return next(iter(traced.effects))


_IO = _effects_of()
# JAX keeps the token that puts ordered operations in program order under this effect.
ORDERED_IO = _effects_of(ordered=True)

# The rules of JAX 0.10 to 0.12 that look for io_callback's effects and reject them, each with our error text.
_REFUSING = {
    "_cond_batching_rule": "cond on a predicate that differs by element cannot hold the stateful {}: call it outside "
    "the cond, with the predicate as when=, which decides for each element",
    "_while_loop_batching_rule": "while_loop (ordered, or of a length that differs by element) cannot hold the "
    "stateful {}: loop to the longest length with fori_loop, and pass as when= a boolean that is true while the "
    "element continues",
}
# JAX tests for membership at most this many frames below its rule, perhaps in a generator expression.
_FRAMES_TO_THE_RULE = 5


class _OpEffect:
    """The effect of one stateful op, mixed into the classes of io_callback's effects.

    JAX finds a subclass by isinstance, and an equal effect by membership. The effects of one op are equal, because
    `jax_enable_checks` infers them again and compares. Where JAX prints the effects that it refuses, this one says
    what to do.
    """

    # The effect of io_callback that this one stands in for.
    like: Any

    def __init__(self, title: str, cure: str) -> None:
        self.title = title
        self.cure = cure

    def __hash__(self) -> int:
        return hash(self.like)

    def __eq__(self, other: object) -> bool:
        if other is self.like and (frame := outer_frame(_REFUSING, _FRAMES_TO_THE_RULE)) is not None:
            # `index_dim` is the predicate's batch axis in JAX's cond rule (JAX 0.10 to 0.12). None means one
            # predicate for the whole batch: the cond stays a cond, of batched branches, so the effect is safe.
            if frame.f_locals.get("index_dim", 0) is None:
                return False
            # JAX's own error would not name the op.
            raise NotImplementedError(
                f"a vmap of a {_REFUSING[frame.f_code.co_name].format(self.title)}; or {self.cure}"
            )
        return other is self.like or (isinstance(other, type(self)) and str(other) == str(self))

    def __str__(self) -> str:
        return f"the stateful {self.title} ({self.cure})"

    __repr__ = __str__


# The classes of the two effects have no names to import.
_IoEffect: Any = type(_IO)
_OrderedIoEffect: Any = type(ORDERED_IO)


class StatefulEffect(_OpEffect, _IoEffect):
    like = _IO


class OrderedEffect(_OpEffect, _OrderedIoEffect):
    like = ORDERED_IO

    __hash__ = _OpEffect.__hash__

    def __eq__(self, other: object) -> bool:
        # Tokens order by effect, and XLA aborts on a program with two ordered effects. So the effects
        # of all ordered ops are equal, even across two imports of jaxpyop.
        return (other is not self.like and isinstance(other, _OrderedIoEffect)) or super().__eq__(other)


# A differentiated scan drops effects without a result (io_callback's too), except for these. There is no public name
# for the set up to JAX 0.12.
for _kept in (StatefulEffect, OrderedEffect):
    _effects.partial_eval_kept_effects.add_type(_kept)
