"""How many examples hypothesis makes: few in the fast tests, many in the slow ones.

def check(program): ...

test_random_programs = few(given(programs()), check)
test_many_random_programs = many(given(programs()), check)
"""

import pytest
from hypothesis import settings


def few(given, check, examples=5):
    """A fast test, which makes a few examples for a check."""
    return settings(max_examples=examples)(given(check))


def many(given, check, examples=100):
    """A slow test, which makes many examples for a check."""
    return pytest.mark.slow(settings(max_examples=examples)(given(check)))
