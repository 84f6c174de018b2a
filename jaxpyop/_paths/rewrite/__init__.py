"""Rewrites the source of a function: its statements become calls of ours, which make conds and loops of the program.

Reading order: convert (the rewriting), syntax (what is checked before), operators (what the new code calls),
if_statements, loop_statements; then what these use: context (the trace of one body), variables (what a statement
assigns), snapshot (what it changes in place), values, weak_types.
"""

from jaxpyop._paths.rewrite.context import TraceContext as TraceContext
from jaxpyop._paths.rewrite.context import tracing_in as tracing_in
from jaxpyop._paths.rewrite.convert import converted as converted
from jaxpyop._paths.rewrite.convert import is_convertible as is_convertible
from jaxpyop._paths.rewrite.convert import is_installed as is_installed
from jaxpyop._paths.rewrite.convert import package_of as package_of
from jaxpyop._paths.rewrite.operators import OPERATORS as OPERATORS
from jaxpyop._paths.rewrite.operators import call as call
from jaxpyop._paths.rewrite.syntax import ConversionError as ConversionError
