"""`jaxpyop.jit`: programs cut at their Python calls.

A cut program is a plan: compiled segments with Python calls between them. The calls run on the caller's thread, on
jax.Arrays that stay on their devices. The program has no callback.

Reading order: `jit` (what users call, which programs are not cut, and how their calls go straight to JAX), `plan` (from
a traced program to a plan, and how it runs), `inline` (the program as a flat list), `partition` (which parts are
compiled together), `host_steps` (what Python runs).
"""

from jaxpyop._cut.inline import Program, StaysWhole, call_of, holds_call, needed
from jaxpyop._cut.jit import CutFunction, Loops
from jaxpyop._cut.plan import Lifetimes, divided, segment_of
