"""Names as in ``tf.compat.v1``."""

from jaxpyop._api import numpy_function as numpy_function
from jaxpyop._api import py_func as py_func
from jaxpyop._api import py_function as py_function
