"""Rewrites the source of a function, so that its `if`s and loops call functions of ours, which make conds and loops.

Reading order: convert (the rewriting), other_statements (what is refused or simplified before that), operators (the
functions that the new code calls), if_statements, loop_statements. They use: context (the trace of one body), variables
(what a statement assigns), values and numbers (what stands for them in the program), ranges, weak_types.
"""

from jaxpyop._paths.rewrite.context import TraceContext, tracing_in
from jaxpyop._paths.rewrite.convert import converted, is_convertible, is_installed, package_of
from jaxpyop._paths.rewrite.operators import OPERATORS, run
from jaxpyop._paths.rewrite.other_statements import ConversionError
