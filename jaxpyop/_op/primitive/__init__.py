"""One JAX primitive for every host call: the Call protocol, the primitive, and its rules.

To read, in this order: `call_protocol` (what every call has), `primitive` (where a call is bound), `direct` (run at
once), `batching` (vmap), `jvp_transpose` (derivatives), `lowering` (the transport to the host), `records` (what a
forward pass keeps for a backward pass).
"""

# The primitive gets its rules when these are imported.
from jaxpyop._op.primitive import batching as batching
from jaxpyop._op.primitive import jvp_transpose as jvp_transpose
from jaxpyop._op.primitive import lowering as lowering
from jaxpyop._op.primitive.call_protocol import Batching as Batching
from jaxpyop._op.primitive.call_protocol import Call as Call
from jaxpyop._op.primitive.call_protocol import Effects as Effects
from jaxpyop._op.primitive.call_protocol import Linearization as Linearization
from jaxpyop._op.primitive.call_protocol import Operands as Operands
from jaxpyop._op.primitive.direct import run_now as run_now
from jaxpyop._op.primitive.primitive import bind as bind
from jaxpyop._op.primitive.primitive import python_call_p as python_call_p
from jaxpyop._op.primitive.records import NO_RECORD as NO_RECORD
from jaxpyop._op.primitive.records import RECORDS as RECORDS
from jaxpyop._op.primitive.records import TOKEN as TOKEN
from jaxpyop._op.primitive.records import TOKEN_STRUCT as TOKEN_STRUCT
from jaxpyop._op.primitive.records import Handed as Handed
from jaxpyop._op.primitive.records import Records as Records
from jaxpyop._op.primitive.records import clear_records as clear_records
from jaxpyop._op.primitive.records import warn_of_pushed_out as warn_of_pushed_out
