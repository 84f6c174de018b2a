"""The measurements: that every case runs. No time is tested."""

import jax
import numpy as np
import pytest

from tests.bench import files_entered
from tests.bench.cases import QUICK, SUBJECTS

COMPUTE_THE_SAME = ("float32[1] under jit", "the same, stateful", "the same, ordered", "log-Huber")


@pytest.mark.slow
@pytest.mark.parametrize("subject", QUICK)
def test_every_case_runs(subject):
    for make in SUBJECTS[subject]:
        group = make()
        wanted, *others = [jax.block_until_ready(case.run()) for case in group.cases]
        if group.title.startswith(COMPUTE_THE_SAME):
            for other in others:
                np.testing.assert_allclose(np.asarray(other), np.asarray(wanted), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(
    not files_entered.COUNTS, reason="sys.monitoring, which counts calls on all threads, came with Python 3.12"
)
def test_the_table_of_files_entered():
    found = {name.strip(): {code.co_name for code in codes} for name, codes, _ in files_entered.table()}
    assert found["together"] > found["its first run"] > set()
    assert all(found.values())
