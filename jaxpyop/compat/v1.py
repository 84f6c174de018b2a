"""Names as in ``tf.compat.v1`` of TensorFlow.

``py_function``, ``numpy_function`` and ``py_func``: the same objects as in :mod:`jaxpyop`.
"""

from jaxpyop._api import numpy_function as numpy_function
from jaxpyop._api import py_func as py_func
from jaxpyop._api import py_function as py_function
