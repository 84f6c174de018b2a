"""`map_batches`: one compiled `vmap` for each block of a long list of elements, with results that outlive the process.

Reading order: `sweep` is the loop over the blocks. `inputs` cuts them from arrays or an iterable. `folder` keeps finished
blocks, and shares them among processes. `identity` says what a function is, so that a folder is not used for another one.
"""

from jaxpyop._batches.sweep import map_batches
