"""One JAX primitive for every host call: the Call protocol, the primitive, and its rules.

To read, in this order: `call_protocol` (what every call has), `primitive` (where a call is bound, vmap, and the
transport from a compiled program to the host), `direct` (run at once), `jvp_transpose` (derivatives), `records` (what a
forward pass keeps for a backward pass).
"""

from jaxpyop._op.primitive.call_protocol import Batching, Call, Linearization, Operands, structs_of
from jaxpyop._op.primitive.direct import run_now
from jaxpyop._op.primitive.jvp_transpose import derived
from jaxpyop._op.primitive.primitive import bind, python_call_p
from jaxpyop._op.primitive.records import (
    NO_RECORD,
    RECEIPT,
    RECORDS,
    TOKEN,
    HandedRecord,
    clear_records,
    warn_of_pushed_out,
)
