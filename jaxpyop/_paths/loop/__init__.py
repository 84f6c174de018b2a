"""A loop on values as a primitive of JAX's, with a backward pass.

Reading order: primitive, backward.
"""

# Importing this module registers the backward pass.
from jaxpyop._paths.loop import backward as backward
from jaxpyop._paths.loop.primitive import Loop as Loop
from jaxpyop._paths.loop.primitive import bind_jaxprs as bind_jaxprs
