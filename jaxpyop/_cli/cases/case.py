"""What is compared: a group of cases, ours first; and the bodies and frameworks that several share."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ONE = jax.ShapeDtypeStruct((1,), jnp.float32)


@dataclasses.dataclass(frozen=True)
class Case:
    """Something to time: `run` starts it and returns what to wait for."""

    name: str
    run: Callable[[], Any]
    calls: int = 50  # per sample


@dataclasses.dataclass(frozen=True)
class Group:
    """Cases that are compared; the first is ours. What is more than one call long takes its times itself."""

    title: str
    cases: list[Case]
    samples: int = 30
    take_times: Callable[[], dict[str, list[float]]] | None = None  # microseconds, ours first


def negative(x: Any) -> Any:
    return np.negative(x)


def negative_buffer(ctx: Any, out: Any, x: Any) -> None:
    np.asarray(out)[...] = np.negative(np.asarray(x))


def log_huber(x: Any, m: Any) -> Any:
    if abs(x) <= m:
        return x * x
    return m * m * (1 - 2 * jnp.log(m) + jnp.log(x * x))


def tensorflow() -> Any:
    if importlib.util.find_spec("tensorflow") is None:
        return None
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its greetings are no part of a table
    return importlib.import_module("tensorflow")  # no part of any extra
