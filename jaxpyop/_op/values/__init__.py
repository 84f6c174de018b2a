"""What goes into a Python function and what comes out: inputs, declared results, and the checks between the two.

To be read in this order: `inputs` (what the user passes), `spec` (what is declared), `tout` and `output_shapes` (how
it is read), `padding` (results that the op returns in another form), then `structure` and `cast` (a function's return
value is taken apart and cast), `to_jax`, and `fingerprint` (whether a function that ran again gave the same).
"""

from jaxpyop._op.values.cast import CASTING as CASTING
from jaxpyop._op.values.cast import Casting as Casting
from jaxpyop._op.values.cast import cast_to_jax as cast_to_jax
from jaxpyop._op.values.cast import cast_to_numpy as cast_to_numpy
from jaxpyop._op.values.cast import check_traced as check_traced
from jaxpyop._op.values.cast import check_usable as check_usable
from jaxpyop._op.values.fingerprint import check_fingerprints as check_fingerprints
from jaxpyop._op.values.fingerprint import fingerprints as fingerprints
from jaxpyop._op.values.inputs import PASS_IT as PASS_IT
from jaxpyop._op.values.inputs import Inputs as Inputs
from jaxpyop._op.values.inputs import check_closure as check_closure
from jaxpyop._op.values.inputs import flatten_inputs as flatten_inputs
from jaxpyop._op.values.output_shapes import check_shape as check_shape
from jaxpyop._op.values.output_shapes import fill_shape as fill_shape
from jaxpyop._op.values.output_shapes import with_shapes as with_shapes
from jaxpyop._op.values.padding import decode as decode
from jaxpyop._op.values.padding import encode as encode
from jaxpyop._op.values.padding import encoded_shapes as encoded_shapes
from jaxpyop._op.values.padding import padded as padded
from jaxpyop._op.values.spec import Leaf as Leaf
from jaxpyop._op.values.spec import ResultSpec as ResultSpec
from jaxpyop._op.values.spec import Struct as Struct
from jaxpyop._op.values.spec import show_shape as show_shape
from jaxpyop._op.values.structure import IN_A_LOOP as IN_A_LOOP
from jaxpyop._op.values.structure import kind_of as kind_of
from jaxpyop._op.values.structure import match as match
from jaxpyop._op.values.to_jax import anchor_of as anchor_of
from jaxpyop._op.values.to_jax import as_jax as as_jax
from jaxpyop._op.values.to_jax import copy_to_jax as copy_to_jax
from jaxpyop._op.values.to_jax import taken_over as taken_over
from jaxpyop._op.values.tout import declares_nothing as declares_nothing
from jaxpyop._op.values.tout import read_tout as read_tout
