"""Names as in ``tf.contrib`` of TensorFlow 1."""

from jaxpyop.contrib import framework as framework
