"""Random Python functions: traced mode and "auto" give what Python gives, or refuse. They never differ, and never hang.

The long form (JAXPYOP_TEST_LONG=1) tries 20,000 functions, JAXPYOP_TEST_EXAMPLES any other number.
"""

from __future__ import annotations

import os

import pytest

from tests.shared.equal_or_refused import outcomes
from tests.shared.python_programs import program

DEFAULT = 20_000 if os.environ.get("JAXPYOP_TEST_LONG") else 300
COUNT = int(os.environ.get("JAXPYOP_TEST_EXAMPLES", DEFAULT))
# A test tries this many functions.
CHUNK = 10


# Python 3.12 says that `~` of a bool will be an error one day.
@pytest.mark.filterwarnings("ignore:Bitwise inversion")
@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_random_functions(first):
    found = {seed: outcomes(program(seed), seed) for seed in range(first, min(first + CHUNK, COUNT))}
    allowed = {"traced": ("equal", "refused"), "auto": ("equal",)}
    wrong = {k: v for k, v in found.items() if any(v.get(mode, "equal") not in fine for mode, fine in allowed.items())}
    assert wrong == {}
    assert sum(v.get("traced") == "equal" for v in found.values()) >= CHUNK // 10
