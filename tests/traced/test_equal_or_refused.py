"""What Python gives is what is traced, or there is an error: never a different value, effect or gradient."""

from __future__ import annotations

import functools

import pytest

from tests.shared.equal_cases import CASES, EQUAL
from tests.shared.equal_or_refused import Case, no_hang, outcome


def _case(name):
    make, points, argnums = CASES[name]
    made = {}

    def reset():
        found = make()
        made["function"], made["state"] = found if isinstance(found, tuple) else (found, lambda: None)

    reset()
    return Case(lambda: made["function"], points, argnums, reset, lambda: made["state"]())


# Python 3.12 says that `~` of a bool will be an error one day.
pytestmark = pytest.mark.filterwarnings("ignore:Bitwise inversion")


@functools.cache
def wanted(name):
    return _case(name).eager()


@pytest.mark.parametrize("mode", ["traced", "auto"])
@pytest.mark.parametrize("name", CASES)
def test_equal_or_refused(name, mode):
    with no_hang():
        found = outcome(_case(name), mode, wanted(name))
    assert found in (("equal",) if mode == "auto" or name in EQUAL else ("equal", "refused"))
