"""What the programs for several devices share: a mesh, an array on it, the ops, and a list of all programs."""

# ruff: noqa: B008, PT017

from __future__ import annotations

import contextlib
import functools
import time

import jaxpyop

import jax  # isort: skip
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

SOON = 8  # seconds in which an error has to be there
F = jnp.float32
FULL = np.arange(8, dtype=np.float32)

py_function, numpy_function = jaxpyop.py_function, jaxpyop.numpy_function
stateful = jaxpyop.py_func


OPS = {
    "py_function": py_function,
    "numpy_function": numpy_function,
    "stateful py_function": functools.partial(py_function, stateful=True),
    "py_func": stateful,
}


class Log:
    """A body that notes the values that it gets."""

    def __init__(self, func=lambda x: x * 2):
        self.func = func
        self.seen = []

    def __call__(self, *args):
        if not any(isinstance(a, jax.core.Tracer) for a in args):
            self.seen.append(np.asarray(args[0]).tolist())
        return self.func(*args)


class Devices:
    """What a program gets: a mesh of one kind, an array on it, a way to finish."""

    def __init__(self, kind):
        self.kind = kind
        self.mesh = self.make_mesh((4,), ("d",))
        self.x = jax.device_put(FULL, NamedSharding(self.mesh, P("d")))

    def make_mesh(self, shape, names):
        return jax.make_mesh(shape, names, axis_types=(AxisType[self.kind],) * len(names))

    def shard_map(self, f, in_specs=P("d"), out_specs=P("d"), mesh=None):
        return jax.jit(jax.shard_map(f, mesh=mesh or self.mesh, in_specs=in_specs, out_specs=out_specs))

    def gradient_context(self):
        # JAX asks for it to sum over an explicit mesh in a gradient outside jit.
        return jax.set_mesh(self.mesh) if self.kind == "Explicit" else contextlib.nullcontext()


def finish(out):
    jax.block_until_ready(out)
    jax.effects_barrier()
    return out


same = np.testing.assert_allclose
PROGRAMS = {}


def program(f):
    PROGRAMS[f.__name__] = f
    return f


class MyError(Exception):
    pass


def fail(*args):
    raise MyError("mine")


def fail_on_the_first_shard(x):
    if np.asarray(x)[0] == 0:
        raise MyError("mine")
    return x


def expect_error(f, *args):
    """The body's own error comes out soon, time after time."""
    for _ in range(2):
        start = time.monotonic()
        try:
            with jaxpyop.reraise():
                finish(f(*args))
        except MyError as error:
            assert str(error) == "mine"
        else:
            raise AssertionError("no error")
        assert time.monotonic() - start < SOON


def works_again(on, op):
    log = Log()
    same(finish(jax.jit(lambda x: op(log, [x], F))(on.x)) + on.x, FULL * 3)
    assert set(map(tuple, log.seen)) == {tuple(FULL)}
    same(on.shard_map(lambda x: op(lambda x: x * 2, [x], F))(on.x), FULL * 2)
