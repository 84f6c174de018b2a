"""Follows one run of a function for each of its paths, and merges the paths into one program.

Reading order: explore (the runs), tracer (what they run on), bools (how they count), tree (the paths), merge (two
sides into one program), program (what comes out), errors.
"""

from jaxpyop._paths.follow.bools import ARRAY as ARRAY
from jaxpyop._paths.follow.bools import MIXED as MIXED
from jaxpyop._paths.follow.bools import PYTHON as PYTHON
from jaxpyop._paths.follow.bools import BoolTracer as BoolTracer
from jaxpyop._paths.follow.bools import as_array as as_array
from jaxpyop._paths.follow.bools import common_sort as common_sort
from jaxpyop._paths.follow.bools import sort_of as sort_of
from jaxpyop._paths.follow.bools import with_sort as with_sort
from jaxpyop._paths.follow.errors import RAISING as RAISING
from jaxpyop._paths.follow.errors import NeedsPathsError as NeedsPathsError
from jaxpyop._paths.follow.errors import PathError as PathError
from jaxpyop._paths.follow.errors import SlowPathsError as SlowPathsError
from jaxpyop._paths.follow.errors import refused_call as refused_call
from jaxpyop._paths.follow.explore import infer_shapes as infer_shapes
from jaxpyop._paths.follow.explore import record_one_path as record_one_path
from jaxpyop._paths.follow.explore import record_paths as record_paths
from jaxpyop._paths.follow.explore import trace_paths as trace_paths
from jaxpyop._paths.follow.tracer import PathTrace as PathTrace
from jaxpyop._paths.follow.tracer import PathTracer as PathTracer
from jaxpyop._paths.follow.tracer import predicate as predicate
from jaxpyop._paths.follow.tree import common_type as common_type
