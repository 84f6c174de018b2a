"""TODO."""

from jaxpyop._host.pools.executors import Executor as Executor
from jaxpyop._host.pools.executors import Pool as Pool
from jaxpyop._host.pools.executors import default_executor as default_executor
from jaxpyop._host.pools.executors import executor_of as executor_of
from jaxpyop._host.pools.executors import is_local as is_local
from jaxpyop._host.pools.one_by_one import run_apart as run_apart
from jaxpyop._host.pools.places import is_worker as is_worker
from jaxpyop._host.pools.threads import run_on_threads as run_on_threads
from jaxpyop._host.pools.workers import Elsewhere as Elsewhere
from jaxpyop._host.pools.workers import Store as Store
from jaxpyop._host.pools.workers import run_once_elsewhere as run_once_elsewhere
