"""What all test files share.

jaxpyop is imported before JAX, because its import arranges JAX's CPU client, which nothing can change any more when
it is made.
"""

import jaxpyop  # isort: skip

import jax
import pytest
from hypothesis import HealthCheck, settings

# Many functions in the tests look at their inputs by `np.asarray`. The warning about that has tests of its own.
jaxpyop.config.constants = "allow"

# The same examples in each run: a failure can be seen again. tests/shared/examples.py says how many there are.
settings.register_profile(
    "jaxpyop",
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("jaxpyop")


@pytest.fixture
def x64():
    """64-bit types for one test."""
    with jax.enable_x64(True):
        yield
