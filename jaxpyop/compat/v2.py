"""Names as in ``tf.compat.v2``."""

from jaxpyop._api import numpy_function as numpy_function
from jaxpyop._api import py_function as py_function
