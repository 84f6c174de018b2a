"""Names as in ``tf.compat`` of TensorFlow: ``v1`` and ``v2``."""

from jaxpyop.compat import v1 as v1
from jaxpyop.compat import v2 as v2
