"""A tracer for Python bodies: their `if`s and loops on values become parts of a program.

The body never runs on values. Reading order: body (the three ways of tracing one), follow (one run for each path),
rewrite (statements as calls of ours), loop (a loop with a backward pass).
"""

from jaxpyop._paths.body import trace_body
from jaxpyop._paths.follow import PathError, PathTracer, SlowPathsError, check_numbers, infer_shapes, trace_paths
