"""Rewrites the source of a function: its statements become calls of ours, which make conds and loops of the program.

Reading order: convert (the rewriting), other_statements (which are refused or simplified before it), operators (the
functions that the new code calls), if_statements, loop_statements. These use: context (the trace of one body),
variables (that a statement assigns), values, weak_types.
"""

from jaxpyop._paths.rewrite.context import TraceContext, tracing_in
from jaxpyop._paths.rewrite.convert import converted, is_convertible, is_installed, package_of
from jaxpyop._paths.rewrite.operators import OPERATORS, call
from jaxpyop._paths.rewrite.other_statements import ConversionError
