"""TODO."""

from jaxpyop._op.primitive import jvp_transpose as jvp_transpose  # gives the primitive its rules
from jaxpyop._op.primitive.call import Call as Call
from jaxpyop._op.primitive.call import Linearization as Linearization
from jaxpyop._op.primitive.call import transposed as transposed
from jaxpyop._op.primitive.primitive import bind as bind
from jaxpyop._op.primitive.primitive import run_now as run_now
from jaxpyop._op.primitive.records import NO_RECORD as NO_RECORD
from jaxpyop._op.primitive.records import RECORDS as RECORDS
from jaxpyop._op.primitive.records import TOKEN as TOKEN
from jaxpyop._op.primitive.records import Handed as Handed
from jaxpyop._op.primitive.records import Records as Records
from jaxpyop._op.primitive.records import clear_records as clear_records
