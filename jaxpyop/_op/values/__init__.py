"""What goes into a Python function and what comes out: inputs, declared results, and the checks between the two.

To be read in this order: `inputs` (what the user passes), `spec` (what is declared), `tout` and `result_shapes` (how
it is read), `padding` (results that the op returns in another form), then `structure` and `cast` (a function's return
value is taken apart and cast), `to_jax`, and `fingerprint` (whether a function that ran again gave the same).
"""

from jaxpyop._op.values.cast import (
    CASTING,
    Casting,
    cast_to_jax,
    cast_to_numpy,
    check_traced,
    check_usable,
    converted_at_once,
)
from jaxpyop._op.values.fingerprint import check_fingerprints, fingerprint, fingerprints
from jaxpyop._op.values.inputs import PASS_IT, SLOT, Inputs, check_closure, flatten_inputs, inputs_of
from jaxpyop._op.values.padding import KeyEncoding, Padded, PaddedEncoding, decode, encode, encoded_shapes, padded
from jaxpyop._op.values.result_shapes import check_shape, fill_shape, with_shapes
from jaxpyop._op.values.spec import Leaf, ResultSpec, Struct, show_shape
from jaxpyop._op.values.structure import IN_A_LOOP, kind_of, match
from jaxpyop._op.values.to_jax import anchor_of, as_jax, copy_to_jax, taken_over, without_weak_type
from jaxpyop._op.values.tout import declares_nothing, read_tout
