"""Counts the files and the functions of jaxpyop that typical calls enter, which a reader of the call has to follow.

    python -m tests.bench.files_entered

A function counts once, however often it is called; comprehensions count with the function that they are in. Python 3.12
and newer count the calls of all threads, by `sys.monitoring`. Host callbacks may run on threads of XLA, which Python
3.11 cannot profile from outside, so that the counts may be too low there.
"""

import contextlib
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop

PACKAGE = str(pathlib.Path(jaxpyop.__file__).parent)
COUNTS_ALL_THREADS = sys.version_info >= (3, 12)


@contextlib.contextmanager
def entered():
    """Yields a set that gets the code of each function of jaxpyop that is called meanwhile."""
    found = set()

    def note(code):
        if code.co_filename.startswith(PACKAGE) and (not code.co_name.startswith("<") or code.co_name == "<lambda>"):
            found.add(code)

    with (_monitored if COUNTS_ALL_THREADS else _profiled)(note):
        yield found


@contextlib.contextmanager
def _monitored(note):
    monitoring = sys.monitoring
    monitoring.use_tool_id(monitoring.PROFILER_ID, "files_entered")
    monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.PY_START, lambda code, offset: note(code))
    monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.PY_START)
    try:
        yield
    finally:
        monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.NO_EVENTS)
        monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.PY_START, None)
        monitoring.free_tool_id(monitoring.PROFILER_ID)


@contextlib.contextmanager
def _profiled(note):
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: note(frame.f_code) if event == "call" else None)
    try:
        yield
    finally:
        sys.setprofile(before)


def during(run):
    """What one run enters, until its results are there."""
    with entered() as found:
        jax.block_until_ready(run())
        jax.effects_barrier()
    return found


def log_huber(x, m):
    """A loss that branches on its input."""
    return x * x if abs(x) <= m else m * m * (1 - 2 * jnp.log(m) + jnp.log(x * x))


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
    if not COUNTS_ALL_THREADS:
        print("This Python is older than 3.12, and does not count calls on threads of XLA.")
    print(f"{'':<48}{'files':>8}{'limit':>8}{'functions':>12}")
    over = 0
    for name, found, limit in table():
        files = len({code.co_filename for code in found})
        over += limit is not None and files > limit
        print(f"{name:<48}{files:>8}{'' if limit is None else limit:>8}{len(found):>12}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
