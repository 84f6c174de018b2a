"""TODO."""

from jaxpyop._paths.loop.primitive import Loop as Loop
from jaxpyop._paths.loop.primitive import bind_jaxprs as bind_jaxprs
