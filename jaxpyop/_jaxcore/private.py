"""Every name that the package uses of JAX below its public surface, and a check that each does what we rely on.

No other module looks up such a name. If one is missing, or the check fails, the package runs portable, see `public`.
The names of `jax.extend` are taken from where `jax.extend` has them, because it also imports Pallas, which takes long.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import core as public_core

# The key of every setting that a trace depends on.
from jax._src.config import trace_context

# `abstract_token` is the type of the tokens by which XLA orders effects. `eval_jaxpr` frees each value after its last
# use. `find_top_trace` gives the current trace, and `set_current_trace` makes another one current for a block.
# `trace_ctx` is the state of the thread, with the axis names that an eager vmap has bound, and `top_axis_env` has none.
from jax._src.core import abstract_token, eval_jaxpr, find_top_trace, set_current_trace, top_axis_env, trace_ctx

# What evaluates most primitives, and the compiled function that it looks up for that at each call. The primitives whose
# lowering is told over which devices the program runs. The tokens of the programs in flight, where those of failed
# programs stay.
from jax._src.dispatch import (
    apply_primitive,
    prim_requires_devices_during_lowering,
    runtime_tokens,
    xla_primitive_callable,
)

# The classes of effects that the derivative of a loop keeps where nobody uses the results.
from jax._src.effects import partial_eval_kept_effects

# The class of a value in jax.jvp, and the rules of jax.linearize and jax.grad.
from jax._src.interpreters.ad import JVPTracer, primitive_linearizations

# The rules of vmap for primitives that need to know the size of the batch: those of cond and while_loop.
from jax._src.interpreters.batching import fancy_primitive_batchers

# What a lowering rule is given: it has the callbacks of the program, and the tokens of ordered effects. The lowering
# rules of JAX's own primitives, where those with a combiner are wrapped.
from jax._src.interpreters.mlir import LoweringRuleContext, ModuleContext
from jax._src.interpreters.mlir import _lowerings as lowerings

# What makes the constants of a jaxpr its first inputs, and what removes what its results do not need. The rules of
# jax.checkpoint.
from jax._src.interpreters.partial_eval import convert_constvars_jaxpr, dce_jaxpr, partial_eval_jaxpr_custom_rules
from jax._src.lax.control_flow import loops
from jax._src.lib import xla_client

# The source line and the named scope that new equations get. What leaves the files of a folder out of source lines, and
# out of tracebacks.
from jax._src.source_info_util import current_name_stack, user_context
from jax._src.source_info_util import register_exclusion as leave_out_of_source_lines
from jax._src.traceback_util import register_exclusion as leave_out_of_tracebacks

# The registration of a cache that jax.clear_caches() clears.
from jax._src.util import register_cache

# The clients of the process, whether there are any yet, and the default one.
from jax._src.xla_bridge import backends, backends_are_initialized, get_backend

# What emits the call of a function that jaxlib registers with XLA.
from jax.ffi import ffi_lowering

# What moves out of a loop that is differentiated what is the same in each iteration.
scan_known_hoisting: Any = loops._scan_known_hoisting
# What jax.device_put ends in.
batched_device_put: Any = xla_client.batched_device_put

_Trace: Any = public_core.Trace
_Tracer: Any = public_core.Tracer
_SCALAR: Any = jax.typeof(np.float32(0))

# ------------------------------------------------------------------- the check


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(f"JAX does something else: {what}")


class _Recorder(_Trace):
    """A trace that notes the primitives that JAX gives it, and returns tracers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_low = False
        self.calls: list[tuple[Any, Any, Any]] = []

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        self.calls.append((primitive, tracers, params))
        out = _Tracer(self, _SCALAR)
        return [out] if primitive.multiple_results else out

    def process_custom_jvp_call(self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **params: Any) -> Any:
        self.calls.append((primitive, tracers, params))
        return fun.call_wrapped(*tracers)


def _check_own_traces() -> None:
    """Checks that a trace of ours gets each primitive, with its operands and parameters."""
    outside, trace = find_top_trace(()), _Recorder()
    x = _Tracer(trace, _SCALAR)
    identity = jax.custom_jvp(lambda x: x)
    identity.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    with set_current_trace(trace):
        _expect(find_top_trace(()) is trace, "the current trace")
        made = [jax.lax.neg(x), jax.jit(lambda x: -x)(x)]
        _expect(all(isinstance(y, _Tracer) for y in made) and identity(x) is x, "results of a trace")
    _expect(find_top_trace(()) is outside, "the end of a trace")
    (neg, operands, params), (jit, _, jit_params), (_, custom_operands, _) = trace.calls
    _expect(neg is jax.lax.neg_p and list(operands) == [x] and isinstance(params, dict), "primitives of a trace")
    _expect(jit.multiple_results and "jaxpr" in jit_params and list(custom_operands) == [x], "calls in a trace")
    trace.invalidate()
    _expect(not x._trace.is_valid() and hasattr(trace, "_weakref"), "a trace that is over")


def _check_settings() -> None:
    """Checks what is known of the thread and its settings: a key of them that does not change would reuse programs."""
    _expect(trace_ctx.is_top_level() and trace_ctx.axis_env is top_axis_env, "the top level")
    before = trace_context()
    with jax.default_matmul_precision("float32"):
        changed, value = trace_context(), getattr(jax.default_matmul_precision, "value", None)
    _expect(value == "float32", "the value of a setting here and now")
    _expect(hash(before) == hash(trace_context()) and before == trace_context() != changed, "the key of settings")


