"""The way from XLA to Python and back.

A compiled program holds a `Host` and calls it with its buffers (`transport`). The host enters the caller's
`environment`, makes arrays of the buffers (in `memory` that is used again), and runs a call on them: at once, or on
each element of a batch (`batching`, `columns`), here or where `executor=` says (`executors`): on a pool's `threads`, or
in other `workers`, in `chunks` (`apart` from each other, where each element has something of its own to send), with a
bar when asked (`progress`). `places` knows who runs where, so that nobody waits for himself. What comes back is written
into XLA's memory; what is raised becomes a text that XLA can carry, and is found again by it (`errors`). Where several
devices call, one run may serve them all (`sharing`). `guard` is why JAX code in a body finds a free thread.

To read: transport, memory, environment, batching, columns, executors, threads, places, workers, chunks, apart,
progress, errors, sharing, guard.
"""

from jaxpyop._host.batch import NO_BATCH as NO_BATCH
from jaxpyop._host.batch import Batch as Batch
from jaxpyop._host.buffers import SCRATCH as SCRATCH
from jaxpyop._host.buffers import Host as Host
from jaxpyop._host.buffers import Shared as Shared
from jaxpyop._host.buffers import lend as lend
from jaxpyop._host.buffers import lend_results as lend_results
from jaxpyop._host.buffers import take_back as take_back
from jaxpyop._host.buffers import take_back_results as take_back_results
from jaxpyop._host.environment import Environment as Environment
from jaxpyop._host.errors import add_note as add_note
from jaxpyop._host.errors import reraise as reraise
from jaxpyop._host.errors import strip_library_frames as strip_library_frames
from jaxpyop._host.guard import install_guard as install_guard
from jaxpyop._host.guard import pool_threads as pool_threads
from jaxpyop._host.guard import verdict as verdict
from jaxpyop._host.pools import Pool as Pool
from jaxpyop._host.run import BLOCK_METHODS as BLOCK_METHODS
from jaxpyop._host.run import METHODS as METHODS
from jaxpyop._host.run import VmapMethod as VmapMethod
from jaxpyop._host.run import check_progress as check_progress
from jaxpyop._host.run import run_each as run_each
from jaxpyop._host.run import run_elements as run_elements
from jaxpyop._host.run import run_once as run_once
from jaxpyop._host.run import run_there as run_there
