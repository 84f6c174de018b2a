"""Batches on pools of processes and clusters, beside the same work by the engine's own means in 16 pieces.

An engine that is not installed is named, and left out.
"""

import concurrent.futures
import functools
import importlib.util
import multiprocessing
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from tests.bench.cases.case import Group, compare

_WORKERS = 4
_PIECES = 16


def nothing(x):
    return x


def one_millisecond(x):
    time.sleep(0.001)
    return x


def entry(x, table):
    return x + table[int(x)]


def piece(body, part, *shared):
    """What an engine's own map runs in place of a chunk of ours."""
    return np.stack([body(x, *shared) for x in part])


# ------------------------------------------------- engines: the executor, and its own map of pieces


def processes():
    pool = concurrent.futures.ProcessPoolExecutor(_WORKERS, mp_context=multiprocessing.get_context("spawn"))
    return pool, lambda body, parts, *shared: pool.map(functools.partial(_with, body, shared), parts)


def loky():
    import loky

    pool = loky.get_reusable_executor(_WORKERS, timeout=None)
    return pool, lambda body, parts, *shared: pool.map(functools.partial(_with, body, shared), parts)


def _with(body, shared, part):
    return piece(body, part, *shared)


@functools.cache
def _dask():
    from distributed import Client, LocalCluster

    return Client(LocalCluster(n_workers=_WORKERS, threads_per_worker=1, dashboard_address=":0"))


def dask():
    client = _dask()

    def own(body, parts, *shared):
        shared = [client.scatter(array, broadcast=True, hash=False) for array in shared]
        return client.gather([client.submit(piece, body, part, *shared, pure=False) for part in parts])

    return client, own


def ray():
    import ray

    if not ray.is_initialized():
        ray.init(num_cpus=_WORKERS, include_dashboard=False, log_to_driver=False)
    task = ray.remote(piece)

    def own(body, parts, *shared):
        shared = [ray.put(array) for array in shared]
        return ray.get([task.remote(body, part, *shared) for part in parts])

    return ray, own


ENGINES = {
    "processes": ("concurrent", processes),
    "loky": ("loky", loky),
    "dask": ("distributed", dask),
    "ray": ("ray", ray),
}


def _group(name, what, body, count, *shared):
    module, make = ENGINES[name]
    title = f"{what} on {_WORKERS} workers of {name}"
    if importlib.util.find_spec(module) is None:
        print(f"{module} is not installed: left out: {title}", file=sys.stderr)
        return Group(title, [])
    executor, own = make()
    x = np.arange(count, dtype=np.float32)
    options = {"vmap_method": "parallel", "executor": executor, "output_shapes": (), "copy": False}
    op = lambda x, *shared: jaxpyop.numpy_function(body, [x, *shared], jnp.float32, **options)
    programs = {
        "parallel": jax.jit(jax.vmap(op, (0, *(None for _ in shared)))),
        "its own map": lambda x, *shared: np.concatenate(list(own(body, np.array_split(x, _PIECES), *shared))),
    }
    return compare(title, programs, x, *shared, calls=1, samples=7)


_WORK = [
    ("10,000 elements of 0 ms", nothing, 10_000),
    ("10,000 elements of 1 ms", one_millisecond, 10_000),
    ("200 elements that share 20 MB", entry, 200, np.arange(5e6, dtype=np.float32)),
]

GROUPS = [functools.partial(_group, engine, *work) for engine in ENGINES for work in _WORK]
