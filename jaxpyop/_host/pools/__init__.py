"""Where a body runs: on the calling thread, on threads of an executor, or in workers that share no memory.

Reading order: executors (what `executor=` takes; calls inside bodies), threads, shared (files that workers open),
engines (what differs between pools of processes, Dask and others; add a new one there), job (what a worker does, and
`timeout=`), sending (also in which chunks, and what becomes of lost jobs), workers.
"""

from jaxpyop._host.pools.executors import (
    OWN_THREADS,
    Pool,
    Workers,
    check_executor,
    check_workers,
    executor_of,
    has_threads,
    is_own_thread,
)
from jaxpyop._host.pools.sending import Store
from jaxpyop._host.pools.threads import call_on_thread, run_on_threads
from jaxpyop._host.pools.workers import run_elements_in_workers, run_one_by_one_in_workers
