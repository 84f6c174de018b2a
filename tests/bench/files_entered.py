"""Counts the files and the functions of jaxpyop that typical calls enter, which a reader of the call has to follow.

    python -m tests.bench.files_entered

A change of file is a call of a function that is in another file than the function called before. Comprehensions count
with the function that they are in. It needs Python 3.12, whose `sys.monitoring` sees the calls of all threads, also
those of XLA.
"""

import contextlib
import itertools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop

PACKAGE = str(pathlib.Path(jaxpyop.__file__).parent)
COUNTS = hasattr(sys, "monitoring")


@contextlib.contextmanager
def entered():
    """Yields a list that gets the code of each function of jaxpyop that is called meanwhile."""
    found, monitoring = [], sys.monitoring

    def note(code, offset):
        if code.co_filename.startswith(PACKAGE) and (not code.co_name.startswith("<") or code.co_name == "<lambda>"):
            found.append(code)

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


def changes_of_file(found):
    return sum(one.co_filename != other.co_filename for one, other in itertools.pairwise(found))


def sine_of_square(x):
    return jnp.sin(x * x)


def gradient():
    """What a gradient of two operations enters: traced and lowered, in its first run, and in a later one."""
    x = jnp.float32(3.0)
    step = jax.jit(jax.grad(lambda x: jaxpyop.py_function(sine_of_square, [x], jnp.float32)))
    with entered() as lowering:
        lowered = step.lower(x)
    compiled = lowered.compile()
    first, _, later = (during(lambda: compiled(x)) for _ in range(3))
    return lowering, first, later


def repeated(jit, op):
    """What the third run of a compiled program enters. JAX may leave a part of the compilation to the second one."""
    x, program = jnp.ones(1), jit(lambda x: jnp.sin(op(x * 2)) + 1)
    for _ in range(2):
        jax.block_until_ready(program(x))
    return during(lambda: program(x))


def table():
    """For each row: its name, what was entered, and how many files and changes of file there may be."""
    lowering, first_run, later_run = gradient()
    yield "jit(grad) of a py_function: trace and lower", lowering, (32, 180)
    yield "  its first run, which differentiates operations", first_run, (23, 160)
    yield "  a later run", later_run, (20, 100)
    negative = lambda **options: lambda x: jaxpyop.numpy_function(np.negative, [x], jnp.float32, **options)
    yield "a compiled numpy_function, run again", repeated(jax.jit, negative()), (11, 20)
    yield "jaxpyop.jit, a program cut at one call, again", repeated(jaxpyop.jit, negative(stateful=True)), (12, 20)


def main():
    """Print the table, and return 1 if a row enters more files, or changes file more often, than it may."""
    print(f"{'':<48}{'files':>8}{'functions':>12}{'changes':>10}{'calls':>8}{'limits':>12}")
    over = 0
    for name, found, limits in table():
        counts = len({code.co_filename for code in found}), changes_of_file(found)
        over += any(count > limit for count, limit in zip(counts, limits))
        shown = f"{limits[0]}, {limits[1]}"
        print(f"{name:<48}{counts[0]:>8}{len(set(found)):>12}{counts[1]:>10}{len(found):>8}{shown:>12}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main() if COUNTS else "python -m tests.bench.files_entered needs Python 3.12 or newer")
