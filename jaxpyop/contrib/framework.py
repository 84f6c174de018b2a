"""Names as in ``tf.contrib.framework`` of TensorFlow 1: ``py_func``."""

from jaxpyop.contrib._py_func import py_func as py_func
