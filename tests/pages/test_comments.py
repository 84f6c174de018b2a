"""Comments are sentences above the code. A few may stand behind it; `python -m tests.shared.comments` counts them."""

import pathlib

import pytest

import jaxpyop
from tests.shared.comments import count, count_all

LIMIT = 0.25


def test_few_comments_stand_behind_code():
    _, behind, alone = count_all(pathlib.Path(jaxpyop.__file__).parent)
    assert behind <= LIMIT * (behind + alone)


@pytest.mark.parametrize(
    ("code", "counts"),
    [
        ("x = 1\n# Why.\ny = 2\n", (2, 0, 1)),
        ("x = 1  # which is one\n", (1, 1, 0)),
        ("import x  # noqa: F401\n", (1, 0, 0)),
        ('"""A module."""\n\n\ndef f():\n    """A function."""\n    return (1,\n            2)\n', (3, 0, 0)),
    ],
)
def test_the_count_itself(code, counts):
    assert count(code) == counts
