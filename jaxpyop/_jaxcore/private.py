"""Every name that the package uses of JAX below its public surface: where it is, what needs it, what goes without it.

No other module looks up such a name. A name that a JAX lacks is None here. What it takes away is the features that need
it (`FEATURES`), each of which says so where it is used (`has`, `why_without`). No code takes the place of a feature, so
that nothing is written twice: what needs it raises, or JAX's own slower way is taken.

All are looked up when the package is imported. `jax.extend` also imports Pallas, which adds settings to those that a
program depends on (JAX 0.12): if it came with the first op, each program would be traced and compiled once more.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import inspect
import os
import pkgutil
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxpyop._jaxcore.public import TESTED, Primitive, Trace, Tracer

NAMES = {
    # The state of the thread: its current trace, and the axis names that an eager vmap has bound.
    "trace_ctx": "jax._src.core.trace_ctx",
    # What makes another trace the current one for a block. It is a name of JAX's for extensions.
    "set_current_trace": "jax.extend.core.set_current_trace",
    # What a trace and a value of a trace of ours have besides.
    "trace_weakref": "jax.core.Trace._weakref",
    "tracer_trace": "jax.core.Tracer._trace",
    # The evaluation of a jaxpr, which frees each value after its last use.
    "eval_jaxpr": "jax.core.eval_jaxpr",
    # The source line and the named scope that new equations get.
    "current_name_stack": "jax.extend.source_info_util.current_name_stack",
    "user_context": "jax.extend.source_info_util.user_context",
    # What removes from a jaxpr what its results do not need.
    "dce_jaxpr": "jax.interpreters.partial_eval.dce_jaxpr",
    # The key of every setting that a trace depends on.
    "trace_context": "jax._src.config.trace_context",
    # The registration of a cache that jax.clear_caches() clears.
    "register_cache": "jax._src.util.register_cache",
    # What a jitted function tells of itself: its static arguments, and how many programs it has.
    "static_arguments": "jax.jit()._jit_info",
    "program_count": "jax.jit()._cache_size",
    # The class of a value in jax.jvp, which jax.closure_convert looks into.
    "JVPTracer": "jax.interpreters.ad.JVPTracer",
    "contents": "jax.interpreters.ad.JVPTracer._contents",
    # The clients of the process, and whether there are any yet.
    "backends": "jax.extend.backend.backends",
    "backends_are_initialized": "jax._src.xla_bridge.backends_are_initialized",
    # What emits the call of a function that jaxlib registers with XLA, and what a lowering rule is given.
    "ffi_lowering": "jax.ffi.ffi_lowering",
    "add_host_callback": "jax.interpreters.mlir.ModuleContext.add_host_callback",
    "set_tokens_out": "jax.interpreters.mlir.LoweringRuleContext.set_tokens_out",
    # What jax.device_put ends in. It takes a tenth of the time.
    "batched_device_put": "jax._src.lib.xla_client.batched_device_put",
    # The rules of jax.linearize and jax.grad.
    "primitive_linearizations": "jax._src.interpreters.ad.primitive_linearizations",
    # The primitives whose lowering is told over which devices the program runs.
    "requires_devices": "jax._src.dispatch.prim_requires_devices_during_lowering",
    # The effects that the derivative of a loop keeps where nobody uses the results, and what it does once in all.
    "kept_effects": "jax._src.effects.partial_eval_kept_effects",
    "scan_known_hoisting": "jax._src.lax.control_flow.loops._scan_known_hoisting",
    # The rules of vmap for primitives that need to know the size of the batch: those of cond and while_loop.
    "fancy_primitive_batchers": "jax.interpreters.batching.fancy_primitive_batchers",
    # The tokens of the programs in flight, where those of failed programs stay.
    "runtime_tokens": "jax._src.dispatch.runtime_tokens",
    # What leaves the files of a folder out of source lines, and out of tracebacks.
    "leave_out_of_source_lines": "jax.extend.source_info_util.register_exclusion",
    "leave_out_of_tracebacks": "jax._src.traceback_util.register_exclusion",
}


class Feature(NamedTuple):
    """What a user loses if names are missing.

    Attributes:
        without: what happens then, as one line of a list.
        names: the names that it needs, as they are called here.
        works: a check that the names do what we rely on. It runs when the feature is first used.
    """

    without: str
    names: str
    works: Callable[[], bool] = lambda: True


PORTABLE = os.environ.get("JAXPYOP_PORTABLE", "0") not in ("", "0")


def _identity(x: Any, k: Any = None) -> Any:
    return x


class _Private:
    """The names of JAX, each an attribute that is None if this JAX lacks it."""

    def __init__(self) -> None:
        for name in NAMES:
            getattr(self, name)

    def __getattr__(self, name: str) -> Any:
        if name not in NAMES:
            raise AttributeError(name)
        path, found = NAMES[name], None
        # A future JAX may raise anything.
        with contextlib.suppress(Exception):
            if path.startswith("jax.jit()") and not PORTABLE:
                found = getattr(jax.jit(_identity), path.rpartition(".")[2])
            elif not PORTABLE:
                found = pkgutil.resolve_name(path)
        vars(self)[name] = found
        return found


private = _Private()

# ------------------------------------------------------------------- the checks


class _Recorder(Trace):
    """A trace that notes the primitives that JAX gives it, and returns tracers of its own."""

    calls: list[Any]

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        self.calls.append((primitive, tracers, params))
        out = Tracer(self, jax.typeof(np.float32(0)))
        return [out] if primitive.multiple_results else out


def _own_traces_work() -> bool:
    """Tells whether a trace of ours gets the primitives that are bound under it, with their operands."""
    outside, trace = private.trace_ctx.trace, _Recorder()
    trace.calls, trace.requires_low = [], False
    x = Tracer(trace, jax.typeof(np.float32(0)))
    with private.set_current_trace(trace), private.user_context(None, name_stack=private.current_name_stack()):
        made = jax.lax.neg(x), jax.jit(lambda x: -x)(x)
    (neg, operands, _), (_, _, params) = trace.calls
    trace.invalidate()
    is_given = neg is jax.lax.neg_p and list(operands) == [x] and "jaxpr" in params and isinstance(made[0], Tracer)
    return is_given and private.trace_ctx.trace is outside and not x._trace.is_valid()


def _cutting_works() -> bool:
    """Tells whether the key of settings changes with them, because programs would be used again under others."""
    before = private.trace_context()
    with jax.default_matmul_precision("float32"):
        changed = private.trace_context()
    static: Any = jax.jit(_identity, static_argnums=1)
    is_key = hash(before) == hash(private.trace_context()) and before == private.trace_context() != changed
    return is_key and static._jit_info.static_argnames == ("k",)


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


def _linearizing_works() -> bool:
    """Tells whether a linearize rule, of a primitive that exists for this check alone, is called as we expect."""
    primitive: Any = Primitive("jaxpyop_check")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda x: [x])
    rule = linearize_rule(lambda perturbed, operands: (list(operands), [True], lambda ts: [jax.lax.neg(ts[0])]))
    private.primitive_linearizations[primitive] = rule
    try:
        tangent = lambda x, t: jax.linearize(lambda x: primitive.bind(x)[0], x)[1](t)
        (eqn,) = jax.make_jaxpr(tangent)(1.0, 1.0).eqns
    finally:
        del private.primitive_linearizations[primitive]
    return eqn.primitive is jax.lax.neg_p


def _loops_work() -> bool:
    # JAX 0.12 has two counts where 0.10 and 0.11 have one.
    return [*inspect.signature(private.scan_known_hoisting).parameters][:2] == ["jaxpr_known", "known_consts"]


# What takes a jaxpr apart and evaluates its equations.
_EQUATIONS = "trace_ctx current_name_stack user_context eval_jaxpr dce_jaxpr "
FEATURES = {
    "the tape": Feature(
        "gradients of py_function come from jax.vjp, so a differentiated function that calls float(x) or NumPy raises",
        _EQUATIONS + "set_current_trace tracer_trace trace_weakref",
        _own_traces_work,
    ),
    "traced mode": Feature(
        "mode='traced' calls the function instead, and warns", "JVPTracer contents static_arguments"
    ),
    "jaxpyop.jit": Feature(
        "jaxpyop.jit is jax.jit, and jaxpyop.export and jaxpyop.load are refused",
        _EQUATIONS + "trace_context register_cache static_arguments backends",
        _cutting_works,
    ),
    "lent memory": Feature(
        "compiled programs copy what functions read and return", "ffi_lowering add_host_callback set_tokens_out"
    ),
    "speed": Feature(
        "direct calls are slower, and programs under jaxpyop.jit that stay whole", "batched_device_put program_count"
    ),
    "linearize rules": Feature(
        "jax.grad of an op traces its forward mode, which takes longer", "primitive_linearizations", _linearizing_works
    ),
    "several devices": Feature(
        "programs over several devices are refused, except in jax.shard_map", "requires_devices"
    ),
    "loops": Feature(
        "the derivative of a loop with a stateful op is refused", "kept_effects scan_known_hoisting", _loops_work
    ),
    "vmap of cond": Feature("a vmap of a cond with a stateful op is refused", "fancy_primitive_batchers"),
    "errors": Feature(
        "errors and source lines show files of jaxpyop, after an ordered program fails the next one may raise the same "
        "error again, and no warning comes if JAX had started before the import",
        "leave_out_of_source_lines leave_out_of_tracebacks runtime_tokens backends_are_initialized",
    ),
}

# ------------------------------------------------------------------- the answers


def _in_new_thread(function: Callable[[], Any]) -> Any:
    """Calls a function outside of the trace, and without the settings, that the calling code may be under."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def call() -> None:
        try:
            with jax.disable_jit(False), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    # No pool, because a pool takes nothing any more while the process ends, when the first op may still come.
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return future.result()


