"""What the tests of batches share: programs that vmap an op, and an executor without threads."""

import concurrent.futures as cf
import logging
import math
import multiprocessing
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.checks import run

F = jnp.float32
METHODS = ["sequential", "expand_dims", "broadcast_all", "parallel"]
# The methods that call the function once per element.
LOOPING = ["sequential", "parallel"]
# The methods that call it once with the whole batch.
BLOCKS = ["expand_dims", "broadcast_all"]


def grid(*shape, start=0.0):
    """The numbers from `start` on."""
    return jnp.asarray(np.arange(start, start + math.prod(shape), dtype=np.float32).reshape(shape))


def counted(f, *args):
    """The result of a program, and what the report says of its only op."""
    with jaxpyop.report() as report:
        out = jax.block_until_ready(f(*args))
    (row,) = report.rows()
    return out, row


def sent_to(pool, options):
    """The options of an op on a pool, whose `chunksize`, `retries` and `timeout` belong to `jaxpyop.Workers`."""
    of_workers = {name: options[name] for name in ("chunksize", "retries", "timeout") if name in options}
    rest = {name: value for name, value in options.items() if name not in of_workers}
    return {"executor": jaxpyop.Workers(pool, **of_workers) if of_workers else pool, **rest}


def parallel(api, body, executor=None, tout=F, static=(), **options):
    """A batch of an op, with inputs that are the same for all elements in front."""
    options = sent_to(executor, options)
    return jax.vmap(lambda x: api(body, [*static, x], tout, vmap_method="parallel", **options))


def assert_raises_at(index, kind, match, f, *args):
    """The error of a program has one note about an element, which is this one."""
    with pytest.raises(kind, match=match) as caught:
        run(f, *args)
    assert [note for note in caught.value.__notes__ if note.startswith("at batch")] == [f"at batch index {index}"]


# What vmaps an f(x, y) of two elements, and the shapes that go in.
VMAPS = {
    "both": (lambda f: jax.vmap(f), (3,), (3,)),
    "y unbatched": (lambda f: jax.vmap(f, (0, None)), (3,), ()),
    "x unbatched": (lambda f: jax.vmap(f, (None, 0)), (), (3,)),
    "last axis in, first out": (lambda f: jax.vmap(f, (2, -1)), (2, 4, 3), (2, 4, 3)),
    "nested, y unbatched outside": (lambda f: jax.vmap(jax.vmap(f), (0, None)), (4, 2), (2,)),
    "outer product": (lambda f: jax.vmap(jax.vmap(f, (None, 0)), (0, None)), (4,), (2,)),
    "y unbatched, out transposed": (lambda f: jax.vmap(jax.vmap(f, (0, None)), (0, None), out_axes=1), (4, 2), ()),
    "three": (lambda f: jax.vmap(jax.vmap(jax.vmap(f, (0, None)), (None, 0)), (0, 0)), (3, 2), (3, 4)),
    "size 1 in size 3": (lambda f: jax.vmap(jax.vmap(f)), (3, 1), (3, 1)),
    "size 0 in size 3": (lambda f: jax.vmap(jax.vmap(f)), (3, 0), (3, 0)),
    "elements of nothing": (lambda f: jax.vmap(f), (2, 0), (2, 0)),
}


# -------------------------------------------------------------------- executors


class InCaller(cf.Executor):
    """Not a pool at all: it runs each task at once where it is submitted, and keeps them, as some engines do.

    jaxpyop cannot know that, so it sends NumPy arrays and records nothing, as for a process.
    """

    def __init__(self):
        self.tasks = []

    def submit(self, fn, /, *args, **kwargs):
        self.tasks.append((fn, args, kwargs))
        future = cf.Future()
        try:
            future.set_result(self.run(fn, *args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future

    def run(self, fn, /, *args, **kwargs):
        return fn(*args, **kwargs)


class LikeAProcess(InCaller):
    """It runs a task as a process does: a copy of it, on a thread without the settings and contexts of the caller."""

    def run(self, fn, /, *args, **kwargs):
        fn, args, kwargs = pickle.loads(pickle.dumps((fn, args, kwargs)))
        with cf.ThreadPoolExecutor(1) as pool:
            return pickle.loads(pickle.dumps(pool.submit(fn, *args, **kwargs).result()))


# ----------------------------------------------------------------- real engines, for slow tests


def processes(count, initializer=None):
    """Processes that a server starts, which has imported the package: by "spawn", each takes a second for that."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jaxpyop"])
    return cf.ProcessPoolExecutor(count, context, initializer)


def cluster_of(workers):
    distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    return distributed.LocalCluster(n_workers=workers, processes=True, **options)


def start_ray(workers):
    """Ray gives its workers the last place on a busy machine, unless told otherwise: their start would take minutes."""
    import ray

    options = {"include_dashboard": False, "log_to_driver": False, "_system_config": {"worker_niceness": 0}}
    ray.init(num_cpus=workers, **options)
    return ray
