"""What must not grow with the number of training steps, counted. `training.py` is the long form, which takes times."""

import dataclasses
import gc
import statistics
import time

import jax
import pytest

import jaxpyop
from jaxpyop._op import RECORDS
from tests.trust import training


def entries():
    """How many entries JAX's caches of jitted functions have, and how many objects there are."""
    gc.unfreeze()  # see conftest.py: what is frozen is not listed
    gc.collect()
    objects = gc.get_objects()
    functions = [o for o in objects if type(o).__name__ == "PjitFunction"]
    return sum(f._cache_size() for f in functions), len(objects)


WAYS = [
    pytest.param(loss, jit, id=f"{name}-{'jit' if jit else 'direct'}", marks=[pytest.mark.long] * (i % 2 == jit))
    for i, (name, loss) in enumerate(training.LOSSES.items())
    for jit in (True, False)
]


@pytest.mark.parametrize(("loss", "jit"), WAYS)
def test_nothing_grows(loss, jit):
    step = training.stepping(loss, jit)
    compiled = []
    listen = lambda name, *_, **__: compiled.append(name) if "/compile" in name or "trace" in name else None
    RECORDS.clear()
    for _ in range(40):
        step(training.W)
    cached, objects = entries()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for _ in range(100):
            step(training.W)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert [name for name in compiled if jit or "compile" in name] == []
    assert entries()[0] <= cached
    RECORDS.make_room()
    assert RECORDS.stats()["count"] <= 256
    assert RECORDS.stats()["nbytes"] <= 8 * 2**20
    RECORDS.clear()
    assert entries()[1] - objects < 100
    gc.freeze()


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "direct"])
def test_nothing_grows_with_four_threads(jit, capsys):
    step = training.stepping(training.LOSSES["classifier"], jit)
    counts = []
    for _ in range(3):
        training.run(step, 200, 4)
        RECORDS.clear()
        counts.append(entries())
    assert counts[2][0] <= counts[1][0]
    assert counts[2][1] - counts[1][1] < 100
    gc.freeze()
    capsys.readouterr()


STEADY = training.Run([100.0] * 20_000, [50.0] * 1000, [200.0] * training.TENTHS, (5.0, 5.5))


def changed(**values):
    return dataclasses.replace(STEADY, **values)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (STEADY, []),
        (changed(times=[100.0] * 19_000 + [120.0] * 1000), ["a step took 100 us and takes 120"]),
        (changed(times=([100.0] * 9 + [900.0]) * 1000 + ([900.0] * 9 + [100.0]) * 1000), []),
        (changed(times=[100.0] * 19_000 + [120.0] * 1000, paces=[50.0] * 950 + [60.0] * 50), []),
        (changed(paces=[60.0] * 60 + [50.0] * 940), ["a step took 83 us and takes 100"]),
        (changed(memory=[200.0] * 9 + [206.0]), ["memory grew by 6.0 MiB in the second half"]),
        (changed(memory=[100.0] + [200.0] * 9), []),
        (changed(plain=(5.0, 6.1)), ["jnp.abs took 5.0 us and takes 6.1"]),
    ],
    ids=["steady", "slower", "others", "slower machine", "faster machine", "memory", "warming up", "plain"],
)
def test_what_a_long_run_reports(run, said):
    assert list(training.problems(run)) == said


@pytest.mark.parametrize("threads", [1, 4])
def test_the_time_is_the_processs_and_that_of_one_step(threads, capsys):
    """A body under `jit` runs on a thread of XLA's."""
    busy = 5e-4

    def work(x):
        end = time.thread_time() + busy
        while time.thread_time() < end:
            pass
        return x

    step = jax.jit(lambda w: jaxpyop.numpy_function(work, [w], w.dtype))
    run = training.run(step, 200, threads)
    assert len(run.times) == 200
    assert len(run.paces) == 200 // training.PACED
    assert len(run.memory) == training.TENTHS
    assert busy * 1e6 <= statistics.median(run.times) < 5 * busy * 1e6
    capsys.readouterr()
