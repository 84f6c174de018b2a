"""Programs that wait for good if a function that uses JAX finds no free thread.

Under load, with results that nobody waits for, nested, and from several threads.
"""

import concurrent.futures
import sys

import jaxpyop

import jax  # isort: skip
import jax.numpy as jnp
import numpy as np

from tests.shared import many_programs

F = jnp.float32
PROGRAMS = {}


def program(f):
    PROGRAMS[f.__name__] = f
    return f


def ones(n):
    return jnp.full((n, n), 1.0 / n)


def square(n):
    return {"output_shapes": (n, n)}


def on_threads(work, count=6):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))


def undrained(n, **options):
    f = jax.jit(lambda x: jaxpyop.py_function(lambda x: x @ ones(n), [x], F, **square(n), **options))
    results = [f(ones(n)) for _ in range(100)]
    for y in results[::25] + results[-1:]:
        np.testing.assert_allclose(y[0, :3], 1.0 / n, rtol=1e-3)
    jax.effects_barrier()


@program
def results_that_nobody_waits_for():
    undrained(500)
    undrained(500, stateful=True)
    undrained(500, ordered=True)


nested = jax.jit(lambda x: jaxpyop.py_function(lambda x: x @ ones(300) * 1.0, [x], F, **square(300)))
ON_SIX_THREADS = {
    "nested functions": lambda x: jaxpyop.py_function(lambda x: nested(x) @ ones(300), [x], F, **square(300)),
    "products around": lambda x: jaxpyop.py_function(lambda x: x @ ones(300), [x @ x], F, **square(300)),
    "a numpy_function between products": lambda x: (
        jaxpyop.numpy_function(lambda x: np.asarray(jnp.asarray(x) @ ones(300)), [x @ x], F) @ x
    ),
    "gradient": jax.grad(lambda x: jaxpyop.py_function(lambda x: (x @ ones(300)).sum() ** 2, [x], F, output_shapes=())),
}


@program
def on_six_threads():
    x = ones(300)
    for f in map(jax.jit, ON_SIX_THREADS.values()):
        f(x)
        on_threads(lambda k: [jax.block_until_ready(f(x)) for _ in range(8)])  # noqa: B023


@program
def a_vmap_that_nobody_waits_for():
    f = jax.jit(jax.vmap(lambda x: jaxpyop.py_function(lambda x: x @ ones(300), [x], F, **square(300))))
    jax.block_until_ready([f(jnp.stack([ones(300)] * 4)) for _ in range(20)])


@program
def ordered_calls_in_functions_of_programs_with_ordered_calls():
    seen = []
    log = lambda x: jaxpyop.py_func(lambda x: seen.append(float(x)), [x], None, ordered=True)
    inner = jax.jit(lambda x: (log(x), x)[1])
    for body in (lambda x: (log(x), x)[1], lambda x: np.asarray(inner(x))):
        op = lambda x, body=body: jaxpyop.numpy_function(body, [x], F, output_shapes=())
        before = lambda x, op=op: (log(x), op(x + 0.5))[1]
        after = lambda x, op=op: (log(op(x) + 0.5), x)[1]
        for f in map(jax.jit, (before, after)):
            seen.clear()
            for i in range(10):
                jax.block_until_ready(f(jnp.float32(i)))
                jax.effects_barrier()
            assert sorted(seen) == [i / 2 for i in range(20)], seen
        ordered = jax.jit(lambda x, body=body: jaxpyop.py_func(body, [x], F, output_shapes=(), ordered=True))
        jax.block_until_ready([ordered(jnp.float32(i)) for i in range(10)])
        jax.effects_barrier()


if __name__ == "__main__":
    jaxpyop._config.TRANSPORT = sys.argv[1]
    many_programs.main(PROGRAMS)
