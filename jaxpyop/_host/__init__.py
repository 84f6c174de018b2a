"""The way from XLA to Python and back.

A compiled program holds a `Host` and calls it with its buffers. The host enters the environment of the code that called
the op, makes arrays of the buffers, and runs the call on them: once, or on each element of a batch, on this thread or
where `executor=` says. It writes the results into XLA's memory. An error becomes text that XLA can carry, and
`reraise` finds the exception again.

Reading order: host_call (what the host reads of a call), vmap_methods, elements (of a batch), environment, errors,
pools (where a body runs), run, guard (why JAX code in a body finds a free thread), buffers (the entry from XLA).
"""

from jaxpyop._host.buffers import SCRATCH as SCRATCH
from jaxpyop._host.buffers import Host as Host
from jaxpyop._host.buffers import Shared as Shared
from jaxpyop._host.buffers import lend as lend
from jaxpyop._host.buffers import lend_results as lend_results
from jaxpyop._host.buffers import take_back as take_back
from jaxpyop._host.buffers import take_back_results as take_back_results
from jaxpyop._host.elements import NO_BATCH as NO_BATCH
from jaxpyop._host.elements import Batch as Batch
from jaxpyop._host.environment import Environment as Environment
from jaxpyop._host.errors import add_note as add_note
from jaxpyop._host.errors import reraise as reraise
from jaxpyop._host.errors import strip_library_frames as strip_library_frames
from jaxpyop._host.guard import install_guard as install_guard
from jaxpyop._host.guard import pool_threads as pool_threads
from jaxpyop._host.guard import verdict as verdict
from jaxpyop._host.pools import Pool as Pool
from jaxpyop._host.run import call_where_op_runs as call_where_op_runs
from jaxpyop._host.run import check_progress as check_progress
from jaxpyop._host.run import run_each as run_each
from jaxpyop._host.run import run_elements as run_elements
from jaxpyop._host.run import run_once as run_once
from jaxpyop._host.vmap_methods import SEQUENTIAL as SEQUENTIAL
from jaxpyop._host.vmap_methods import VMAP_METHODS as VMAP_METHODS
from jaxpyop._host.vmap_methods import Method as Method
from jaxpyop._host.vmap_methods import VmapMethod as VmapMethod
