"""From XLA's buffers to arrays that a body may hold, and from its results back into XLA's memory.

Reading order: entry (what XLA calls), lending, memory (which is used again), sharing (one run for several devices).
"""

from jaxpyop._host.buffers.entry import Host as Host
from jaxpyop._host.buffers.lending import lend as lend
from jaxpyop._host.buffers.lending import lend_results as lend_results
from jaxpyop._host.buffers.lending import take_back as take_back
from jaxpyop._host.buffers.lending import take_back_results as take_back_results
from jaxpyop._host.buffers.memory import SCRATCH as SCRATCH
from jaxpyop._host.buffers.sharing import Shared as Shared
