"""The measurements: that every case runs. No time is tested."""

import jax
import pytest

from tests.bench import files_entered
from tests.bench.cases import QUICK, SUBJECTS


@pytest.mark.slow
@pytest.mark.parametrize("subject", QUICK)
def test_every_case_runs(subject):
    for make in SUBJECTS[subject]:
        for case in make().cases:
            jax.block_until_ready(case.run())


@pytest.mark.slow
@pytest.mark.skipif(
    not files_entered.COUNTS, reason="sys.monitoring, which counts calls on all threads, came with Python 3.12"
)
def test_the_files_that_calls_enter():
    for name, found, limits in files_entered.table():
        counts = len({code.co_filename for code in found}), files_entered.changes_of_file(found)
        assert 0 < counts[0] <= limits[0], name
        assert counts[1] <= limits[1], name
