"""An autodiff of concrete Python runs: record a function once, differentiate it later.

The idea is in `tape`: a trace whose arrays hold values records each operation that touches a differentiated one.
The other modules, in the order in which to read them:

- `recording`: runs a function on a tape (under `jax.vjp` on a JAX that lacks what a tape needs), and differentiates
  the recording.
- `tracer`: the array that the function sees, and the warnings where a value leaves the tape.
- `operations`: what is called, shared by all calls that compute the same; `keys` tells which do.
- `derivatives`: the derivatives of one call, by JAX, and which outputs of an operation depend on which inputs.
"""

from jaxpyop._tape.recording import Record, record
from jaxpyop._tape.tracer import TapeTracer
