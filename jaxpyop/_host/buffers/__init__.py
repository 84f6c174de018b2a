"""TODO."""

from jaxpyop._host.buffers.entry import Host as Host
from jaxpyop._host.buffers.entry import lend as lend
from jaxpyop._host.buffers.entry import lend_results as lend_results
from jaxpyop._host.buffers.entry import take_back as take_back
from jaxpyop._host.buffers.entry import take_back_results as take_back_results
from jaxpyop._host.buffers.memory import SCRATCH as SCRATCH
from jaxpyop._host.buffers.sharing import Shared as Shared
