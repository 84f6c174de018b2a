"""Names as in ``tf.contrib`` of TensorFlow 1: ``framework``."""

from jaxpyop.contrib import framework as framework
