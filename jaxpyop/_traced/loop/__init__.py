"""A loop on values as a primitive of JAX, with a backward pass.

Reading order: primitive (the loop and its batching), derivatives (forward and reverse mode).
"""

# Importing this module registers the derivatives.
from jaxpyop._traced.loop import derivatives
from jaxpyop._traced.loop.primitive import Loop, bind_jaxprs