# What is current in a thread that just began: the trace that evaluates, and no names of axes.
EVAL_TRACE, TOP_AXES = _in_new_thread(
    lambda: (None, None) if private.trace_ctx is None else (private.trace_ctx.trace, private.trace_ctx.axis_env)
)


@functools.cache
def why_without(feature: str) -> str:
    """Returns why this JAX does not have a feature, or "" if it has it."""
    if PORTABLE:
        return "the environment variable JAXPYOP_PORTABLE asks for it"
    names = FEATURES[feature].names.split()
    if absent := [NAMES[k] for k in names if getattr(private, k) is None]:
        return f"JAX {jax.__version__} has no {', '.join(absent)}"
    try:
        what = "" if _in_new_thread(FEATURES[feature].works) else "a check fails"
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
    if what:
        what = f"JAX {jax.__version__} does something else with {', '.join(NAMES[k] for k in names)}: {what}"
        warnings.warn(f"{what}. So {FEATURES[feature].without}", RuntimeWarning, stacklevel=3)
    return what


@functools.cache
def has(feature: str) -> bool:
    """Tells whether this JAX has a feature. What needs one that it has not raises, with `why_without`."""
    return not why_without(feature)


def warn_of_missing() -> None:
    """Warns, when jaxpyop is imported, of names that this JAX lacks. Who set JAXPYOP_PORTABLE knows it."""
    absent = {k for k, value in vars(private).items() if value is None and not PORTABLE}
    if absent:
        lost = [f.without for f in FEATURES.values() if absent & set(f.names.split())]
        warnings.warn(
            f"JAX {jax.__version__} has no {', '.join(NAMES[k] for k in sorted(absent))}, which jaxpyop uses. So "
            f"{'; '.join(lost)}. A newer jaxpyop may not need it, and JAX {TESTED} has it",
            RuntimeWarning,
            stacklevel=3,
        )
