"""The folder of a sweep: what is damaged in it is computed again, and several processes share it."""

import collections
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import jaxpyop
from jaxpyop import map_batches
from tests.shared.processes import clean_environment, run_python
from tests.sweeps.programs import BASE, F, X, apart, half_done, on_host, same

fcntl = pytest.importorskip("fcntl", reason="checkpoint= needs POSIX locks")

# ----------------------------------------------------------------------- damage


@pytest.mark.slow
def test_a_block_that_is_damaged(tmp_path):
    call = lambda: map_batches(BASE, X, batch_size=2, checkpoint=tmp_path)
    half_done(tmp_path, BASE, X, after=2)
    block = tmp_path / "0.npz"
    whole = block.read_bytes()
    at = whole.index(np.asarray(jax.vmap(BASE)(X[:2])).tobytes())
    for data in (whole[:-1], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole[:20], b""):
        block.write_bytes(data)
        with pytest.raises(ValueError, match=r"0.npz in the folder .* is damaged; delete it"):
            call()
    block.unlink()
    np.testing.assert_array_equal(call(), jax.vmap(BASE)(X))


@pytest.mark.slow
def test_one_wrong_byte_anywhere_in_a_block(tmp_path):
    """It is found, or it does not matter to ZIP."""
    half_done(tmp_path, BASE, X, after=2)
    whole = (tmp_path / "0.npz").read_bytes()
    for k in range(0, len(whole), 13):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        (tmp_path / "copy").mkdir()
        for name in ("description.json", "1.npz"):
            shutil.copy(tmp_path / name, tmp_path / "copy")
        (tmp_path / "copy" / "0.npz").write_bytes(whole[:k] + bytes([whole[k] ^ 64]) + whole[k + 1 :])
        try:
            found = map_batches(BASE, X, batch_size=2, checkpoint=tmp_path / "copy")
        except ValueError as error:
            assert "is damaged" in str(error) or "is that of another call" in str(error)  # noqa: PT017
        else:
            np.testing.assert_array_equal(found, jax.vmap(BASE)(X))


def test_finished_blocks_can_be_read_while_the_sweep_runs(tmp_path):
    half_done(tmp_path, lambda x: (x, {"a": x * 2}), X, after=2)
    with np.load(tmp_path / "1.npz") as block:
        np.testing.assert_array_equal(block["0"], X[2:4])
        np.testing.assert_array_equal(block["1"], 2 * X[2:4])


@pytest.mark.parametrize("at", [-1, 3], ids=["in block 3", "in the header"])
def test_a_damaged_block_of_complete_results_is_computed_again(at, tmp_path):
    runs = []
    f = on_host(lambda x: runs.append(float(x)) or x)
    call = lambda: map_batches(f, iter(X), batch_size=2, checkpoint=tmp_path, version="1")
    call()
    runs.clear()
    data = bytearray((tmp_path / "0.npy").read_bytes())
    data[at] ^= 1
    (tmp_path / "0.npy").write_bytes(data)
    with pytest.warns(
        RuntimeWarning, match=f"block {3 if at < 0 else 0} of the results .* is damaged, and is computed"
    ):
        np.testing.assert_array_equal(call(), X)
    assert runs == ([6.0] if at < 0 else [0.0, 1.0])
    np.testing.assert_array_equal(call(), X)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.npy", "complete.json", "description.json"]


def test_a_file_of_complete_results_that_is_missing(tmp_path):
    call = lambda: map_batches(lambda x: (x, BASE(x)), X, batch_size=2, checkpoint=tmp_path)
    call()
    (tmp_path / "0.npy").unlink()
    with pytest.warns(RuntimeWarning, match="block 0 of the results .* so are 3 more"):
        np.testing.assert_array_equal(call()[1], jax.vmap(BASE)(X))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["description.json", "complete.json"])
