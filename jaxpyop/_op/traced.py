"""`mode="traced"`: the body becomes part of the program instead of being called.

Nothing runs on the host: XLA places the operations, and JAX's own rules
differentiate them, so the body may close over traced values. What an eager
body's results are checked for by value is checked by dtype here, for every
path that the body can take.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop._op.bodies import UserBody
from jaxpyop._op.forms import inward
from jaxpyop._op.inputs import Inputs
from jaxpyop._op.op import Op
from jaxpyop._op.results import check_shape, check_traced, check_usable, to_numpy
from jaxpyop._op.spec import Leaf
from jaxpyop._paths import PathError, trace_body


class UntraceableError(TypeError):
    """A body that `mode="traced"` cannot follow; the text says where and why.

    Attributes:
        why: the place and the reason, and what would have it traced as it is.
    """

    def __init__(self, text: str, why: str = "") -> None:
        super().__init__(text)
        self.why = why


def trace(op: Op, inputs: Inputs, arrays: Sequence[Any]) -> list[Any]:
    """Trace a body, with its `if`s and its loops on values, into the current trace.

    Raises:
        UntraceableError: the body asks for a value, raises on a path, has too
            many paths, or a loop that cannot be one of the program.
    """

    def checked(func: Any, *arrays: Any) -> list[Any]:
        body = UserBody(dataclasses.replace(op, func=func), inputs)
        values = body.results(arrays)
        arrays_of = inward(op, values, lambda k, value, leaf: _checked(op, k, value, leaf), ())
        for k, (value, leaf) in enumerate(zip(arrays_of, body.promised(arrays))):
            check_shape(value.shape, leaf, (), "promised", op.which(k), op.title)
        return [jnp.asarray(value) for value in arrays_of]

    try:
        # Strong types and no Python scalars, as an eager body gets.
        strong = [jax.lax.convert_element_type(a, a.dtype) for a in arrays]
        return trace_body(op.func, checked, strong, op.max_steps, op.title)
    except PathError as error:
        cause = error.__cause__
        if cause is not None and str(cause).startswith(op.title):  # one of our checks of the results
            raise cause from None
        why = f"{error.filename}:{error.lineno}: {error.reason}" + (f"; {error.remedy}" if error.remedy else "")
        raise UntraceableError(f"{op.title}: {error}", why) from cause


def _checked(op: Op, k: int, value: Any, leaf: Leaf) -> Any:
    which = op.which_returned(k)
    if isinstance(value, jax.Array):
        check_usable(value, which, op.title)
        check_traced(value.dtype, leaf, op.casting, which, op.title)
        return jax.lax.convert_element_type(value, leaf.dtype)
    return jnp.asarray(to_numpy(value, leaf, op.casting, which, op.title))
