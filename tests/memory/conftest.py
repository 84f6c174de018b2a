"""Fixtures of the tests of memory."""

import gc

import pytest


@pytest.fixture(autouse=True)
def _what_is_there_is_no_garbage():
    """A collection looks only at what a test makes, which takes a thousandth of the time."""
    gc.freeze()
    yield
    gc.unfreeze()
