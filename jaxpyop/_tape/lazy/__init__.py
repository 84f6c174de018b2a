"""A tape that only writes operations down, and evaluates all that are pending as one compiled program.

A stretch is what a recorded function does from one evaluation to the next. The modules, in the order in which to read
them:

- `tape`: the trace, which writes operations down and evaluates them when a value is asked for.
- `run`: the pending stretch, and what may enter it.
- `tracer`: its array, which may have no value yet.
- `trie`: the stretches that were seen, so that a known operation is one step in a tree.
- `stretch`: a stretch as one compiled operation, and its pullback.
"""

from jaxpyop._tape.lazy.tape import LazyTape, lazy_tape
from jaxpyop._tape.lazy.trie import clear
