"""Values.

`kinds`: what a variable may hold. `gate`: which values come in from outside. `forms`: how two values become one.
`numbers`: those of Python.
"""

from jaxpyop._traced.values.forms import *
from jaxpyop._traced.values.gate import *
from jaxpyop._traced.values.kinds import *
from jaxpyop._traced.values.numbers import *
