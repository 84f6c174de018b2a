"""All that touches JAX below its documented surface.

Nothing else in the package uses names of `jax._src`, `jax.core`, `jax.extend`, `jax.ffi` or `jax.interpreters`. If a
future JAX lacks one of them, what needs it says so where it is used, and all else runs: `private` decides that. What
the package changes in JAX's own tables, and which op makes the change, is in `changes`.

Reading order: public, private, changes, traces, jaxprs, rules, lowering, runtime. Each name in them that does not begin
with an underscore is for the other packages, which know the names of this package alone, and not those of its modules.
It offers those of `_frames`, too, which reads the Python stack.
"""

from jaxpyop._frames import *
from jaxpyop._jaxcore.changes import *
from jaxpyop._jaxcore.jaxprs import *
from jaxpyop._jaxcore.lowering import *
from jaxpyop._jaxcore.private import *
from jaxpyop._jaxcore.public import *
from jaxpyop._jaxcore.rules import *
from jaxpyop._jaxcore.runtime import *
from jaxpyop._jaxcore.traces import *
