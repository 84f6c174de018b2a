"""What runs without --all: every pair of values of large tables is covered; what is named is there."""

import itertools
import pathlib
import re
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import covering, pytest_terminal_summary
from tests.shared.selection import ONLY, THOROUGH, is_quick


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


TESTS = {path.name: path.read_text(encoding="utf-8") for path in pathlib.Path(__file__).parents[1].rglob("test_*.py")}


def is_defined(test, text):
    return re.search(rf"^def {re.escape(test)}\(", text, re.MULTILINE) is not None


@pytest.mark.parametrize("file", sorted({*THOROUGH, *ONLY}))
def test_what_the_selection_names_exists(file):
    named = [*THOROUGH.get(file, {}), *ONLY.get(file, {})]
    assert [test for test in named if not is_defined(test, TESTS[file])] == []


@pytest.mark.parametrize("file", THOROUGH)
def test_what_is_left_out_is_covered_by_a_test_that_is_not(file):
    for instead in THOROUGH[file].values():
        homes = [name for name, text in TESTS.items() if is_defined(instead, text)]
        assert any(instead not in THOROUGH.get(home, {}) for home in homes), instead


def test_cases_are_chosen_by_a_part_of_their_id():
    assert is_quick("test_deadlock.py", "test_ends", "nested bodies on six threads-auto")
    assert not is_quick("test_deadlock.py", "test_ends", "vmap, undrained-auto")
    assert not is_quick("test_soak.py", "test_memory_and_records_stay_bounded", "")
    assert is_quick("test_vmap.py", "test_anything", "")


def test_what_covers_single_values_is_small():
    rows = list(itertools.product(range(10), range(6), range(3)))
    assert len(covering({row: set(itertools.combinations(enumerate(row), 1)) for row in rows})) == 10


@pytest.mark.parametrize(("status", "all_tests", "said"), [(0, False, True), (1, False, False), (0, True, False)])
def test_only_a_selection_that_passed_is_called_one(status, all_tests, said):
    lines = []
    reporter = types.SimpleNamespace(line=lines.append)
    config = types.SimpleNamespace(option=types.SimpleNamespace(all=all_tests, rest=False))
    pytest_terminal_summary(reporter, status, config)
    assert any("A selection of the tests passed" in line for line in lines) is said
