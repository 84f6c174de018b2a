"""How many chunks the elements of a batch go in: few, when it is known what an element takes."""

from __future__ import annotations

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop._host.pools.job import Job
from jaxpyop._host.pools.workers import Chunks
from tests.shared.util import numpy_function


def sizes(count, seconds, *, given=None, busy=2, shared=0, pace=None):
    """The sizes of the chunks of elements that take so many seconds each, and what is known afterwards."""
    chunks = Chunks(count, given, busy, shared, pace)
    found = []
    while chunks.left:
        found.append(chunks.next())
        chunks.learn(found[-1] * seconds, found[-1])
    assert sum(found) == count
    return found, chunks.pace


# How many elements, seconds for each, options, most chunks, most elements in one.
BATCHES = {
    "fast, nothing known": (5000, 8e-6, {}, 14, 1250),
    "fast, known": (5000, 8e-6, {"pace": 8e-6}, 11, 1250),
    "slow": (20, 1.0, {}, 20, 1),
    "slow, known to be fast": (5000, 0.1, {"pace": 8e-6}, 5000, 1250),
    "fast, known to be slow": (5000, 8e-6, {"pace": 1.0}, 14, 1250),
    "chunksize=": (5000, 8e-6, {"given": 100, "pace": 1.0}, 50, 100),
    "with a GB to take along": (5000, 1e-3, {"shared": 10**9}, 20, 1250),
    "one": (1, 1e-9, {"pace": 1e-9}, 1, 1),
}


@pytest.mark.parametrize(("count", "seconds", "options", "most", "largest"), BATCHES.values(), ids=BATCHES)
def test_as_many_chunks_as_needed(count, seconds, options, most, largest):
    found, pace = sizes(count, seconds, **options)
    assert len(found) <= most
    assert max(found) <= largest
    assert pace == pytest.approx(seconds)


def test_no_worker_is_left_with_much_at_the_end():
    found, _ = sizes(5000, 8e-6, busy=4, pace=8e-6)
    assert found[-1] <= 5000 / 4 / 4


class Here(concurrent.futures.Executor):
    """Workers that are no threads of ours: each task runs when it is submitted."""

    def __init__(self):
        self.tasks = 0

    def submit(self, func, /, *args, **kwargs):
        self.tasks += 1
        future = concurrent.futures.Future()
        future.set_result(func(*args, **kwargs))
        return future


def test_what_an_element_takes_is_known_from_the_batch_before(monkeypatch):
    run = Job.__call__
    monkeypatch.setattr(Job, "__call__", lambda job: run(job)._replace(seconds=8e-6 * job.count))
    pool, counts = Here(), []
    op = lambda x: numpy_function(np.negative, [x], jnp.float32, vmap_method="parallel", executor=pool)
    f, x = jax.jit(jax.vmap(op)), jnp.arange(5000.0)
    for _ in range(3):
        pool.tasks = 0
        np.testing.assert_array_equal(f(x), -x)
        counts.append(pool.tasks)
    assert counts[1] == counts[2] < counts[0]
