"""Quick garbage collections for the tests of arrays."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """The garbage collector leaves alone what was there before: jaxpyop collects garbage where an array seems kept."""
    gc.freeze()
    yield
    gc.unfreeze()
