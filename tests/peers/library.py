"""Libraries of others: imported where a test needs one, and how near their results are to those of plain JAX."""

import warnings

import jax
import numpy as np
import pytest

NEAR = {"rtol": 2e-5, "atol": 2e-6}


def library(name):
    """A module of a library, which only its tests import, because that takes long. Without it they are skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return pytest.importorskip(name, reason=f"{name} is missing: install the extra `peers`")


def assert_near(found, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **(NEAR | tolerance)), found, expected)
