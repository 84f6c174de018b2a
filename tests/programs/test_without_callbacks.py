"""A backend without callbacks, as those of most plugins: see standin_programs.py."""

import functools
import json

import pytest

from tests.programs.standin_programs import PROGRAMS, library
from tests.shared.processes import run_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        library() is None,
        reason="no second PJRT client is here: pip install '.[standin]' in a checkout (Linux, x86-64)",
    ),
]


@functools.cache
def outcomes():
    """What became of each program, run together in one process."""
    done = run_python("from tests.programs.standin_programs import main; main()", JAX_PLATFORMS="")
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_backend_without_callbacks(name):
    assert outcomes()[name] == ""
