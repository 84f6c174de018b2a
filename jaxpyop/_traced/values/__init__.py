"""Values: kinds (what a variable may hold), forms (how two become one), and numbers (those of Python)."""

from jaxpyop._traced.values.forms import *
from jaxpyop._traced.values.kinds import *
from jaxpyop._traced.values.numbers import *
