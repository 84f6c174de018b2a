"""`jaxpyop.jit`: programs cut at their Python calls.

A cut program is a plan: compiled segments with Python calls between them. The calls run on the caller's thread, on
jax.Arrays that stay on their devices. The program has no callback.

Reading order: `jit` (what users call), `planning` (from a traced program to a plan), `inline` (the program as a flat
list), `partition` (which parts are compiled together), `plan` (how a cut program runs), `host_step` and `loops` (what
Python runs), `whole` (which programs are not cut), `guard` (how calls of programs that are not cut go straight to JAX).
"""

from jaxpyop._cut.inline import Node, Value, needed
from jaxpyop._cut.jit import CutFunction, Loops
from jaxpyop._cut.plan import Lives, segment_of
from jaxpyop._cut.planning import divided
from jaxpyop._cut.whole import StaysWhole, check_types
