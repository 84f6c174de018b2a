"""A short form of the soak run. `soak.py` is the long form."""

import pytest

import jaxpyop
from tests.memory import soak


@pytest.mark.slow
@pytest.mark.parametrize(("make", "count"), [(soak.calls, 6000), (soak.gradients, 3000)], ids=["calls", "gradients"])
def test_memory_stays_bounded(make, count):
    with jaxpyop.config.override(max_records=100):
        assert list(soak.problems(list(soak.soak(make(), count)), slowest=0.0)) == []
