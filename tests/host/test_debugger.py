"""pdb inside a body: a session through a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time

import pytest

from tests.shared.util import ROOT

SCRIPT = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np, sys
jaxpyop.config.transport = sys.argv[2]
def body(x):
    y = x * 2
    breakpoint()
    z = y + 1
    return z
op = {
    "py_function": lambda x: jaxpyop.py_function(body, [x], jnp.float32, output_shapes=(2,)),
    "numpy_function": lambda x: jaxpyop.numpy_function(body, [x], jnp.float32),
    "py_func": lambda x: jaxpyop.py_func(body, [x], jnp.float32),
}[sys.argv[1]]
f = op if sys.argv[3] == "direct" else jax.jit(op)
print("result", np.asarray(f(jnp.array([1.0, 2.0]))).tolist())
print("again", np.asarray(f(jnp.array([5.0, 6.0]))).tolist())
"""


class Session:
    """A Python process on a pseudo-terminal."""

    def __init__(self, *args):
        master, slave = pty.openpty()
        env = dict(
            os.environ,
            PYTHONPATH=ROOT,
            JAX_PLATFORMS="cpu",
            TERM="dumb",
            PYTHON_COLORS="0",
            PYTHONBREAKPOINT="pdb.set_trace",
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *args], stdin=slave, stdout=slave, stderr=slave, env=env
        )
        os.close(slave)
        self.master, self.text = master, ""

    def expect(self, wanted, timeout=60):
        """Read until `wanted` appears; what came before it."""
        end = time.monotonic() + timeout
        while wanted not in self.text:
            ready, _, _ = select.select([self.master], [], [], max(0, end - time.monotonic()))
            try:
                data = os.read(self.master, 4096) if ready else b""
            except OSError:  # the process is gone
                data = b""
            if not data:
                raise AssertionError(f"no {wanted!r} in {self.text!r}")
            self.text += data.decode(errors="replace")
        before, _, self.text = self.text.partition(wanted)
        return before

    def send(self, line):
        os.write(self.master, line.encode() + b"\n")

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
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize(("way", "transport"), [("direct", "auto"), ("jit", "auto"), ("jit", "callback")])
@pytest.mark.parametrize("api", ["py_function", "numpy_function", "py_func"])
def test_a_session(session, api, transport, way):
    pdb = session(api, transport, way)
    pdb.expect("(Pdb) ")
    pdb.send("p float(y[1])")
    assert "4.0" in pdb.expect("(Pdb) ")
    pdb.send("n")
    pdb.expect("(Pdb) ")
    pdb.send("p [float(v) for v in x]")
    assert "[1.0, 2.0]" in pdb.expect("(Pdb) ")
    pdb.send("w")
    assert "in body()" in pdb.expect("(Pdb) ").replace("body()", "in body()")
    pdb.send("c")
    pdb.expect("result [3.0, 5.0]")
    pdb.expect("(Pdb) ")
    pdb.send("c")
    pdb.expect("again [11.0, 13.0]")
    assert pdb.process.wait(timeout=60) == 0


def test_quitting_the_debugger_is_an_error_of_the_body(session):
    pdb = session("py_func", "auto", "jit")
    pdb.expect("(Pdb) ")
    pdb.send("q")
    pdb.expect("BdbQuit")
    assert pdb.process.wait(timeout=60) != 0


def test_the_session_notices_a_missing_prompt(session):
    with pytest.raises(AssertionError, match="no 'never' in"):
        session("nothing", "auto", "jit").expect("never")
