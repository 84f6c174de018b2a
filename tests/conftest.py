"""What all tests share.

jaxpyop comes first: its guard has to be in place before JAX makes its CPU client.
"""

import itertools
import os
import sys

import jaxpyop  # isort: skip

import jax
import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, os.path.dirname(__file__))  # `from util import ...`, in any import mode

from util import ROUTES

settings.register_profile(
    "jaxpyop",
    database=None,
    deadline=None,
    derandomize=True,
    max_examples=int(os.environ.get("JAXPYOP_TEST_EXAMPLES", "20")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("jaxpyop")


def pytest_collection_modifyitems(config, items):
    """Of tables over three and more things keep what covers every pair of them.

    JAXPYOP_TEST_ALL=1 runs every combination.
    """
    if os.environ.get("JAXPYOP_TEST_ALL"):
        return
    seen, left_out = set(), []
    for item in items:
        parameters = getattr(item, "callspec", None) and item.callspec.params
        if not parameters or len(parameters) < 3:
            continue
        values = [(name, id(value)) for name, value in sorted(parameters.items())]
        pairs = {(item.module.__name__, item.originalname, *pair) for pair in itertools.combinations(values, 2)}
        if pairs <= seen:
            left_out.append(item)
        seen |= pairs
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


@pytest.fixture(params=["auto", "callback"])
def transport(request):
    """Both ways from a compiled program to the host."""
    with jaxpyop.config.override(transport=request.param):
        yield request.param


@pytest.fixture(params=list(ROUTES.values()), ids=list(ROUTES))
def route(request):
    """A way to run a program: directly, or under jit on both transports."""
    with jaxpyop.config.override(transport=request.param.transport):
        yield request.param


@pytest.fixture
def checked():
    """Strict promotion and tracer-leak checks."""
    with jax.numpy_dtype_promotion("strict"), jax.checking_leaks():
        yield


@pytest.fixture
def x64():
    """64-bit types for one test."""
    with jax.enable_x64(True):
        yield