def test_a_complete_folder_that_is_damaged(name, tmp_path):
    call = lambda: map_batches(BASE, X, batch_size=2, checkpoint=tmp_path)
    call()
    whole = (tmp_path / name).read_bytes()
    for data in (whole[:-3], b"", whole[:-1] + bytes([whole[-1] ^ 1]), whole.replace(b'"elements', b'"Elements')):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=r"is damaged; delete the folder|another call: elements: None there"):
            call()


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"has files of something else: thesis.tex"):
        map_batches(BASE, X, batch_size=2, checkpoint=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_complete_folder_may_be_read_only(tmp_path):
    expected = map_batches(BASE, X, batch_size=2, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="read-only"):
        expected[0] = 5
    tmp_path.chmod(0o500)
    try:
        same(map_batches(BASE, X, batch_size=2, checkpoint=tmp_path), np.asarray(expected))
    finally:
        tmp_path.chmod(0o700)


# ----------------------------------------------------------------------- several processes


@pytest.fixture
def begun(tmp_path):
    """Starts sweeps in processes of their own, which begin when they get a line."""
    started = []

    def start(count, batch_size, seconds, folder="sweep", log="log", **env):
        arguments = [str(tmp_path / folder), str(tmp_path / log), *map(str, (count, batch_size, seconds))]
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.sweeps.programs", "sweep", *arguments],
            env=clean_environment() | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def go(*processes):
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def ended(process):
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (0, "right\n"), err


def runs_of(log):
    return sorted(map(int, log.read_text().split()))


@pytest.mark.slow
def test_killed_three_times_and_ended_by_two_processes_only_the_blocks_that_ran_are_computed_again(begun, tmp_path):
    random = np.random.default_rng(1)
    log = tmp_path / "log"
    for already in (0, 50, 100):
        process = begun(200, 5, 0.01)
        go(process)
        until = already + random.integers(1, 40)
        while not log.exists() or len(runs_of(log)) < until:
            assert process.poll() is None
        process.kill()
        process.wait()
    earlier = collections.Counter(runs_of(log))
    last = [begun(200, 5, 0.01), begun(200, 5, 0.01)]
    go(*last)
    for process in last:
        ended(process)
    runs = collections.Counter(runs_of(log))
    assert sorted(runs) == list(range(200))
    assert runs.total() <= 200 + 3 * 5
    assert set((runs - earlier).values()) == {1}  # the two divide what is left
    assert not list((tmp_path / "sweep").glob("*.claim"))


def test_a_block_that_another_process_finishes_just_before_it_is_claimed(tmp_path, monkeypatch):
    runs, locks, flock = [], [], fcntl.flock

    def finish_it_first(*arguments):
        locks.append(arguments)
        if len(locks) == 1:  # the first block
            np.testing.assert_array_equal(apart(call), X)
        flock(*arguments)

    call = lambda: map_batches(
        on_host(lambda x: runs.append(x) or x), X, batch_size=2, checkpoint=tmp_path, version="1"
    )
    monkeypatch.setattr(fcntl, "flock", finish_it_first)
    np.testing.assert_array_equal(call(), X)
    assert len(runs) == len(X)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.npy", "complete.json", "description.json"]


@pytest.mark.slow
def test_another_process_computes_the_block_of_a_process_that_is_killed(begun, tmp_path):
    one, other = begun(20, 10, 0.01, HOLD="1"), begun(20, 10, 0.01)
    go(one)
    while not (tmp_path / "log").exists():
        pass
    go(other)
    while "10" not in (tmp_path / "log").read_text().split():
        pass
    one.kill()
    ended(other)
    runs = runs_of(tmp_path / "log")
    assert runs.count(0) == 2
    assert runs[-10:] == list(range(10, 20))


@pytest.mark.slow
def test_a_forked_child_does_not_keep_the_locks_of_a_process_that_is_killed(begun, tmp_path):
    run_python(
        f"""
        import os, signal, sys, time, warnings
        import numpy as np, jax.numpy as jnp, jaxpyop
        def body(x):
            warnings.simplefilter("ignore")
            if os.fork() == 0:
                time.sleep(1)
                os.closerange(0, 3)
                time.sleep(150)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        f = lambda x: jaxpyop.py_func(body, [x], jnp.float32)
        jaxpyop.map_batches(f, np.arange(3.0), batch_size=1, checkpoint={str(tmp_path / "a")!r}, version="1")
        """.replace("\n        ", "\n"),
        check=False,
    )
    assert (tmp_path / "a" / "0.claim").exists()
    f = lambda x: jaxpyop.py_func(lambda x: x, [x], F, name="body")
    same(map_batches(f, np.arange(3.0), batch_size=1, checkpoint=tmp_path / "a", version="1"), np.arange(3, dtype=F))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the memory of a process in /proc")
def test_a_million_elements_in_flat_memory(tmp_path):
    run_python(f"from tests.sweeps import programs; programs.million({str(tmp_path)!r})")
