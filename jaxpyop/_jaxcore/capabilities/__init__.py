"""What the package needs of JAX below its documented surface, and what it does where that is missing.

Reading order: table (the capabilities), probes (how each is tried), required (what the package cannot be without).
"""

from jaxpyop._jaxcore.capabilities.required import (
    IS_NEWER_THAN_TESTED,
    JAX_VERSION,
    REQUIRED,
    TESTED,
    Primitive,
    ShapedArray,
    Trace,
    Tracer,
    ad,
    batching,
    mlir,
)
from jaxpyop._jaxcore.capabilities.table import (
    CAPABILITIES,
    Capability,
    has,
    is_too_old_for,
    missing,
    parts_of,
    using,
    warn_of_missing,
)
