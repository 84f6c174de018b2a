"""A backend without callbacks, as those of most plugins: see standin_programs.py."""

import pytest

from tests.programs.standin_programs import library
from tests.shared.many_programs import run_module

MISSING = "no second PJRT client is here: pip install '.[standin]' in a checkout (Linux, x86-64)"


@pytest.mark.slow
@pytest.mark.skipif(library() is None, reason=MISSING)
def test_on_a_backend_without_callbacks():
    run_module("tests.programs.standin_programs", JAX_PLATFORMS="")
