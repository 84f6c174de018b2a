"""Every feature keeps its promise on every route: the value, dtype and derivatives of plain JAX, and its effects once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.routes.features import FEATURES, NOTES
from tests.routes.routes import ROUTES

X = np.array([0.4, 1.0, 1.4], np.float32)
PAIRS = [(route, feature) for route in ROUTES for feature in FEATURES]


def cases(*, differentiates, order=1):
    """The pairs of a route and a feature, as rows of a table."""
    return [
        pytest.param(ROUTES[route], FEATURES[feature], id=f"{route}: {feature}")
        for route, feature in PAIRS
        if ROUTES[route].differentiates == differentiates
        if FEATURES[feature].loads or route != "loaded"
    ]


def run(route, feature):
    NOTES.clear()
    out = jax.block_until_ready(route.run(feature.program, X))
    jax.effects_barrier()
    return out


def assert_equal_leaves(got, wanted, tolerance):
    got, wanted = jax.tree.leaves(got), jax.tree.leaves(wanted)
    assert [leaf.dtype for leaf in got] == [leaf.dtype for leaf in wanted]
    for ours, plain in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("route", "feature"), cases(differentiates=False))
def test_values(route, feature):
    got = run(route, feature)
    assert_equal_leaves(got, route.with_plain_jax(feature.plain, X), 1e-6)
    if feature.stateful:
        assert len(NOTES) == route.runs


@pytest.mark.parametrize(("route", "feature"), cases(differentiates=True))
def test_derivatives(route, feature):
    """An op without a rule is refused, by an error that says what to write."""
    if route.order > feature.order:
        with pytest.raises((TypeError, NotImplementedError, ValueError), match="vjp="):
            run(route, feature)
    else:
        got = run(route, feature)
        assert_equal_leaves(got, route.with_plain_jax(feature.plain, X), feature.tolerance)
        if feature.stateful:
            assert len(NOTES) == route.runs


@pytest.mark.parametrize("name", ROUTES)
def test_a_failing_function_is_named(name):
    """The error says which op failed, with the function's own message."""
    failing = FEATURES["a function that fails"]
    with pytest.raises(Exception, match="numpy_function 'fails'.*no such sample"):
        run(ROUTES[name], failing)
