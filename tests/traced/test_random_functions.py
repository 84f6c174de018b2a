"""Random Python functions are equal to Python or refused, and equal in mode "auto". random_functions.py writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared.examples import few, many
from tests.traced.random_functions import outcome, random_function

# Python 3.12 says that `~` of a bool will be an error one day.
pytestmark = pytest.mark.filterwarnings("ignore:Bitwise inversion")
SEEDS = given(st.integers(0, 2**32))


def one_point(seed):
    assert outcome(seed, points=1) in ("equal", "refused", "raises"), random_function(seed)


def all_points(seed):
    assert outcome(seed) in ("equal", "refused", "raises"), random_function(seed)
    assert outcome(seed, "auto") in ("equal", "raises"), random_function(seed)


test_a_few_random_functions = few(SEEDS, one_point, examples=2)
test_many_random_functions = pytest.mark.timeout(300)(many(SEEDS, all_points, examples=7))
