"""What the user asked for, read and checked: the op, and the derivative rules that come with it.

To be read in this order: `op`, `on_error`, `user_rules`.
"""

from jaxpyop._op.request.on_error import is_nan
from jaxpyop._op.request.op import Op, make_op
from jaxpyop._op.request.user_rules import (
    NUMERICAL,
    RULE_ARGUMENTS,
    Rules,
    advice_on_workers,
    is_differentiable,
    mark_differentiable,
    no_jvp_error,
    no_reverse_over_forward_error,
    no_second_derivative_error,
    no_vjp,
    not_the_derivative_error,
)
