"""Follows one run of a function for each of its paths, and merges the paths into one program.

Reading order: explore (the runs), tracer and refusals (what they run on), bounds, python_numbers, number_types and
bools (how they count), tree (the paths), merge (two sides into one program), program (what comes out), errors.
"""

from jaxpyop._paths.follow.bools import (
    ARRAY,
    PYTHON,
    BoolTracer,
    as_array,
    bool_kind_of,
    common_bool_kind,
    with_bool_kind,
)
from jaxpyop._paths.follow.bounds import FLOAT_TO_INT, bounds_in, counted, hull, limits_of, range_after, range_before
from jaxpyop._paths.follow.errors import (
    RAISING,
    LostDerivativeError,
    NeedsPathsError,
    PathError,
    SlowPathsError,
    refused_call,
)
from jaxpyop._paths.follow.explore import infer_shapes, record_one_path, record_paths, trace_paths
from jaxpyop._paths.follow.number_types import DEPENDS_ON_PATH, Types, depends_on_path, types_of, weakened
from jaxpyop._paths.follow.python_numbers import IDENTITY, bounds_of, check_numbers, may_be_nan, with_bounds
from jaxpyop._paths.follow.refusals import OF_ARRAYS
from jaxpyop._paths.follow.tracer import PathTrace, PathTracer, predicate
from jaxpyop._paths.follow.tree import common_type