def _check_linearize_rule() -> None:
    """Checks the order of a linearize rule's results."""
    primitive: Any = type(jax.lax.neg_p)("jaxpyop_check")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda x: [x])
    rule = linearize_rule(lambda perturbed, operands: (list(operands), [True], lambda ts: [jax.lax.neg(ts[0])]))
    primitive_linearizations[primitive] = rule
    try:
        tangent = lambda x, t: jax.linearize(lambda x: primitive.bind(x)[0], x)[1](t)
        jaxpr: Any = jax.make_jaxpr(tangent)(1.0, 1.0).jaxpr
    finally:
        del primitive_linearizations[primitive]
    (eqn,) = jaxpr.eqns
    _expect(eqn.primitive is jax.lax.neg_p and eqn.invars[0] is jaxpr.invars[1], "a linearize rule")


def linearize_rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a rule for JAX's table of linearize rules, made of one as `rules.set_linearize_rule` takes.

    JAX may be given residuals beside the pushforward. Ours closes over them, so that their list is empty.
    """

    def linearize(is_vjp: bool, perturbed: Sequence[bool], *operands: Any, **params: Any) -> Any:
        outs, has_tangent, push = rule(perturbed, operands, **params)
        # From JAX 0.11.1 on, a linearize rule returns one result more.
        if jax.__version_info__[:3] >= (0, 11, 1):
            return outs, has_tangent, [], None, lambda residuals, other, *tangents: push(tangents)
        return outs, has_tangent, [], lambda residuals, *tangents: push(tangents)

    return linearize


def _check_loops() -> None:
    """Checks that differentiation takes what a loop can do once from the function that `rules` replaces."""
    asked: list[Any] = []
    loops._scan_known_hoisting = lambda *args: asked.append(args) or without_hoisting(*args)
    try:
        turn = lambda c, _: (c * jax.lax.exp(np.float32(2)), None)
        jax.make_jaxpr(lambda x: jax.linearize(lambda x: jax.lax.scan(turn, x, None, length=2)[0], x)[0])(1.0)
    finally:
        loops._scan_known_hoisting = scan_known_hoisting
    ((closed, consts, count, *_),) = asked
    _expect(hasattr(closed, "effects") and len(consts) == 0 and count == 1, "the derivative of a loop")


def without_hoisting(
    jaxpr: Any, consts: Sequence[Any], count: int, *_: Any
) -> tuple[Any, Sequence[Any], list[bool], Any]:
    """Returns what `_scan_known_hoisting` returns if nothing moves out of the loop, as its own comment says."""
    return jaxpr, consts, [False] * count, []


def _check_jaxprs() -> None:
    """Checks the functions of jaxprs, and that JAX evaluates its primitives by one function."""
    jaxpr: Any = jax.make_jaxpr(lambda x, y: [-x, -y])(1.0, 1.0).jaxpr
    smaller, used = dce_jaxpr(jaxpr, [True, False])
    _expect(len(smaller.eqns) == 1 and list(used) == [True, False], "dead code")
    _expect(len(convert_constvars_jaxpr(jaxpr).invars) == 2, "constants of a jaxpr")
    shapes = jax.eval_shape(lambda x, y: eval_jaxpr(jaxpr, [], x, y), np.float32(1), np.float32(1))
    _expect(len(shapes) == 2, "the evaluation of a jaxpr")
    with user_context(None, name_stack=current_name_stack()):
        pass
    _expect(getattr(jax.lax.neg_p.impl, "func", None) is apply_primitive, "how a primitive is evaluated")


def _check_tables() -> None:
    """Checks the tables of rules, what a jitted function tells of itself, and the context of a lowering."""
    _expect(all(p in fancy_primitive_batchers for p in (jax.lax.cond_p, jax.lax.while_p)), "rules of cond and while")
    combining = jax.lax.reduce_p, jax.lax.reduce_window_p, jax.lax.scatter_p, jax.lax.select_and_scatter_p
    _expect(all(callable(lowerings[p].rule) for p in combining), "the lowering rules of reductions and scatters")
    static: Any = jax.jit(lambda x, k: x, static_argnums=1)
    _expect(static._jit_info.static_argnames == ("k",), "the static arguments of a jitted function")
    fields = {field.name for field in dataclasses.fields(LoweringRuleContext)}
    _expect({"module_context", "avals_in", "avals_out", "tokens_in"} <= fields, "the context of a lowering")
    used = [ModuleContext.add_host_callback, LoweringRuleContext.set_tokens_out, partial_eval_kept_effects.add_type]
    used += [prim_requires_devices_during_lowering.add, runtime_tokens.clear, trace_ctx.set_axis_env]
    _expect(all(map(callable, used)), "what is called while JAX lowers and runs")


def _check() -> Any:
    """Runs all checks, and returns the evaluating trace, which is the current one in a thread that just began."""
    with jax.disable_jit(False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _check_own_traces()
        _check_settings()
        _check_linearize_rule()
        _check_loops()
        _check_jaxprs()
        _check_tables()
        return find_top_trace(())


# In a thread, the checks run outside of the trace, and without the settings, that the importing code may be under.
with concurrent.futures.ThreadPoolExecutor(1) as _thread:
    EVAL_TRACE = _thread.submit(_check).result()
