"""`map_batches`: one compiled `vmap` for each block of many elements, with results that outlive the process.

Reading order: `sweep` is the loop over the blocks, and tells whether a function is the one of a folder. `inputs` cuts
the blocks from arrays or an iterable. `folder` keeps finished blocks, and shares them among processes. `contents` tells
whether a value that is no array is the one of a folder.
"""

from jaxpyop._batches.sweep import map_batches
