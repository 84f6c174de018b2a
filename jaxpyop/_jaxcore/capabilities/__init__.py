"""Everything that the package uses of JAX below its documented surface, and what it does if a part is missing.

Reading order: table (the capabilities), probes (how each is tried), required (the names without which the package
cannot work).
"""

from jaxpyop._jaxcore.capabilities.required import (
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
    has,
    is_too_old_for,
    missing,
    parts_of,
    using,
    warn_of_missing,
)
