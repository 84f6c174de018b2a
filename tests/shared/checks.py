"""What tests compare and count: values, runs of a function, and what is still in memory."""

import contextlib
import functools
import gc
import time

import jax
import numpy as np

import jaxpyop
from jaxpyop import _config

close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-5)


def trees_close(got, wanted):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    jax.tree.map(close, got, wanted)


def run(f, *args):
    """The result of a program, or a body's own exception."""
    with jaxpyop.reraise():
        out = jax.block_until_ready(f(*args))
        jax.effects_barrier()
    return out


class Counter:
    """A body that counts its runs and keeps what it saw; adds one to its input."""

    def __init__(self, func=lambda x: x + 1):
        self.func = func
        self.seen = []
        self.__name__ = "counter"

    def __call__(self, *args, **kwargs):
        self.seen.append([np.array(a) if hasattr(a, "dtype") else a for a in args])
        return self.func(*args, **kwargs)

    @property
    def count(self):
        return len(self.seen)


def freed(*refs):
    """Whether nothing holds them: XLA's threads let go of a program a moment after its results are there."""
    return eventually(lambda: all(ref() is None for ref in refs))


def eventually(holds, seconds=10):
    """Whether something holds within the time, garbage being collected meanwhile."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        gc.collect()
        time.sleep(0.001)
    return True


@contextlib.contextmanager
def over_transport(name: str):
    """Has programs that are compiled meanwhile call Python over this transport: "auto" or "callback"."""
    before, _config.TRANSPORT = _config.TRANSPORT, name
    try:
        yield
    finally:
        _config.TRANSPORT = before


def shape_of(f, *args):
    """The shape that JAX gives the result, without running Python on values."""
    return jax.eval_shape(f, *args).shape
