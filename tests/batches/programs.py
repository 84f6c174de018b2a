"""What the tests of batches share: programs that vmap an op, and an executor without threads."""

import concurrent.futures as cf
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop

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


# What vmaps an f(x, y) of two elements, and the shapes that go in.
VMAPS = {
    "both": (lambda f: jax.vmap(f), (3,), (3,)),
    "y unbatched": (lambda f: jax.vmap(f, (0, None)), (3,), ()),
    "x unbatched": (lambda f: jax.vmap(f, (None, 0)), (), (3,)),
    "last axis in, first out": (lambda f: jax.vmap(f, (1, -1)), (2, 3), (2, 3)),
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
