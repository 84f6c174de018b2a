"""What a function can reach and change: found, compared whole, and put back.

Reading order: contents (what one object holds), reach (the objects that a function can come to), snapshot, effects
(functions of which it is known what they change).
"""

from jaxpyop._paths.snapshot.contents import ABSENT, contents_of, is_same
from jaxpyop._paths.snapshot.effects import is_known
from jaxpyop._paths.snapshot.reach import is_own
from jaxpyop._paths.snapshot.snapshot import MOST_OBJECTS, Snapshot, root_of
