"""Names as in ``tf.compat``."""

from jaxpyop.compat import v1 as v1
from jaxpyop.compat import v2 as v2
