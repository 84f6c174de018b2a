"""Python functions as JAX operations: everything between a public function and the host.

To be read in the order of a call. `calls` reads the arguments, and runs the op directly or binds it as a part of the
traced program. `request` is the op as the user asked for it. `body` is the user's function between checked inputs and
checked results (`_values`, a package of its own). `primitive` binds a call, with its rules for vmap, differentiation
and lowering, and has the calls that keep records. `taped` differentiates a function of JAX operations, and `user_rules`
one that has rules. `traced` makes the body a part of the program instead.
"""

from jaxpyop._op.calls import NOT_GIVEN, UserCall, apply_or_decorate, call_op
from jaxpyop._op.primitive import Call, bind, clear_records, derived, python_call_p, run_now, structs_of
from jaxpyop._op.request import Op, Rules, make_op
from jaxpyop._op.request import numerical as numerical
from jaxpyop._op.traced import explain_traced
