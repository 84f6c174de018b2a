"""What the programs for several devices share: a mesh, an array on it, the ops, and a list of all programs."""

# ruff: noqa: B008

import functools
import itertools
import time

import jaxpyop

import jax  # isort: skip
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.shared.functions import numpy_function, py_func, py_function

SOON = 40  # seconds in which an error has to be there
F = jnp.float32
FULL = np.arange(8, dtype=np.float32)
SHARDS = FULL.reshape(4, 2).tolist()

STATEFUL = {"py_func": py_func, "stateful py_function": functools.partial(py_function, stateful=True)}
OPS = {"py_function": py_function, "numpy_function": numpy_function, **STATEFUL}
# One stateless and one stateful op each, which the rows of a table have in turn.
PAIRS = [("py_function", "py_func"), ("numpy_function", "stateful py_function")]
same = np.testing.assert_allclose


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
    """What a program gets: a mesh of one kind, an array on it, and `shard_map` over it."""

    def __init__(self, kind):
        self.kind = kind
        self.mesh = self.make_mesh((4,), ("d",))
        self.x = self.on_mesh(FULL)

    def make_mesh(self, shape, names):
        return jax.make_mesh(shape, names, axis_types=(AxisType[self.kind],) * len(names))

    def on_mesh(self, array, spec=P("d")):
        return jax.device_put(array, NamedSharding(self.mesh, spec))

    def shard_map(self, f, in_specs=P("d"), out_specs=P("d"), mesh=None):
        return jax.jit(jax.shard_map(f, mesh=mesh or self.mesh, in_specs=in_specs, out_specs=out_specs))


def finish(out):
    jax.block_until_ready(out)
    jax.effects_barrier()
    return out


PROGRAMS = {}


def program(f):
    PROGRAMS[f.__name__] = f
    return f


def programs_of_an_op(rows):
    """Add a program for each row: what it does with a function that doubles, its result, and what the function sees."""
    for (name, row), ops in zip(rows.items(), itertools.cycle(PAIRS)):
        PROGRAMS[name] = functools.partial(_values_and_runs, row, ops)


def _values_and_runs(row, ops, on):
    make, wanted, seen = row
    for name, op in [(name, OPS[name]) for name in ops]:
        log = Log()
        f = make(on, lambda x, **options: op(log, [x], F, **options))  # noqa: B023
        for n in (1, 2):
            same(finish(f(on.x)) + on.x, wanted + FULL)  # usable eagerly with what went in
            if name in STATEFUL:
                assert sorted(log.seen) == sorted(seen * n), (name, log.seen)
            assert all(each in seen for each in log.seen), (name, log.seen)


class MyError(Exception):
    pass


def fail(*args):
    raise MyError("mine")


def expect_error(f, *args):
    """The body's own error comes out soon, time after time."""
    for _ in range(2):
        start = time.monotonic()
        with pytest.raises(MyError, match="mine"), jaxpyop.reraise():
            finish(f(*args))
        assert time.monotonic() - start < SOON
