"""Names as in ``tf.compat.v2`` of TensorFlow.

``py_function`` and ``numpy_function``: the same objects as in :mod:`jaxpyop`.
"""

from jaxpyop._api import numpy_function as numpy_function
from jaxpyop._api import py_function as py_function
