"""One JAX primitive for every host call: the Call protocol, the primitive, and its rules.

To be read in this order: `call_protocol` (what every call has), `primitive` (binding, direct calls, vmap, and the
transport from a compiled program to the host), `differentiate` (which calls make up a derivative), `records` (what a
forward pass keeps for a backward pass).
"""

from jaxpyop._op.primitive import differentiate
from jaxpyop._op.primitive.call_protocol import (
    Batching,
    Call,
    Linearization,
    Operands,
    derived,
    masks_and_added_axes,
    structs_of,
)
from jaxpyop._op.primitive.primitive import bind, python_call_p, run_now
from jaxpyop._op.primitive.records import (
    NO_RECORD,
    RECEIPT,
    RECORDS,
    TOKEN,
    HandedRecord,
    clear_records,
    find_record,
    receipt_of,
)
