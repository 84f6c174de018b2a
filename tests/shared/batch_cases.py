"""What vmaps and differentiates the ops of test_batches.py, test_parallel.py and test_pools.py."""

from __future__ import annotations

import concurrent.futures as cf
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

F = jnp.float32
METHODS = ["sequential", "expand_dims", "broadcast_all", "parallel"]
LOOPING = ["sequential", "parallel"]


def grid(*shape, start=0.0):
    return jnp.asarray(np.arange(start, start + math.prod(shape), dtype=np.float32).reshape(shape))


# What vmaps an f(x, y) of two elements, and the shapes that go in.
VMAPS = {
    "both": (lambda f: jax.vmap(f), (3,), (3,)),
    "y unbatched": (lambda f: jax.vmap(f, (0, None)), (3,), ()),
    "x unbatched": (lambda f: jax.vmap(f, (None, 0)), (), (3,)),
    "arrays, last axis in, first out": (lambda f: jax.vmap(f, (1, -1)), (2, 3), (2, 3)),
    "arrays, first axis in, last out": (lambda f: jax.vmap(f, (0, None), out_axes=-1), (3, 2), (2,)),
    "outer product": (lambda f: jax.vmap(jax.vmap(f, (None, 0)), (0, None)), (3,), (2,)),
    "nested, out transposed": (lambda f: jax.vmap(jax.vmap(f, (0, None)), (0, None), out_axes=1), (3, 2), ()),
    "size 1": (lambda f: jax.vmap(f), (1,), (1,)),
    "size 1 in size 3": (lambda f: jax.vmap(jax.vmap(f)), (3, 1), (3, 1)),
    "size 0": (lambda f: jax.vmap(f, (0, None)), (0,), ()),
    "size 0 in size 3": (lambda f: jax.vmap(jax.vmap(f), (0, 0)), (3, 0), (3, 0)),
}


def plain(x, w):
    return jnp.sin(x) * w**2


GRADIENTS = {
    "vmap of grad": lambda f: jax.vmap(jax.grad(f, (0, 1))),
    "vmap of grad, w unbatched": lambda f: lambda x, w: jax.vmap(jax.grad(f, (0, 1)), (0, None))(x, w[0]),
    "grad of vmap": lambda f: jax.grad(lambda x, w: jax.vmap(f)(x, w).sum(), (0, 1)),
    "grad of vmap, w unbatched": lambda f: jax.grad(lambda x, w: jax.vmap(f, (0, None))(x, w[0]).sum(), (0, 1)),
    "vmap of grad of vmap": lambda f: jax.vmap(
        jax.grad(lambda x, w: jax.vmap(f, (None, 0))(x, jnp.stack([w, -w])).sum())
    ),
    "grad of nested vmap": lambda f: jax.grad(
        lambda x, w: jax.vmap(jax.vmap(f, (None, 0)), (0, None))(x, w).sum(), (0, 1)
    ),
    "jacrev": lambda f: jax.jacrev(jax.vmap(f), (0, 1)),
    "value_and_grad": lambda f: jax.vmap(jax.value_and_grad(f)),
    "axis size 0": lambda f: lambda x, w: jax.vmap(jax.grad(f))(x[:0], w[:0]),
    "axis size 1": lambda f: lambda x, w: jax.vmap(jax.grad(f))(x[:1], w[:1]),
    "grad of scan of vmap": lambda f: jax.grad(
        lambda x, w: lax.scan(lambda c, v: (jax.vmap(f, (0, None))(c, v), None), x, w)[0].sum(), (0, 1)
    ),
    "vmap of grad of scan": lambda f: jax.vmap(
        jax.grad(lambda x, w: lax.scan(lambda c, _: (f(c, w), None), x, None, length=2)[0], (0, 1))
    ),
}

FORWARD_AND_HIGHER = {
    "jacfwd": lambda f: jax.jacfwd(jax.vmap(f), (0, 1)),
    "jvp of vmap": lambda f: lambda x, w: jax.jvp(jax.vmap(f), (x, w), (w, x)),
    "vmap of jvp": lambda f: jax.vmap(lambda x, w: jax.jvp(f, (x, w), (w, x))),
    "vmap of grad of grad": lambda f: jax.vmap(jax.grad(jax.grad(f), 1)),
    "hessian": lambda f: jax.hessian(lambda x, w: jax.vmap(f)(x, w).sum(), (0, 1)),
    "grad of vmap of grad": lambda f: jax.grad(lambda x, w: jax.vmap(jax.grad(f))(x, w).sum(), (0, 1)),
}


def assert_same_gradients(program, op, run):
    x, w = jnp.array([0.5, -1.0, 2.0]), jnp.array([1.0, 2.0, -0.5])
    same = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
    jax.tree.map(same, run(program(op), x, w), program(plain)(x, w))


def parallel(api, body, inp, tout=F, **options):
    return api(body, inp, tout, vmap_method="parallel", **options)


class InCaller(cf.Executor):
    """Not a pool at all."""

    submitted = 0

    def submit(self, fn, /, *args, **kwargs):
        self.submitted += 1
        future = cf.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future
