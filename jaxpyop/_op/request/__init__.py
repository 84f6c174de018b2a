"""What the user asked for, read and checked: the op, and the derivative rules that come with it.

To be read in this order: `op`, `user_rules`.
"""

from jaxpyop._op.request.op import Op as Op
from jaxpyop._op.request.op import make_op as make_op
from jaxpyop._op.request.user_rules import NUMERICAL as NUMERICAL
from jaxpyop._op.request.user_rules import advice_on_workers as advice_on_workers
from jaxpyop._op.request.user_rules import no_jvp_error as no_jvp_error
from jaxpyop._op.request.user_rules import no_second_derivative_error as no_second_derivative_error
from jaxpyop._op.request.user_rules import no_vjp as no_vjp
