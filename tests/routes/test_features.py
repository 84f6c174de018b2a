"""Every feature on every route: the values, dtypes and derivatives of plain JAX, and each effect once."""

import os

import jax
import numpy as np
import pytest

from tests.routes.features import FAILING, FEATURES, NOTES, X
from tests.routes.routes import ROUTES

# The warning comes once, so that it depends on the order of the tests. errors/ tests it.
pytestmark = pytest.mark.filterwarnings("ignore:.*on_error= filled:RuntimeWarning")

PORTABLE = os.environ.get("JAXPYOP_PORTABLE") == "1"


def cases(of_derivatives):
    """The rows of a table: each route with each feature that it can take."""
    return [
        pytest.param(route, feature, id=f"{way}: {name}", marks=[pytest.mark.slow] if route.slow else [])
        for way, route in ROUTES.items()
        for name, feature in FEATURES.items()
        if (route.order > 0) == of_derivatives
        if feature.order is not None or not of_derivatives
        if feature.loads or way != "loaded"
        if not PORTABLE or works_on_public_jax(way, name)
    ]


def works_on_public_jax(way, name):
    """Whether the package promises this without JAX's private names. inside/test_portable.py runs this file so."""
    feature, route = FEATURES[name], ROUTES[way]
    # The derivative of a loop refuses a stateful op then, and a scan keeps one without results as it is.
    refused = feature.needs_values or name == "Tout=None"
    return way != "loaded" and name != 'mode="traced"' and not (route.order and refused)


def run(route, feature):
    """The arrays that the program returns. A tangent that cannot be computed raises where it is read."""
    NOTES.clear()
    out = [np.asarray(leaf) for leaf in jax.tree.leaves(route.run(feature.program, X))]
    jax.effects_barrier()
    return out


def assert_as_in_plain_jax(route, feature, tolerance):
    got = run(route, feature)
    wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(route.with_plain_jax(feature.plain, X))]
    assert [leaf.dtype for leaf in got] == [leaf.dtype for leaf in wanted]
    for ours, plain in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=tolerance, atol=tolerance)
    if feature.stateful:
        assert len(NOTES) == route.runs


@pytest.mark.parametrize(("route", "feature"), cases(of_derivatives=False))
def test_values(route, feature):
    assert_as_in_plain_jax(route, feature, 1e-6)


@pytest.mark.parametrize(("route", "feature"), cases(of_derivatives=True))
def test_derivatives(route, feature):
    """A function without a rule is refused, by an error that says what to write."""
    if route.order > feature.order:
        with pytest.raises((TypeError, NotImplementedError, ValueError), match=r"needs the rule|vjp=|stateful=False"):
            run(route, feature)
    else:
        assert_as_in_plain_jax(route, feature, feature.tolerance)


ONCE = [way for way, route in ROUTES.items() if route.order < 2 and not (PORTABLE and way == "loaded")]


@pytest.mark.parametrize("way", ONCE)
def test_a_function_that_fails(way):
    """The function's own message reaches the caller on each route."""
    with pytest.raises((KeyError, jax.errors.JaxRuntimeError), match="no such sample"):
        run(ROUTES[way], FAILING)
