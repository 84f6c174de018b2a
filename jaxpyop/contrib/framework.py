"""Names as in ``tf.contrib.framework`` of TensorFlow 1: ``py_func``."""

from jaxpyop._contrib import py_func as py_func
