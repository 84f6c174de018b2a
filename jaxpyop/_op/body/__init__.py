"""What a call runs on the host: the Body protocol, and the body of the user's function.

To read, in this order: `body_protocol` (what every body has), `user` (the user's function between checks), `tangents`
(its pushforward and pullback), `out` (`out=True`), `conditional` (`when=`), `failed` (`on_error=`); `shape_cache` and
`reads` (shapes that were not declared), `advice` (what errors say).
"""

from jaxpyop._op.body.advice import call_with_advice
from jaxpyop._op.body.body_protocol import Body, DerivedBody, element_structs
from jaxpyop._op.body.conditional import ConditionalBody, differs_in_block, read_when, trace_when
from jaxpyop._op.body.failed import each_alone, failed_results, kept_for_failure
from jaxpyop._op.body.out import FilledBody
from jaxpyop._op.body.tangents import CotangentBody, Pushforward, RecordedDerivative, TangentBody
from jaxpyop._op.body.user import UserBody
