"""Values, and what can be said of them: kinds (what a variable may hold), forms (how two become one), numbers (Python's)."""

from jaxpyop._traced.values.forms import *
from jaxpyop._traced.values.kinds import *
from jaxpyop._traced.values.numbers import *
