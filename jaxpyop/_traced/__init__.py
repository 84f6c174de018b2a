"""Traced mode: an interpreter, at trace time, of a small part of Python, which makes one program of a function.

**The idea.** Nothing of the user's code runs. We walk the syntax tree of the function while JAX traces, and each
operation is one of those written down here. What is not written down is `Refused`, with the line. So nothing unknown
ever sees a traced value.

All that can change lies in the slots of the interpreter's own objects (`Obj`): the variables of a call, the items of
a list or a dict, the attributes of an instance. One method, `Machine.write`, changes a slot, and keeps what was there
before in a journal. A branch on a traced value is therefore simple: interpret one side, read in the journal what it
changed, undo it, and do the same with the other side. Then bring what both sides left to one form, and make a
`lax.cond` of the two. Aliases, changes in place, `nonlocal` and new keys are right without a line for them. A loop is
the same with the state before and after a turn: its form grows until a turn keeps it.

Two numbers of one kind, or two arrays of one type, become one. What cannot become one (None and an array, two
functions, an int and a float) becomes a `Union`: a traced tag, and the alternatives. An operation on a Union is a
branch for each. So nothing is guessed.

Python's numbers are Python's: a traced one (`Num`) has 64 bits whatever `jax_enable_x64` says, and meets an array as
a weak type. An integer carries a range, which shows for example that it is an index of a list.

A program cannot raise in the middle. So where Python raises because of a value, the program notes the number of the
error in a slot (`Machine.check`), which branches and loops carry like any other, and goes on with whatever values come
out. At its end, the op calls Python to raise the error. Where a range shows that it does not come to that, there is no
check. What raises always, or looks like a mistake, is refused.

**To read**, in this order: `values` (`kinds`: what a variable may hold; `forms`: how two values become one; `numbers`),
`machine` (errors, branches and loops), `operators`, `containers` (items), `objects` (attributes), `calls`,
`user_functions`, `statements`, `interpreter` (expressions, and the way in). `loop` is a loop on values as a primitive
of JAX. Each class of `machine` to `interpreter` adds a part of the language to the class before. Whatever does not know
a kind of value refuses it. `shapes` is the interpreter for the shapes of results alone.

**To add a function** that may be called:

- of `jax`, `jax.numpy` and their like: its name in `allowed`, and a row of `_MODULES` if its module is not there yet;
- of NumPy: its name in `allowed._NUMPY`. It is then called on constants only, and refused for traced values;
- of `math`, of one number: a row in `numbers`, in the group (`_TOTAL`, `_GROWING`, `_PARTIAL`) that says when Python
  raises;
- any other that must know traced numbers: a row of `allowed.ROWS`, and `raise_if` where Python raises;
- a method or an attribute of an array, a list, a dict or a text: its name in `allowed.METHODS` or `DATA`. A method of
  a list or a dict is written in `containers`.

**To add a statement** or an expression: a method `do_...` in `statements` or `eval_...` in `interpreter`, with the name
of its class in `ast` in lower case (`do_functiondef` is in `user_functions`). If it gives values to names,
`user_functions.local_names` must know it. If it is a loop, it treats the status of the frame as `do_while` does.

**To add a kind of value**: a `Kind` in `values.kinds`. If it has parts and does not change, its row in `forms.split`,
and otherwise its cases in `form_of`, `Flattening` and `Filling`. Then what operators, attributes, iteration, functions
of JAX (`to_jax`) and results (`interpreter._results`) make of it.
"""

from jaxpyop._traced.interpreter import Either, interpret
from jaxpyop._traced.shapes import shapes_of
from jaxpyop._traced.values import Num, Refused, copied, num_as_dtype, some_number
