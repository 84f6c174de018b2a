"""Cases, groups of cases that are compared, and the bodies and frameworks that several groups share."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop

SCALAR = jax.ShapeDtypeStruct((), jnp.float32)
ONE = jax.ShapeDtypeStruct((1,), jnp.float32)
Program: TypeAlias = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to time. `run` starts it and returns the arrays to wait for; a sample is the mean of `calls` runs."""

    name: str
    run: Callable[[], Any]
    calls: int = 50


@dataclasses.dataclass(frozen=True)
class Group:
    """Cases that are compared. The first one is ours.

    A group that runs its steps in an order of its own has `take_times`, which returns the microseconds of each case.
    """

    title: str
    cases: list[Case]
    samples: int = 30
    take_times: Callable[[], dict[str, list[float]]] | None = None


def compare(title: str, programs: dict[str, Program], *inputs: Any, calls: int = 50, samples: int = 30) -> Group:
    """A group of programs that all get the same inputs."""
    cases = [Case(name, functools.partial(program, *inputs), calls) for name, program in programs.items()]
    return Group(title, cases, samples)


def compare_compiled(title: str, programs: dict[str, Program], *inputs: Any, **counts: int) -> Group:
    """The same under `jax.jit`."""
    return compare(title, {name: jax.jit(program) for name, program in programs.items()}, *inputs, **counts)


def negative(x: Any) -> Any:
    return np.negative(x)


def numpy_negative(**options: Any) -> Program:
    """`np.negative` as an op of ours."""
    return lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32, **options)


def callback_negative(callback: Any, like: Any = ONE, **options: Any) -> Program:
    """`np.negative` by one of JAX's own callbacks."""
    return lambda x: callback(negative, like, x, **options)


def negative_buffer(ctx: Any, out: Any, x: Any) -> None:
    np.negative(np.asarray(x), out=np.asarray(out))


def log_huber(x: Any, m: Any) -> Any:
    if abs(x) <= m:
        return x * x
    return m * m * (1 - 2 * jnp.log(m) + jnp.log(x * x))


def optional(name: str) -> Any:
    """An installed framework that is in none of our extras, or None."""
    # TensorFlow's greetings would stand in the middle of the table.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return importlib.import_module(name) if importlib.util.find_spec(name) else None
