"""`breakpoint()` in a function: sessions of pdb in processes of their own, directly and under `jit`."""

import os
import subprocess
import sys

import pytest

from tests.shared.processes import ROOT, run_python

pytestmark = pytest.mark.slow

SCRIPT = """
import jaxpyop, jax, jax.numpy as jnp, sys
def body(x):
    y = x * 2
    breakpoint()
    z = y + 1
    return z
op = lambda x: getattr(jaxpyop, sys.argv[1])(body, [x], jax.ShapeDtypeStruct((2,), jnp.float32))
f = op if sys.argv[2] == "direct" else jax.jit(op)
print("result", f(jnp.array([1.0, 2.0])).tolist())
print("again", f(jnp.array([5.0, 6.0])).tolist())
"""


def session(*arguments, typed, **env):
    """The exit status of a program, and all that it and the debugger wrote."""
    env = {**os.environ, "PYTHONPATH": ROOT, "JAX_PLATFORMS": "cpu", "PYTHONBREAKPOINT": "pdb.set_trace", **env}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    pipes = {"input": "\n".join([*typed, ""]), "capture_output": True, "text": True, "timeout": 100}
    done = subprocess.run(command, env=env, check=False, **pipes)
    return done.returncode, done.stdout + done.stderr


SESSIONS = [("numpy_function", "direct", "auto"), ("py_function", "jit", "auto"), ("py_func", "jit", "callback")]


@pytest.mark.parametrize(("api", "how", "transport"), SESSIONS)
def test_values_and_frames_are_shown_and_the_program_goes_on(api, how, transport):
    typed = ["p 'y', float(y[1])", "n", "p 'x', [float(v) for v in x]", "w", "c", "c"]
    status, text = session(api, how, typed=typed, JAXPYOP_TRANSPORT=transport)
    assert status == 0, text
    for part in ("('y', 4.0)", "('x', [1.0, 2.0])", "body()", "result [3.0, 5.0]", "again [11.0, 13.0]"):
        assert part in text


def test_to_quit_the_debugger_is_an_error_of_the_function():
    status, text = session("py_func", "jit", typed=["q"])
    assert status != 0
    assert "BdbQuit" in text


def test_errors_while_lines_are_traced():
    """As by a debugger or a measurement of coverage. The second error drops the variables of the first one."""
    run_python(
        """
import sys, jaxpyop, jax, jax.numpy as jnp
def body(x):
    raise KeyError("traced")
f = jax.jit(lambda x: jaxpyop.numpy_function(body, [x], jnp.float32))
tracer = lambda *event: tracer
sys.settrace(tracer)
for _ in range(3):
    try:
        with jaxpyop.reraise():
            f(1.0).block_until_ready()
    except KeyError:
        continue
    raise AssertionError
assert sys.gettrace() is tracer
"""
    )
