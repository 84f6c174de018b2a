"""What goes into a Python function and what comes out: inputs, declared results, and the checks between the two.

To be read in this order: `inputs` (what the user passes), `arguments` (how derivative rules get them), `spec` (what is
declared, and taking a function's return value apart by it), `tout` (how it is read), `encodings` (results that the op
returns in another form), `cast` (a function's result becomes an array of the declared dtype, or is refused),
`hidden` (traced values that a function reads without getting them), and `kept` (residuals, until the backward pass).
"""

from jaxpyop._values.arguments import Arguments, spread
from jaxpyop._values.cast import (
    CASTING,
    Casting,
    UnknownValuesError,
    cast_to_numpy,
    check_fingerprints,
    check_traced,
    check_usable,
    converted,
    converted_at_once,
    fingerprint,
    number_rule,
)
from jaxpyop._values.encodings import KeyEncoding, Padded, Padding, decode, encode, padded
from jaxpyop._values.hidden import PASS_IT, check_closure, hidden_value_error, traced_value_in
from jaxpyop._values.inputs import (
    SLOT,
    Inputs,
    anchor_of,
    as_jax,
    copy_to_jax,
    flatten_inputs,
    give_to_jax,
    inputs_of,
    nodes_of,
    static,
    without_weak_type,
)
from jaxpyop._values.kept import protected, size_of, with_own_containers
from jaxpyop._values.spec import IN_A_LOOP, Leaf, ResultSpec, Struct, kind_of, match, show_shape
from jaxpyop._values.tout import check_shape, fill_shape, read_tout, with_shapes
