"""All that touches JAX below its documented surface, and all that reads Python's frames.

Nothing else in the package uses names of `jax._src`, `jax.core`, `jax.extend`, `jax.ffi` or `jax.interpreters`. Each
reach is a capability, which a future JAX may lack: `capabilities` lists them, and says what is lost without each.

Reading order: capabilities, traces, primitives, jaxprs, differentiation, sharding, effects, lowering, runtime, arrays,
programs, frames, unusable.
"""

from jaxpyop._jaxcore.arrays import is_committed, looks_at_transfers, placed_like, quick_array
from jaxpyop._jaxcore.capabilities import (
    CAPABILITIES,
    JAX_VERSION,
    TESTED,
    Primitive,
    ShapedArray,
    Trace,
    Tracer,
    ad,
    batching,
    has,
    is_too_old_for,
    missing,
    mlir,
    warn_of_missing,
)
from jaxpyop._jaxcore.differentiation import (
    Linearized,
    differentiated,
    is_inexact,
    is_zero,
    keep_in_loops,
    replaced,
    run_once_in_checkpoint,
    set_linearization,
    tangent_aval,
    zeros,
)
from jaxpyop._jaxcore.effects import OrderedEffect, StatefulEffect
from jaxpyop._jaxcore.frames import (
    NOWHERE,
    PACKAGE,
    Place,
    is_called_by_jax,
    is_called_by_user,
    is_library_file,
    is_own_file,
    is_users_file,
    place_of,
    raising_file,
    raising_line,
    steps_of,
    traceback_of_one_line,
    traceback_without_locals,
    users_frame,
    users_line,
    warn_user,
    watching_returns,
    without_outer_library_frames,
)
from jaxpyop._jaxcore.jaxprs import (
    JAXPR_TYPES,
    OMIT,
    HashedKey,
    Literal,
    OwnRulesError,
    UnkeyableError,
    constants_of,
    consts_of,
    holds_constants,
    is_same,
    jaxpr_of,
    jaxprs_in,
    make_jaxpr,
    opened,
    run_closed,
    run_cond,
    run_equation,
    run_jaxpr,
    structural_key,
    transformation2,
    without_dead_code,
)
from jaxpyop._jaxcore.lowering import (
    HAS_ZERO_COPY,
    device_count,
    is_export,
    is_packed,
    keeps_dead_code,
    lowered_buffer_callback,
    ordered_buffer_callback,
    platforms,
    refuse_in_combiners,
)
from jaxpyop._jaxcore.primitives import (
    CUSTOM_CALLS,
    allocates_ref,
    compiled,
    compiles_alone,
    function_behind,
    has_compiler_options,
    is_high,
    is_of_high_type,
    is_of_jax,
    is_plain_jit,
    is_ref,
    is_ref_type,
    is_sharded_jit,
    jit_p,
)
from jaxpyop._jaxcore.programs import (
    all_have_callbacks,
    backend_without_callbacks,
    client_of,
    has_callbacks,
    is_explicit,
    is_explicit_mesh,
    is_one_cpu,
    scan_counts,
    static_arguments,
    within_scope,
)
from jaxpyop._jaxcore.runtime import (
    CALLBACK_LOGGER,
    backends_are_initialized,
    forget_failed_programs,
    profiled_as,
    with_programs_of,
    with_transfers,
)
from jaxpyop._jaxcore.sharding import (
    Everywhere,
    cast_to_common_axes,
    devices_of,
    result_aval,
    shard_as,
    shard_batch_like,
    wants_devices,
)
from jaxpyop._jaxcore.traces import (
    EVAL_TRACE,
    HAS_OWN_TRACES,
    KnownTrace,
    at_top_level,
    clear_with_jax,
    current_trace,
    eval_context,
    evaluates_by_itself,
    is_eager,
    is_live,
    set_current_trace,
    settings_of_traces,
    under_settings,
    without_axes,
    x64_enabled,
)
from jaxpyop._jaxcore.unusable import Unusable
