"""A short form of the soak run, and a check of what it reports. `soak.py` is the long form."""

from __future__ import annotations

import pytest

import jaxpyop
from tests.memory import soak

pytestmark = pytest.mark.slow
STEADY = [soak.Window(speed=10_000, memory=200.0)] * soak.WINDOWS


@pytest.mark.parametrize(("make", "count"), [(soak.calls, 6000), (soak.gradients, 3000)], ids=["calls", "gradients"])
def test_memory_stays_bounded(make, count):
    with jaxpyop.config.override(max_records=100):
        assert list(soak.problems(list(soak.soak(make(), count)), slowest=0.0)) == []


BIG, SLOW = soak.Window(10_000, 220.0), soak.Window(5000, 200.0)
REPORTS = {
    "steady": (STEADY, []),
    "leak": ([*STEADY[:9], BIG], ["memory grew from 200.0 to 220.0 MiB"]),
    "slower": ([*STEADY[:5], *[SLOW] * 5], ["calls per CPU second fell from 10000 to 5000"]),
    "one slow window": ([*STEADY[:9], SLOW], []),  # that is the machine's
}


@pytest.mark.parametrize(("windows", "said"), REPORTS.values(), ids=REPORTS)
def test_what_the_soak_run_reports(windows, said):
    assert list(soak.problems(windows)) == said
