"""The host: in which chunks the elements of a batch go, and what workers note."""

import os
import time

import numpy as np
import pytest

from jaxpyop._host.pools import engines, job
from jaxpyop._host.pools.shared import Notes, run_noting
from tests.batches.programs import InCaller, grid, parallel
from tests.shared.functions import numpy_function
from tests.shared.tables import named


class Workers(InCaller):
    """It runs tasks in turn, notes how many elements each had, and how many of them it had time for."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def run(self, task, *shared):
        outcome = task(*shared)
        self.sizes.append((len(task.numbers), outcome.done))
        return outcome


# How many elements, seconds for each, options of the workers, most chunks, most elements in one, most that ran in one.
BATCHES = {
    "fast": (5000, 0, {}, 60, 1250, 1250),
    "slow": (12, 0.11, {}, 12, 4, 1),
    "in between": (100, 0.02, {}, 40, 24, 8),
    "chunksize=": (5000, 0, {"chunksize": 100}, 50, 100, 100),
    "slow, chunksize=": (4, 0.11, {"chunksize": 2}, 2, 2, 2),
    "with a limit": (20, 0, {"timeout": 5}, 20, 1, 1),
}


@pytest.mark.parametrize(
    ("count", "seconds", "options", "most", "largest", "ran"), named(BATCHES, slow=["slow", "chunksize="])
)
def test_a_chunk_has_as_many_elements_as_a_worker_has_time_for(
    count, seconds, options, most, largest, ran, monkeypatch
):
    monkeypatch.setattr(engines.Engine, "can_repeat", True)
    monkeypatch.setattr(job, "_SECONDS", 0.1 if seconds else 100)
    pool = Workers()
    pool._max_workers = 2
    f = parallel(numpy_function, lambda x: (time.sleep(seconds), x * 2)[1], pool, output_shapes=(), **options)
    np.testing.assert_array_equal(f(grid(count)), 2 * grid(count))
    assert sum(done for _, done in pool.sizes) == count
    assert len(pool.sizes) <= most
    assert max(size for size, _ in pool.sizes) <= largest
    assert max(done for _, done in pool.sizes) <= ran


@pytest.mark.skipif(
    not Notes.works, reason="workers open the file of their notes by its path in /proc, which only Linux has"
)
def test_a_worker_notes_which_job_it_runs():
    notes = Notes()
    place, other = notes.new_place(), notes.new_place()
    look = lambda x: (x, notes.process_at(place), notes.process_at(other))
    assert run_noting(notes.path, place, look, 3) == (3, os.getpid(), 0)
    assert notes.process_at(place) == 0
    notes.close()
