"""An autodiff of concrete Python runs: record a function once, differentiate it later.

The idea is in `tape`: a trace whose arrays hold values records each operation that touches a differentiated one.
The other modules, in the order in which to read them:

- `recording`: runs a function on a tape, and gives its derivatives.
- `tracer`: the array that the function sees.
- `replay`: differentiates the recorded operations, backward or forward.
- `ops`: the operations that are recorded, shared by all calls that compute the same.
- `dependence`: which outputs of an operation depend on which inputs, and what its derivatives read.
- `by_vjp`: what a recording is on a JAX on which the tape cannot stand.
- `linear`: operations that can run only once, and are linearized when they are recorded.
- `hoist`: arrays that a jitted function closes over, which become its operands.
- `pull_push`: the derivatives of one function, by JAX.
- `detached`: warnings where a value leaves the tape.
- `cache`: a bounded cache.
- `lazy/`: a tape that evaluates what is pending as one compiled program.
"""

from jaxpyop._tape.lazy import clear
from jaxpyop._tape.recording import jvp, record, vjp
from jaxpyop._tape.tracer import TapeTracer
