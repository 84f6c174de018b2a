"""Cases, groups of cases that are compared, and the bodies and frameworks that several groups share."""

import dataclasses
import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop

SCALAR = jax.ShapeDtypeStruct((), jnp.float32)
ONE = jax.ShapeDtypeStruct((1,), jnp.float32)


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to time. `run` starts it and returns the arrays to wait for; a sample is the mean of `calls` runs."""

    name: str
    run: Callable[[], Any]
    calls: int = 50


@dataclasses.dataclass(frozen=True)
class Group:
    """Cases that are compared. The first one is ours."""

    title: str
    cases: list[Case]
    samples: int = 30


def compare(title, programs, *inputs, calls=50, samples=30):
    """A group of programs that all get the same inputs."""
    cases = [Case(name, functools.partial(program, *inputs), calls) for name, program in programs.items()]
    return Group(title, cases, samples)


def compare_compiled(title, programs, *inputs, **counts):
    """The same under `jax.jit`."""
    return compare(title, {name: jax.jit(program) for name, program in programs.items()}, *inputs, **counts)


def negative(x):
    return np.negative(x)


def numpy_negative(**options):
    """`np.negative` as an op of ours."""
    return lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32, **options)


def callback_negative(callback, like=ONE, **options):
    """`np.negative` by one of JAX's own callbacks."""
    return lambda x: callback(negative, like, x, **options)


def negative_buffer(ctx, out, x):
    np.negative(np.asarray(x), out=np.asarray(out))


def log_huber(x, m):
    """A loss that branches on its input."""
    return x * x if abs(x) <= m else m * m * (1 - 2 * jnp.log(m) + jnp.log(x * x))


def optional(name):
    """An installed framework that is in none of our extras, or None."""
    # TensorFlow's greetings would stand in the middle of the table.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return importlib.import_module(name) if importlib.util.find_spec(name) else None
