"""One JAX primitive for every host call: the Call protocol, the primitive, and its rules.

To be read in this order: `call` (what every call has), `primitive` (binding, direct calls and vmap), `lowering` (the
transport from a compiled program to the host), `native` (calls without Python), `differentiate` (which calls make up a
derivative), `records` (the store of what a forward pass keeps for a backward pass), `recording` (the calls that keep
and read it).
"""

from jaxpyop._op.primitive import differentiate, lowering
from jaxpyop._op.primitive.call import Call, Linearization, Operands, derived, masks_and_added_axes, structs_of
from jaxpyop._op.primitive.primitive import bind, python_call_p, run_now
from jaxpyop._op.primitive.recording import (
    FINGERPRINT_WORD,
    RUN_WORD,
    TOKEN_WORD,
    RecordingCall,
    ReplayCall,
    hash_of_run,
)
from jaxpyop._op.primitive.records import NO_RECORD, NO_RUN, RECEIPT, clear_records
