"""From XLA's buffers to arrays that a body may hold, and from its results back into XLA's memory.

Reading order: entry (what XLA calls), lending, memory (which is used again), sharing (one run for several devices).
"""

from jaxpyop._host.buffers.entry import Host
from jaxpyop._host.buffers.lending import lend, lend_results, take_back, take_back_results
from jaxpyop._host.buffers.memory import SCRATCH
from jaxpyop._host.buffers.sharing import Shared
