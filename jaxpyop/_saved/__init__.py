"""`jaxpyop.export` and `jaxpyop.load`: programs that call Python, saved in one process and loaded in another.

A program is cut at its Python calls, as in `jaxpyop.jit`. `jax.export` serializes the segments, which hold no
callback. Everything between them is plain data: which values each step reads, and what each Python call was asked for.
A Python function is stored by name alone, and a file never decides which functions may be called.

Reading order: `exported` (what users call), `file_format` (bytes, and nested values), `structures` (pytrees),
`plan_as_data` (the steps of a program: segments, Python calls, loops), `call_as_data` (one Python call),
`function_names` (how a function is found again), `code` (whether its code is another one).
"""

from jaxpyop._saved.code import code_checksum
from jaxpyop._saved.exported import export, load
from jaxpyop._saved.function_names import register
