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

    JAXPYOP_TEST_ALL=1 runs every combination, JAXPYOP_TEST_LONG=1 what is marked as long.
    """
    if not os.environ.get("JAXPYOP_TEST_LONG"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    if os.environ.get("JAXPYOP_TEST_ALL"):
        return
    tables = {}
    for item in items:
        parameters = getattr(item, "callspec", None) and item.callspec.params
        if parameters and len(parameters) > 2:
            values = [(name, id(value)) for name, value in sorted(parameters.items())]
            table = tables.setdefault((item.module.__name__, item.originalname), {})
            table[item] = set(itertools.combinations(values, 2))
    kept = set().union(*map(covering, tables.values()))
    gone = {item for table in tables.values() for item in table} - kept
    config.hook.pytest_deselected(items=list(gone))
    items[:] = [item for item in items if item not in gone]


def covering(table):
    """Few of the keys whose values have every member of all values; always the same ones."""
    missing, chosen = set().union(*table.values()), []
    bound = max(map(len, table.values()))
    while missing:
        # Those that add most come first; what a key adds can only shrink.
        for key, pairs in table.items():
            if len(pairs & missing) >= bound:
                chosen.append(key)
                missing -= pairs
        bound -= 1
    return chosen


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
def strict_promotion():
    """Strict promotion alone."""
    with jax.numpy_dtype_promotion("strict"):
        yield


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
