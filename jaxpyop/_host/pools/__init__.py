"""Where a body runs: on the calling thread, on threads of an executor, or in workers that share no memory.

Reading order: executors (the kinds; add a new kind there), nesting (calls inside bodies), threads, job
(what a worker does), chunks, workers.
"""

from jaxpyop._host.pools.executors import Pool as Pool
from jaxpyop._host.pools.executors import default_executor as default_executor
from jaxpyop._host.pools.executors import executor_of as executor_of
from jaxpyop._host.pools.executors import has_threads as has_threads
from jaxpyop._host.pools.nesting import Place as Place
from jaxpyop._host.pools.nesting import place_of as place_of
from jaxpyop._host.pools.threads import call_on_thread as call_on_thread
from jaxpyop._host.pools.threads import run_on_threads as run_on_threads
from jaxpyop._host.pools.workers import Store as Store
from jaxpyop._host.pools.workers import run_elements_in_workers as run_elements_in_workers
from jaxpyop._host.pools.workers import run_in_worker as run_in_worker
from jaxpyop._host.pools.workers import run_one_by_one_in_workers as run_one_by_one_in_workers
