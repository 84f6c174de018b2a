"""The host: how many chunks the elements of a batch go in, few when their time is known; time limits of functions."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop._host.pools.job import Job
from jaxpyop._host.pools.sending import Chunks
from jaxpyop._host.pools.shared import Notes
from tests.batches.programs import InCaller
from tests.shared.functions import numpy_function
from tests.shared.processes import run_python


def sizes(count, seconds, given=None, busy=2, way=1e-3, pace=None):
    """The sizes of the chunks of elements that take so many seconds each, and what is known afterwards."""
    chunks, found = Chunks(count, given, pace), []
    while chunks.left:
        found.append(chunks.next(busy))
        inside = found[-1] * seconds
        # Workers that start take long, and a worker may be busy.
        chunks.learn(found[-1], inside, inside + way + (3.0 if len(found) == 1 else inside * (len(found) % 2)))
    assert sum(found) == count
    return found, chunks.pace


# How many elements, seconds for each, options, most chunks, most elements in one.
BATCHES = {
    "fast, nothing known": (5000, 8e-6, {}, 16, 1250),
    "fast, known": (5000, 8e-6, {"pace": (8e-6, 1e-3)}, 11, 1250),
    "slow": (20, 1.0, {}, 20, 1),
    "slow, known to be fast": (5000, 0.1, {"pace": (8e-6, 1e-3)}, 5000, 1250),
    "fast, known to be slow": (5000, 8e-6, {"pace": (1.0, 1e-3)}, 16, 1250),
    "chunksize=": (5000, 8e-6, {"given": 100, "pace": (1.0, 1e-3)}, 50, 100),
    "a short way": (5000, 1e-3, {}, 520, 64),
    "a long way": (5000, 1e-3, {"way": 0.02}, 50, 512),
    "a way that takes longer than all of it, known": (5000, 8e-6, {"way": 0.1, "pace": (8e-6, 0.1)}, 2, 2500),
    "a long way, known": (5000, 1e-3, {"way": 0.02, "pace": (1e-3, 0.02)}, 45, 200),
}


@pytest.mark.parametrize(("count", "seconds", "options", "most", "largest"), BATCHES.values(), ids=BATCHES)
def test_as_many_chunks_as_needed(count, seconds, options, most, largest):
    found, pace = sizes(count, seconds, **options)
    assert len(found) <= most
    assert max(found) <= largest
    assert pace == pytest.approx((seconds, options.get("way", 1e-3)))


def test_the_copy_of_a_shared_input_is_no_time_of_the_function(monkeypatch):
    """Else an element would seem to take as long as the copy, and go alone."""
    seconds, run = [], Job.__call__
    monkeypatch.setattr(Job, "__call__", lambda *job: seconds.append((found := run(*job)).seconds) or found)
    op = lambda x, y: numpy_function(lambda x, y: x, [x, y], jnp.float32, output_shapes=(), executor=InCaller())
    jax.vmap(op, (0, None))(jnp.arange(4.0), np.ones(2**22, np.float32))
    assert min(seconds) < 1e-3


@pytest.mark.slow
def test_how_long_an_element_takes_is_known_from_the_batch_before(monkeypatch):
    run = Job.__call__
    monkeypatch.setattr(
        Job, "__call__", lambda job, *shared: run(job, *shared)._replace(seconds=8e-6 * len(job.numbers))
    )
    pool, counts = InCaller(), []
    op = lambda x: numpy_function(np.negative, [x], jnp.float32, vmap_method="parallel", executor=pool)
    f, x = jax.jit(jax.vmap(op)), jnp.arange(5000.0)
    for _ in range(3):
        pool.tasks.clear()
        np.testing.assert_array_equal(f(x), -x)
        counts.append(len(pool.tasks))
    assert max(counts[1:]) < counts[0]


def test_a_worker_notes_what_it_runs_on_the_same_machine_alone(tmp_path):
    notes = Notes()
    note, other = notes.new(), notes.new()
    with note.opened() as file:
        note.write(file, 3, 10)
        running = notes.read(note)
        assert (running.process, running.element) == (os.getpid(), 3)
        assert running.deadline > time.monotonic() + 5
        assert notes.read(other) is None
        note.write(file, None)
        assert notes.read(note) is None
    (tmp_path / "file").write_bytes(bytes(100))
    for path in (tmp_path / "file", tmp_path / "none", "/dev/null"):
        assert note._replace(path=str(path)).opened() is None
    notes.close()
    assert note.opened() is None


TWO_FUNCTIONS = """
import threading, time
from jaxpyop._host.pools.job import _ending_after
from tests.batches import bodies
def run(seconds, function, *args):
    with _ending_after(seconds):
        function(*args)
short = threading.Thread(target=run, args=(1, time.sleep, 0.1))
hold = lambda: (short.start(), short.join(), bodies.hold_the_lock(5))
threading.Thread(target=run, args=(0.5, hold)).start()
"""


@pytest.mark.slow
def test_a_function_in_time_leaves_the_time_limit_of_another_one():
    """In a worker of Dask's with two threads: one holds Python's lock, so that no other thread can end it."""
    assert "bodies.py" in run_python(TWO_FUNCTIONS, check=False, timeout=60).stderr
