"""The primitive `python_call`: a call is bound here, to be traced or to run at once.

Its other rules have files of their own: `batching` (vmap), `jvp_transpose` (derivatives), `lowering` (compiled
programs). No rule runs Python code before the program does, except that a result's shape may have to be inferred.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import NO_BATCH, Batch
from jaxpyop._jaxcore import Unusable
from jaxpyop._op.body import element_structs
from jaxpyop._op.primitive.call_protocol import Call, structs_of
from jaxpyop._op.primitive.direct import run_now


class _PythonCall(_jaxcore.Primitive):
    multiple_results = True
    # The tape asks for this attribute.
    calls_python = True


python_call_p = _PythonCall("python_call")


def bind(call: Call, *args: Any, batch: Batch = NO_BATCH) -> list[Any]:
    """Run a call on the host: at once, or, under a transformation, when the program runs."""
    if any(isinstance(a, Unusable) for a in args) and (refusal := call.refusal) is not None:
        return [Unusable(s.shape, s.dtype, refusal) for s in call.result_structs(args, batch)]
    return python_call_p.bind(*_jaxcore.cast_to_common_axes(args), call=call, batch=batch)


def _impl(*args: Any, call: Call, batch: Batch) -> list[Any]:
    # JAX hands Python scalars through as they are.
    arrays = [a if isinstance(a, (jax.Array, np.ndarray)) else _jaxcore.with_transfers(jnp.asarray, a) for a in args]
    if (refusal := call.refusal) is not None:
        return [Unusable(s.shape, s.dtype, refusal) for s in call.result_structs(arrays, batch)]
    outs = run_now(call, arrays, batch)
    call.note_shapes(
        structs_of(arrays, batch), element_structs(outs[: len(outs) - call.operands.extra_results], batch.sizes)
    )
    return outs


def _abstract_eval(*avals: Any, call: Call, batch: Batch) -> tuple[list[Any], set[Any]]:
    effects: set[Any] = set()
    if call.effects.stateful:
        kind = _jaxcore.OrderedEffect if call.effects.ordered else _jaxcore.StatefulEffect
        effects.add(kind(call.title, call.op.stateless_advice))
    return [_jaxcore.result_aval(s.shape, s.dtype, avals) for s in call.result_structs(avals, batch)], effects


python_call_p.def_impl(_impl)
python_call_p.def_effectful_abstract_eval(_abstract_eval)
