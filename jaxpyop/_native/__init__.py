"""Functions that Numba compiled, called by XLA without Python.

`is_native` tells whether a function is one of Numba's, and imports nothing. A `Signature` describes a call of it, and
`native_block` compiles the kernel for it. What a program gets is the target `target()` with the address of the block as
the attribute "block"; the program has to keep the block. Its `fill` calls the kernel on arrays, for threads which share
a batch. What is unusual takes the ordinary way: `Ordinary` says why while a program is compiled, and while it runs the
kernel falls back on a function of Python.

Reading order: `functions` (what can be native), `frame` (what XLA hands over, and the way back into Python), `kernels`
(the kernel of a function), `check` (whether this version of XLA is as expected).
"""

from jaxpyop._native.check import native_block, state, target
from jaxpyop._native.functions import DTYPES, Constant, Filled, Ordinary, Signature, Zeros, is_compiled, is_native
