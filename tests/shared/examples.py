"""How many examples hypothesis makes: few in the fast tests, many in the slow ones.

def check(program): ...

test_random_programs = few(given(programs()), check)
test_many_random_programs = many(given(programs()), check)
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

Test = Callable[..., Any]


def few(given: Callable[[Test], Test], check: Test, examples: int = 5) -> Test:
    """A fast test, which makes a few examples for a check."""
    return settings(max_examples=examples)(given(check))


def many(given: Callable[[Test], Test], check: Test, examples: int = 100) -> Test:
    """A slow test, which makes many examples for a check."""
    return pytest.mark.slow(settings(max_examples=examples)(given(check)))
