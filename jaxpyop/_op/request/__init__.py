"""What the user asked for, read and checked: the op, and the derivative rules that come with it.

To be read in this order: `op` (with `on_error=` at its end), `read_rules`.
"""

from jaxpyop._op.request.op import Op, is_nan, make_op
from jaxpyop._op.request.read_rules import RULE_ARGUMENTS, Rules, is_differentiable, mark_differentiable, numerical
