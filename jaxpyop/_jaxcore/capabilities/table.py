"""The capabilities: each use of JAX below its documented surface, with its probe, and what is lost without it.

Each capability is probed once, when jaxpyop is imported. The modules that use it ask for it with `using` when they are
imported, so a call at run time costs nothing extra.
"""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxpyop._config import config
from jaxpyop._jaxcore.capabilities import probes
from jaxpyop._jaxcore.capabilities.required import IS_NEWER_THAN_TESTED, TESTED, look_up


@dataclasses.dataclass(frozen=True)
class Capability:
    """One use of JAX below its documented surface.

    Attributes:
        name: the name of the capability in `JAXPYOP_WITHOUT` and in the report of `doctor`.
        purpose: what the package can do with it.
        names: the names of JAX that it needs. The objects with these names are the arguments of the probe.
        probe: tries the objects out, and returns what `using` returns. It raises if JAX does something else.
        loss: what the package cannot do without it.
        since: the first version of JAX that has the names.
    """

    name: str
    purpose: str
    names: tuple[str, ...]
    probe: Callable[..., Any]
    loss: str
    since: str = "0.10.0"


CAPABILITIES = (
    Capability(
        "own_traces",
        "gradients of functions that ask for values, and mode='traced'",
        ("jax.extend.core.set_current_trace", "jax.extend.core.find_top_trace"),
        probes.own_traces,
        "gradients of py_function come from jax.vjp, so a differentiated function that calls float(x) or NumPy raises; "
        "mode='traced' is refused; the result's shape is not found if the function has an if on a value",
    ),
    Capability(
        "trace_identity",
        "in JAX's caches, all recordings have the same trace",
        ("jax.extend.core.set_current_trace",),
        probes.trace_identity,
        "recordings are slower, and leave entries in JAX's caches",
    ),
    Capability(
        "named_axes",
        "functions do not see the axis names of an eager vmap",
        ("jax._src.core.trace_ctx", "jax._src.core.top_axis_env"),
        probes.named_axes,
        "a function can see the axis names of an eager vmap around it, and errors about them are JAX's own",
    ),
    Capability(
        "settings_of_traces",
        "inferred shapes and cut programs are reused if JAX's settings are the same",
        ("jax._src.config.trace_context",),
        probes.settings_of_traces,
        "every call infers shapes again, and jaxpyop.jit cuts the program again",
    ),
    Capability(
        "lazy_tape",
        "config.tape='lazy': operations are evaluated later, under the settings that they were recorded with",
        (
            "jax._src.config.StateContextManager",
            "jax._src.config.trace_context",
            "jax._src.config.trace_context_names",
            "jax._src.core.axis_env_state",
            "jax._src.util.register_cache",
        ),
        probes.lazy_tape,
        "config.tape='lazy' does the same as 'eager'",
        since="0.10.2",
    ),
    Capability(
        "linearize_rule",
        "jax.grad calls the rule of an op instead of splitting its JVP",
        ("jax._src.interpreters.ad.primitive_linearizations",),
        probes.linearize_rule,
        "jax.grad traces the forward mode of an op, which takes longer",
    ),
    Capability(
        "checkpoint_rule",
        "a function under jax.checkpoint runs once",
        ("jax.interpreters.partial_eval.partial_eval_jaxpr_custom_rules",),
        probes.table_of_rules,
        "a function under jax.checkpoint runs again for the backward pass; if it draws random numbers, they differ",
    ),
    Capability(
        "loop_rule",
        "the derivative of a loop runs a stateful function in each iteration",
        ("jax.interpreters.partial_eval.custom_partial_eval_rules",),
        probes.loop_rule,
        "a stateful function may run once in the derivative of a loop if its inputs are the same in each iteration",
    ),
    Capability(
        "zero_copy",
        "compiled programs lend their buffers to functions",
        (
            "jax.ffi.ffi_lowering",
            "jax._src.core.abstract_token",
            "jax.interpreters.mlir.ModuleContext",
            "jax.interpreters.mlir.LoweringRuleContext",
        ),
        probes.zero_copy,
        "compiled programs call functions through pure_callback and io_callback, which are slower",
    ),
    Capability(
        "own_effects",
        "stateful ops have an effect of their own, which a differentiated scan keeps",
        ("jax._src.effects.partial_eval_kept_effects",),
        probes.own_effects,
        "stateful ops have the effect of io_callback: JAX's errors do not name the op, and a differentiated scan drops "
        "a stateful op whose result is unused, as it drops an io_callback",
    ),
    Capability(
        "batched_conds",
        "a vmap of a cond or while_loop with a stateful op works if that is safe",
        ("jax.interpreters.batching.fancy_primitive_batchers",),
        probes.batched_conds,
        "JAX refuses every vmap of a cond with a stateful op, and its errors about a while_loop do not name the op",
    ),
    Capability(
        "unused_tangents",
        "outside jit, a tangent that cannot be computed raises only where it is used",
        (),
        probes.unused_tangents,
        "outside jit, such a tangent raises in every operation that receives it",
    ),
    Capability(
        "devices_in_lowering",
        "programs over several devices",
        ("jax._src.dispatch.prim_requires_devices_during_lowering",),
        lambda registry: probes.callables(registry.add),
        "programs over several devices are refused, except in jax.shard_map",
    ),
    Capability(
        "compiled_primitives",
        "the tape evaluates a primitive with its compiled function",
        ("jax._src.dispatch.apply_primitive", "jax._src.dispatch.xla_primitive_callable"),
        probes.compiled_primitives,
        "recordings are slower",
    ),
    Capability(
        "fast_tracing",
        "mode='traced' and jaxpyop.jit trace some functions in a third of the time",
        ("jax.extend.linear_util.wrap_init", "jax.interpreters.partial_eval.trace_to_jaxpr_dynamic"),
        probes.fast_tracing,
        "mode='traced' and jaxpyop.jit take longer to trace",
    ),
    Capability(
        "jaxpr_tools",
        "JAX evaluates jaxprs, closes them and removes dead code from them",
        (
            "jax.core.eval_jaxpr",
            "jax.interpreters.partial_eval.dce_jaxpr",
            "jax._src.interpreters.partial_eval.convert_constvars_jaxpr",
        ),
        probes.jaxpr_tools,
        "gradients take more memory, tracing takes longer, and unused_tangents is lost as well",
    ),
    Capability(
        "custom_rules",
        "mode='traced' follows each if inside a function with a custom derivative",
        ("jax.extend.linear_util.transformation2",),
        lambda found: found if probes.callables(found) else None,
        "mode='traced' refuses an if on a traced value inside a function with a custom derivative",
    ),
    Capability(
        "source_lines",
        "operations that move into another program keep their source lines",
        ("jax.extend.source_info_util.current_name_stack", "jax.extend.source_info_util.user_context"),
        probes.source_lines,
        "JAX shows wrong source lines and named scopes for the operations of mode='traced' and jaxpyop.jit",
    ),
    Capability(
        "hidden_frames",
        "tracebacks and source lines leave out the files of jaxpyop",
        ("jax._src.traceback_util.register_exclusion", "jax.extend.source_info_util.register_exclusion"),
        probes.callables,
        "tracebacks and source lines show files of jaxpyop",
    ),
    Capability(
        "combiners",
        "a call in the combiner of jax.lax.reduce is refused",
        ("jax._src.interpreters.mlir._lowerings",),
        probes.combiners,
        "a call in such a combiner ends the process, because XLA cannot run it",
    ),
    Capability(
        "quick_arrays",
        "a small result becomes a jax.Array in a tenth of the time",
        ("jax._src.lib.xla_client.batched_device_put", "jax._src.xla_bridge.get_backend"),
        probes.callables,
        "calls outside of jit are slower",
    ),
    Capability(
        "clients",
        "jaxpyop.jit knows all clients of the process",
        ("jax._src.xla_bridge.backends",),
        lambda found: found if probes.callables(found) else None,
        "each call of jaxpyop.jit takes longer",
    ),
    Capability(
        "started",
        "the import warns if JAX has already started",
        ("jax._src.xla_bridge.backends_are_initialized",),
        lambda found: found if probes.callables(found) else None,
        "there is no warning if JAX starts before jaxpyop is imported, although JAX code in functions may then wait "
        "forever",
    ),
    Capability(
        "failed_programs",
        "reraise() drops the tokens of programs that failed",
        ("jax._src.dispatch.runtime_tokens",),
        lambda tokens: tokens if probes.callables(tokens.block_until_ready, tokens.clear) else None,
        "the next ordered program may raise the error of a failed one again",
    ),
)

