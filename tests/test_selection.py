"""The choice of cases of large tables: every pair of values is still covered."""

import itertools

from conftest import covering
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.integers(1, 5), min_size=3, max_size=4))
def test_every_pair_of_values_is_covered(sizes):
    rows = list(itertools.product(*(range(size) for size in sizes)))
    table = {row: set(itertools.combinations(enumerate(row), 2)) for row in rows}
    chosen = covering(table)
    assert set().union(*(table[row] for row in chosen)) == set().union(*table.values())
    assert len(chosen) == len(set(chosen)) <= len(rows)
    assert covering(table) == chosen


def test_it_is_much_less_than_everything():
    rows = list(itertools.product(range(10), range(6), range(3)))
    assert len(covering({row: set(itertools.combinations(enumerate(row), 2)) for row in rows})) <= 75
