"""TODO."""

from jaxpyop._op.derivatives.choose import derive as derive
from jaxpyop._op.derivatives.transpose import FuncMap as FuncMap
from jaxpyop._op.derivatives.transpose import LinearMap as LinearMap
