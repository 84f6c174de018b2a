"""Loops on values in the program: against the bodies run eagerly on values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.shared import loop_bodies
from tests.shared.loop_bodies import points, traced
from tests.shared.path_bodies import close, primitives

pytestmark = pytest.mark.filterwarnings("error")

by_body = pytest.mark.parametrize("body", loop_bodies.BODIES, ids=lambda f: f.__name__)


def stacked():
    return map(np.stack, zip(*points, strict=True))


@by_body
def test_direct(body):
    for (x, m), wanted in zip(points[:2], loop_bodies.eager_values(body), strict=False):
        close(traced(body)(jnp.asarray(x), jnp.asarray(m)), wanted)


@by_body
def test_jit(body):
    op = jax.jit(traced(body))
    for (x, m), wanted in zip(points, loop_bodies.eager_values(body), strict=True):
        got = op(x, m)
        close(got, wanted)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)


@by_body
def test_grad(body):
    gradient = jax.jit(jax.grad(traced(body), (0, 1)))
    for (x, m), wanted in zip(points, loop_bodies.eager_gradients(body), strict=True):
        got = gradient(x, m)
        close(got[0], wanted[0])
        close(got[1], wanted[1])


@by_body
def test_jvp(body):
    bound = loop_bodies.MAX_STEPS if body is loop_bodies.if_in_inner_grad else None  # a backward pass in the body
    forward = jax.jit(jax.jacfwd(traced(body, bound), (0, 1)))
    for (x, m), wanted in zip(points[:3], loop_bodies.eager_gradients(body), strict=False):
        got = forward(x, m)
        close(got[0], wanted[0])
        close(got[1], wanted[1])


@by_body
def test_vmap(body):
    close(jax.jit(jax.vmap(traced(body)))(*stacked()), loop_bodies.eager_values(body))


@by_body
def test_vmap_of_grad(body):
    got = jax.jit(jax.vmap(jax.grad(traced(body))))(*stacked())
    close(got, [gx for gx, _ in loop_bodies.eager_gradients(body)])


@by_body
def test_grad_of_vmap(body):
    total = lambda xs, ms: jax.vmap(traced(body))(xs, ms).sum()
    close(jax.jit(jax.grad(total))(*stacked()), [gx for gx, _ in loop_bodies.eager_gradients(body)])


@by_body
def test_scan(body):
    op = traced(body)
    _, got = jax.jit(lambda *ops: lax.scan(lambda c, p: (c, op(*p)), 0, ops))(*stacked())
    close(got, loop_bodies.eager_values(body))


@by_body
def test_no_callback(body):
    count = primitives(jax.make_jaxpr(traced(body))(*points[1]))
    assert not [name for name in count if "callback" in name or "python_call" in name]
