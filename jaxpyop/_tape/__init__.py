"""An autodiff of concrete Python runs: record a function once, differentiate it later.

`record` runs a function on a `Tape` (`tape`), whose arrays (`tracer`) hold values. A primitive that touches one with
a tangent is looked up as a shared operation (`ops`, under the `keys` of its parameters), which knows how derivatives
pass through it (`flow`); what belongs to one call alone is taken out of it (`apart`), and what can be done but once is
linearised on the spot (`linear`). The line of them is walked back or forward (`walk`, by the `rules` of single
functions), or compiled when the same line comes back (`lines`).
`records` keeps what was recorded between a forward and a backward pass.

To read: tape, tracer, constants, walk, rules, ops, apart, flow, linear, lines, keys, records.
"""

from jaxpyop._tape.tape import Record as Record
from jaxpyop._tape.tape import jvp as jvp
from jaxpyop._tape.tape import record as record
from jaxpyop._tape.tape import vjp as vjp
from jaxpyop._tape.tracer import TapeTracer as TapeTracer
