"""`jaxpyop.jit`: programs cut at their Python calls.

A cut program is a plan: compiled segments, and between them the Python calls, which run on the caller's thread on
jax.Arrays where they are. No callback is left in it.

To read: jit, inline, partition, plan, host_step, loops, whole.
"""

from jaxpyop._cut.jit import CutFunction as CutFunction
from jaxpyop._cut.jit import Loops as Loops
