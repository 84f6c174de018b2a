"""What the user asked for, as one JAX primitive.

`calling` reads the arguments (the keywords from the table in `options`), makes an `Op` (`op`) of `Tout` (`spec`,
`forms`), takes the `inputs` apart, and runs the call at once or binds the `primitive`, which has the rules of vmap,
JVP, transpose and lowering. What runs on the host is a call (`plain`; in `calls` the user's, recorded, replayed) of a
body (`bodies`; `filled`, where `out=True`): the user's function between checked inputs and checked results
(`structure`, then each of the `results`; `usual`, a short way); shapes that nobody promised are `inferred`, once for
what the function `reads`. `differentiation` says which calls are a call's derivative: on the tape, or by the user's own
`rules`, put together in `derive` from `derivatives` (`vjp=f`, `jvp=f`), `residuals` (`vjp=(fwd, bwd)`), `differences`
and `linear_maps`; the `store` keeps records in between. `traced` makes the body part of the program instead, and
`when` leaves it out at some steps. `transfer` makes jax.Arrays of what is NumPy's.

To read: calling, op, spec, padded, forms, inputs, primitive, differentiation, plain, calls, bodies, filled, inferred,
reads, advice, rules, derive, derivatives, residuals, differences, linear_maps, store, structure, results, usual,
transfer, when, traced, auto, options.
"""

from jaxpyop._op.apply import NOT_GIVEN as NOT_GIVEN
from jaxpyop._op.apply import apply as apply
from jaxpyop._op.apply import run as run
from jaxpyop._op.primitive import RECORDS as RECORDS
from jaxpyop._op.primitive import clear_records as clear_records
from jaxpyop._op.request import make_op as make_op
from jaxpyop._op.values import Casting as Casting
from jaxpyop._op.values import padded as padded