_BY_NAME = {capability.name: capability for capability in CAPABILITIES}


def _turned_off() -> frozenset[str]:
    names = frozenset(config.without)
    if "all" in names:
        return frozenset(_BY_NAME)
    if unknown := sorted(names - _BY_NAME.keys()):
        raise ValueError(
            f"environment variable JAXPYOP_WITHOUT: there is no capability {unknown[0]!r}; "
            f"there are {', '.join(_BY_NAME)}, and all"
        )
    return names


def _probe_all() -> dict[str, Any]:
    """Runs all probes, in a new thread, because the importing code may be inside a trace or have changed settings."""
    found: dict[str, Any] = {}
    off = _turned_off()

    def probe() -> None:
        with jax.disable_jit(False), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for capability in CAPABILITIES:
                if capability.name not in off:
                    found[capability.name] = _probe(capability)

    thread = threading.Thread(target=probe, name="jaxpyop-probes")
    thread.start()
    thread.join()
    return found


def _probe(capability: Capability) -> Any:
    # A future JAX may raise anything here. Any exception means that the capability is missing.
    try:
        return capability.probe(*map(look_up, capability.names))
    except Exception:
        return None


_found = _probe_all()


def using(name: str) -> Any:
    """Returns what the probe of a capability returned; None if the capability is missing or turned off."""
    return _found.get(_BY_NAME[name].name)


def parts_of(name: str, count: int) -> tuple[Any, ...]:
    """Returns the tuple that the probe of a capability returned; a tuple of None if it is missing or turned off."""
    return using(name) or (None,) * count


def has(name: str) -> bool:
    """Tells whether a capability is neither missing nor turned off."""
    return using(name) is not None


def missing() -> Sequence[Capability]:
    """Returns the capabilities that this JAX should have and does not. What the user turned off does not count."""
    return [c for c in CAPABILITIES if _found.get(c.name, c) is None and not is_too_old_for(c)]


def is_too_old_for(capability: Capability) -> bool:
    """Tells whether this JAX is older than the first version with the names of a capability."""
    return jax.__version_info__[:3] < tuple(map(int, capability.since.split(".")))


def warn_of_missing() -> None:
    """Warns of all missing capabilities at once, when jaxpyop is imported."""
    if not (lacking := missing()):
        return
    newer = f", and is newer than those that jaxpyop was tested with ({TESTED})" if IS_NEWER_THAN_TESTED else ""
    losses = "; ".join(f"{capability.name}: {capability.loss}" for capability in lacking)
    warnings.warn(
        f"JAX {jax.__version__} does not have all that jaxpyop uses of it{newer}. What is missing, and what is lost "
        f"without it: {losses}. A newer jaxpyop may not need it, and JAX {TESTED} has it. "
        "`python -m jaxpyop doctor` shows the whole list",
        RuntimeWarning,
        stacklevel=3,
    )
