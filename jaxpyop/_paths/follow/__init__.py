"""TODO."""

from jaxpyop._paths.follow.explore import infer_shapes as infer_shapes
from jaxpyop._paths.follow.explore import record_block as record_block
from jaxpyop._paths.follow.explore import record_straight as record_straight
from jaxpyop._paths.follow.explore import trace_paths as trace_paths
from jaxpyop._paths.follow.trace import RAISING as RAISING
from jaxpyop._paths.follow.trace import NeedsPathsError as NeedsPathsError
from jaxpyop._paths.follow.trace import PathError as PathError
from jaxpyop._paths.follow.trace import PathTrace as PathTrace
from jaxpyop._paths.follow.trace import PathTracer as PathTracer
from jaxpyop._paths.follow.trace import Place as Place
from jaxpyop._paths.follow.trace import SlowPathsError as SlowPathsError
from jaxpyop._paths.follow.trace import calling_line as calling_line
from jaxpyop._paths.follow.trace import is_users as is_users
from jaxpyop._paths.follow.tree import common_type as common_type
