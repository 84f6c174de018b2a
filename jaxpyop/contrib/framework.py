"""Names as in ``tf.contrib.framework`` of TensorFlow 1."""

from jaxpyop._api import contrib_py_func as py_func

__all__ = ["py_func"]
