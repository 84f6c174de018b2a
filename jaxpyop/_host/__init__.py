"""The way from XLA to Python and back.

A compiled program holds a `Host` and calls it with its buffers. The host enters the environment of the code that called
the op, makes arrays of the buffers, and runs the call on them: once, or on each element of a batch, on this thread or
where `executor=` says. It writes the results into XLA's memory. An error becomes text that XLA can carry, and
`reraise` finds the exception again.

Reading order: host_call (what the host asks of a call; `vmap_method`s, batches and the caller's surroundings), show
(how texts show functions and values), errors, failures (`on_error=`), metrics and report_table (`report()`), pools
(where a body runs), run_batch, guard (why JAX code in a body finds a free thread), memory (XLA's and ours),
small_numbers (a mode of XLA's threads), at_exit (what the end of the process waits for), host (the entry from XLA).
"""

from jaxpyop._host import metrics
from jaxpyop._host.errors import (
    add_note,
    forget_locals,
    is_own_failure,
    note_arguments,
    original_of,
    reraise,
    strip_library_frames,
)
from jaxpyop._host.failures import Failures
from jaxpyop._host.guard import install_guard, verdict
from jaxpyop._host.host import Host, Shared, store, take_back
from jaxpyop._host.host_call import NO_BATCH, SEQUENTIAL, VMAP_METHODS, Batch, Environment, HostCall, Method, VmapMethod
from jaxpyop._host.memory import SCRATCH, kept_of, lend, lend_results, return_results
from jaxpyop._host.metrics import report
from jaxpyop._host.pools import Pool, check_executor, check_workers
from jaxpyop._host.pools import Workers as Workers
from jaxpyop._host.run_batch import (
    call_where_op_runs,
    results_of_elements,
    run_each,
    run_in_parts,
    run_once,
    runs_in_this_process,
)
from jaxpyop._host.show import show_arguments, show_values
