"""What a call runs on the host: the Body protocol, and the body of the user's function.

To read, in this order: `body_protocol` (what every body has), `user` (the user's function between checks), `tangents`
(its pushforward and pullback), `out` (`out=True`), `conditional` (`when=`); `shape_cache` and `reads` (shapes that were
not declared), `advice` (what errors say).
"""

from jaxpyop._op.body.advice import call_with_advice as call_with_advice
from jaxpyop._op.body.body_protocol import Body as Body
from jaxpyop._op.body.body_protocol import DerivedBody as DerivedBody
from jaxpyop._op.body.body_protocol import element_structs as element_structs
from jaxpyop._op.body.conditional import ConditionalBody as ConditionalBody
from jaxpyop._op.body.conditional import differs_in_block as differs_in_block
from jaxpyop._op.body.conditional import read_when as read_when
from jaxpyop._op.body.conditional import trace_when as trace_when
from jaxpyop._op.body.out import FilledBody as FilledBody
from jaxpyop._op.body.tangents import CotangentBody as CotangentBody
from jaxpyop._op.body.tangents import Pushforward as Pushforward
from jaxpyop._op.body.tangents import RecordedDerivative as RecordedDerivative
from jaxpyop._op.body.tangents import TangentBody as TangentBody
from jaxpyop._op.body.user import UserBody as UserBody
