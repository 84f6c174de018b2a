"""A tracer for Python bodies: their `if`s and loops on values as parts of a program, without running it on values.

`body` is the whole way. `follow` runs a function once for each of its paths, on tracers that answer `bool` from a list
of decisions (`trace`). The paths form a `tree`; from the leaves up, what two branches have in common is taken out of
them (`merge`), and the rest becomes a `lax.cond` in a program of equations and decisions (`block`).

Where the source is to be had, the function is rewritten first (`convert`), and its statements are calls of ours
(`operators`): an `if` is recorded where it stands (`branches`), a `while` or `for` becomes a loop of the program
(`turns`), with the variables that they assign as its `state`; `strong` says where a turn need not be recorded again.
Such a `loop` is a primitive, with a backward pass (`pull`).

To read: body, follow, trace, tree, merge, block; then convert, operators, state, branches, turns, strong, loop, pull.
"""

from jaxpyop._paths.body import trace_body as trace_body
from jaxpyop._paths.follow import PathError as PathError
from jaxpyop._paths.follow import PathTracer as PathTracer
from jaxpyop._paths.follow import SlowPathsError as SlowPathsError
from jaxpyop._paths.follow import infer_shapes as infer_shapes
from jaxpyop._paths.follow import trace_paths as trace_paths
