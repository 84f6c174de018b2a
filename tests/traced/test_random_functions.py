"""Random Python functions are equal to Python or refused, and equal in mode "auto".

random_functions.py and random_objects.py write them.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared.examples import few, many
from tests.traced import random_objects
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


KINDS_AND_SEEDS = given(st.sampled_from(list(random_objects.KINDS)), st.integers(0, 2**32))


def of_a_kind(kind, seed):
    found = random_objects.outcome(kind, seed, ("traced", "batch", "auto"))
    assert found in ("equal", "refused", "raises"), random_objects.text_of(kind, seed)


test_many_random_functions_of_each_kind = pytest.mark.timeout(300)(many(KINDS_AND_SEEDS, of_a_kind, examples=12))
