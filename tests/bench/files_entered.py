"""Counts the files and the functions of jaxpyop that typical calls enter, which a reader of the call has to follow.

    python -m tests.bench.files_entered

A function counts once, however often it is called; comprehensions count with the function that they are in. It needs
Python 3.12, whose `sys.monitoring` sees the calls of all threads, also those of XLA.
"""

import contextlib
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from tests.bench.cases.case import log_huber

PACKAGE = str(pathlib.Path(jaxpyop.__file__).parent)
COUNTS = hasattr(sys, "monitoring")


@contextlib.contextmanager
def entered():
    """Yields a set that gets the code of each function of jaxpyop that is called meanwhile."""
    found, monitoring = set(), sys.monitoring

    def note(code, offset):
        if code.co_filename.startswith(PACKAGE) and (not code.co_name.startswith("<") or code.co_name == "<lambda>"):
            found.add(code)

    monitoring.use_tool_id(monitoring.PROFILER_ID, "files_entered")
    monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.PY_START, note)
    monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.PY_START)
    try:
        yield found
    finally:
        monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.NO_EVENTS)
        monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.PY_START, None)
        monitoring.free_tool_id(monitoring.PROFILER_ID)


def during(run):
    """What one run enters, until its results are there."""
    with entered() as found:
        jax.block_until_ready(run())
        jax.effects_barrier()
    return found


def gradient():
    """What tracing and lowering a gradient enters, and what its first run enters."""
    x = jnp.float32(3.0)
    step = jax.jit(jax.grad(lambda x: jaxpyop.py_function(log_huber, [x, 2.0], jnp.float32)))
    with entered() as lowering:
        lowered = step.lower(x)
    compiled = lowered.compile()
    return lowering, during(lambda: compiled(x))


def repeated(jit, op):
    """What the third run of a compiled program enters. JAX may leave a part of the compilation to the second one."""
    x, program = jnp.ones(1), jit(lambda x: jnp.sin(op(x * 2)) + 1)
    for _ in range(2):
        jax.block_until_ready(program(x))
    return during(lambda: program(x))


def table():
    """For each row: its name, what was entered, and the largest number of files that it may enter."""
    lowering, first_run = gradient()
    yield "jit(grad) of a py_function: trace and lower", lowering, None
    yield "  its first run", first_run, None
    yield "  together", lowering | first_run, 35
    negative = lambda **options: lambda x: jaxpyop.numpy_function(np.negative, [x], jnp.float32, **options)
    yield "a compiled numpy_function, run again", repeated(jax.jit, negative()), 8
    yield "jaxpyop.jit, a program cut at one call, again", repeated(jaxpyop.jit, negative(stateful=True)), 12


def main():
    """Print the table, and return 1 if a row enters more files than it may."""
    print(f"{'':<48}{'files':>8}{'limit':>8}{'functions':>12}")
    over = 0
    for name, found, limit in table():
        files = len({code.co_filename for code in found})
        over += limit is not None and files > limit
        print(f"{name:<48}{files:>8}{'' if limit is None else limit:>8}{len(found):>12}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main() if COUNTS else "python -m tests.bench.files_entered needs Python 3.12 or newer")
