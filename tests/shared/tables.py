"""Tables of cases for `pytest.mark.parametrize`, of which some are slow."""

import itertools

import pytest


def rows(names, fast):
    """The rows of a table, each a name or several, of which some are fast."""
    each = [(row, row if isinstance(row, tuple) else (row,)) for row in names]
    return [pytest.param(*values, marks=[] if row in fast else pytest.mark.slow) for row, values in each]


def in_turn(names, last, *, and_also=()):
    """Rows that have the values of the last column in turn, where all pairs would take long."""
    each = [(name if isinstance(name, tuple) else (name,)) for name in names]
    return list(dict.fromkeys([*((*row, value) for row, value in zip(each, itertools.cycle(last))), *and_also]))


def named(table, slow):
    """The values of a dict, with its keys as their ids, of which some are slow."""
    each = [(name, value if isinstance(value, tuple) else (value,)) for name, value in table.items()]
    return [pytest.param(*values, id=name, marks=[pytest.mark.slow] * (name in slow)) for name, values in each]
