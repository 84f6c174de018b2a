"""`breakpoint()` in a function: a session of pdb through a pseudo-terminal, directly and under `jit`."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

import pytest

from tests.shared.processes import ROOT

pty = pytest.importorskip("pty", reason="needs a pseudo-terminal")
pytestmark = pytest.mark.slow

SCRIPT = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np, sys
jaxpyop.config.transport = sys.argv[2]
def body(x):
    y = x * 2
    breakpoint()
    z = y + 1
    return z
op = lambda x: getattr(jaxpyop, sys.argv[1])(body, [x], jax.ShapeDtypeStruct((2,), jnp.float32))
f = op if sys.argv[3] == "direct" else jax.jit(op)
print("result", np.asarray(f(jnp.array([1.0, 2.0]))).tolist())
print("again", np.asarray(f(jnp.array([5.0, 6.0]))).tolist())
"""


class Session:
    """A Python process on a pseudo-terminal."""

    def __init__(self, *args):
        self.master, slave = pty.openpty()
        env = {"PYTHONPATH": ROOT, "JAX_PLATFORMS": "cpu", "TERM": "dumb", "PYTHON_COLORS": "0"}
        env = {**os.environ, **env, "PYTHONBREAKPOINT": "pdb.set_trace"}
        command = [sys.executable, "-c", SCRIPT, *args]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env)
        os.close(slave)
        self.text = ""

    def expect(self, wanted, timeout=60):
        """Read until the text appears, and return what came before it."""
        end = time.monotonic() + timeout
        while wanted not in self.text:
            ready, _, _ = select.select([self.master], [], [], max(0, end - time.monotonic()))
            try:
                data = os.read(self.master, 4096) if ready else b""
            except OSError:  # the process is gone
                data = b""
            assert data, f"no {wanted!r} in {self.text!r}"
            self.text += data.decode(errors="replace")
        before, _, self.text = self.text.partition(wanted)
        return before

    def send(self, line):
        os.write(self.master, line.encode() + b"\n")
        return self.expect("(Pdb) ")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def session():
    started = []

    def start(*args):
        started.append(Session(*args))
        started[-1].expect("(Pdb) ")
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize(
    "how",
    [
        ("numpy_function", "auto", "direct"),
        ("py_function", "auto", "jit"),
        ("numpy_function", "callback", "jit"),
        ("py_func", "auto", "jit"),
    ],
    ids=" ".join,
)
def test_a_session(session, how):
    pdb = session(*how)
    assert "4.0" in pdb.send("p float(y[1])")
    pdb.send("n")
    assert "[1.0, 2.0]" in pdb.send("p [float(v) for v in x]")
    assert "body()" in pdb.send("w")
    assert "result [3.0, 5.0]" in pdb.send("c")
    os.write(pdb.master, b"c\n")
    pdb.expect("again [11.0, 13.0]")
    assert pdb.process.wait(timeout=60) == 0


def test_to_quit_the_debugger_is_an_error_of_the_function(session):
    pdb = session("py_func", "auto", "jit")
    os.write(pdb.master, b"q\n")
    pdb.expect("BdbQuit")
    assert pdb.process.wait(timeout=60) != 0
