"""What all tests share.

jaxpyop comes first: its guard has to be in place before JAX makes its CPU client.
"""

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
