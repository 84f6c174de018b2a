"""`jaxpyop.jit`: programs cut at their Python calls.

A cut program is a plan: compiled segments with Python calls between them. The calls run on the caller's thread, on
jax.Arrays that stay on their devices. The program has no callback.

To be read in this order: `jit` (what users call), `planning` (from a traced program to a plan), `inline` (the program
as a flat list), `partition` (which parts are compiled together), `plan` (how it runs), `host_step` and `loops` (what
Python runs), `whole` (what is not cut), `guard` (how JAX's own lookup serves what is not cut).
"""

from jaxpyop._cut.inline import Node, Value
from jaxpyop._cut.jit import CutFunction, Loops
from jaxpyop._cut.plan import Lives, segment_of
from jaxpyop._cut.planning import divided
from jaxpyop._cut.whole import StaysWhole, check_types
