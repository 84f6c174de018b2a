"""What a call runs on the host: the Body protocol, and the body of the user's function.

To read, in this order: `body` (what every body has, derivatives, and `on_error=`), `user` (the user's function between
checks, and `out=True`), `advice` (what errors and warnings say).
"""

from jaxpyop._op.body.advice import call_with_advice
from jaxpyop._op.body.body import Body, DerivativeBody, element_structs
from jaxpyop._op.body.user import FilledBody, UserBody
