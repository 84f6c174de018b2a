"""What it takes to lower a program of many ops, beside JAX's own callbacks: counted, in calls of Python functions."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

from tests.shared.util import numpy_function

F = jnp.float32
COUNT = 100
LIKE = jax.ShapeDtypeStruct((3,), F)


def _calls(op):
    """How many Python functions run while a program of so many ops is lowered."""

    def program(x):
        for _ in range(COUNT):
            x = op(x)
        return x

    calls = 0

    def count(frame, event, _):
        nonlocal calls
        calls += event == "call"

    jax.jit(lambda x: program(x)).lower(jnp.ones(3))  # what is done once
    traced = jax.jit(lambda x: program(x)).trace(jnp.ones(3))
    sys.setprofile(count)
    try:
        traced.lower()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    ("options", "theirs"),
    [({}, jax.pure_callback), ({"stateful": True}, io_callback)],
    ids=["pure_callback", "io_callback"],
)
def test_many_ops_are_lowered_as_fast_as_by(options, theirs):
    """Four to six times as long when each was traced once more as JAX's buffer_callback."""
    ours = _calls(lambda x: numpy_function(lambda v: v, [x], F, **options))
    assert ours < 1.5 * _calls(lambda x: theirs(abs, LIKE, x))
