"""Traced mode: an interpreter, at trace time, of a small closed subset of Python.

None.
"""

from jaxpyop._traced.body import Either, Number, interpret
from jaxpyop._traced.values import Refused
