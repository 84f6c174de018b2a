"""What a call runs on the host: the Body protocol, and the body of the user's function.

To read, in this order: `body_protocol` (what every body has, and `on_error=`), `user` (the user's function
between checks, and `out=True`), `derivatives` (its pushforward and pullback), `advice` (what errors and warnings say).
"""

from jaxpyop._op.body.advice import call_with_advice
from jaxpyop._op.body.body_protocol import Body, DerivedBody, each_alone, element_structs
from jaxpyop._op.body.derivatives import CotangentBody, Pullback, Pushforward, RecordedDerivative, TangentBody
from jaxpyop._op.body.user import FilledBody, UserBody
