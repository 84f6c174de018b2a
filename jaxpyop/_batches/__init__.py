"""`map_batches`: one compiled `vmap` for each block of many elements, with results that outlive the process.

Reading order: `sweep` is the loop over the blocks. `inputs` cuts them from arrays or an iterable. `folder` keeps
finished blocks, and shares them among processes. `identity` tells whether a function is the one of a folder.
"""

from jaxpyop._batches.sweep import map_batches
