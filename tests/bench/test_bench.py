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
def test_the_table_of_files_entered():
    found = {name.strip(): {code.co_name for code in codes} for name, codes, _ in files_entered.table()}
    assert found["together"] > found["its first run"] > set()
    assert all(found.values())
