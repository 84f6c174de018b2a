"""TODO."""

from jaxpyop._op.request.op import Op as Op
from jaxpyop._op.request.op import make_op as make_op
from jaxpyop._op.request.user_rules import NUMERICAL as NUMERICAL
from jaxpyop._op.request.user_rules import advice_on_workers as advice_on_workers
from jaxpyop._op.request.user_rules import no_pull as no_pull
from jaxpyop._op.request.user_rules import no_push as no_push
from jaxpyop._op.request.user_rules import no_second as no_second
