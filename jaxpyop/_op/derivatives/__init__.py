"""TODO."""

from jaxpyop._op.derivatives.choose import linearize_by_rules as linearize_by_rules
from jaxpyop._op.derivatives.transpose import LinearCall as LinearCall
from jaxpyop._op.derivatives.transpose import LinearFunction as LinearFunction
