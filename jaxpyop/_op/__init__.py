"""Python functions as JAX operations: everything between a public function and the host.

To be read in the order of a call. `dispatch` reads the arguments, and runs the op directly or binds it as a part of the
traced program. `request` is the op as the user asked for it, and `values` are its inputs and results. `body` is the
user's function between checked inputs and checked results. `primitive` binds a call of it, with its rules for vmap,
differentiation and lowering. `run_record_replay` has the three calls of a py_function, and `derivatives` the calls that
the user's own rules make. `traced` makes the body a part of the program instead.
"""

from jaxpyop._op.dispatch import NOT_GIVEN as NOT_GIVEN
from jaxpyop._op.dispatch import apply_or_decorate as apply_or_decorate
from jaxpyop._op.dispatch import call_op as call_op
from jaxpyop._op.primitive import RECORDS as RECORDS
from jaxpyop._op.primitive import Handed as Handed
from jaxpyop._op.primitive import clear_records as clear_records
from jaxpyop._op.primitive import python_call_p as python_call_p
from jaxpyop._op.primitive import run_now as run_now
from jaxpyop._op.request import make_op as make_op
from jaxpyop._op.values import Casting as Casting
from jaxpyop._op.values import anchor_of as anchor_of
from jaxpyop._op.values import copy_to_jax as copy_to_jax
from jaxpyop._op.values import padded as padded
