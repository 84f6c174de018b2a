"""TODO."""

from jaxpyop._jaxcore import is_inexact as is_inexact
from jaxpyop._op.body.advice import advise as advise
from jaxpyop._op.body.out import FilledBody as FilledBody
from jaxpyop._op.body.user import Pushforward as Pushforward
from jaxpyop._op.body.user import UserBody as UserBody
from jaxpyop._op.body.when import When as When
from jaxpyop._op.body.when import WhenUser as WhenUser
from jaxpyop._op.body.when import differs_in_block as differs_in_block
from jaxpyop._op.body.when import read_when as read_when
from jaxpyop._op.body.when import trace_when as trace_when
from jaxpyop._op.values import Struct as Struct
