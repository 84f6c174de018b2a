"""Programs that wait for good if a function that uses JAX finds no free thread.

Under load, with results that nobody waits for, nested, and from several threads.
"""

from __future__ import annotations

import sys
import threading

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
    failed = []

    def run(k):
        try:
            work(k)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    if failed:
        raise failed[0]


def many_times(f, x, count=8):
    f(x)
    on_threads(lambda k: [jax.block_until_ready(f(x)) for _ in range(count)])


def undrained(n, **options):
    f = jax.jit(lambda x: jaxpyop.py_function(lambda x: x @ ones(n), [x], F, **square(n), **options))
    results = [f(ones(n)) for _ in range(100)]
    for y in results[::25] + results[-1:]:
        np.testing.assert_allclose(y[0, :3], 1.0 / n, rtol=1e-3)
    jax.effects_barrier()


@program
def results_that_nobody_waits_for():
    undrained(500)
    undrained(1000)
    undrained(500, stateful=True)
    undrained(500, ordered=True)


@program
def nested_functions_on_six_threads():
    inner = lambda x: (x @ ones(300)) * 1.0
    nested = jax.jit(lambda x: jaxpyop.py_function(inner, [x], F, **square(300)))
    many_times(
        jax.jit(lambda x: jaxpyop.py_function(lambda x: nested(x) @ ones(300), [x], F, **square(300))), ones(300)
    )


@program
def a_product_before_the_op_and_in_it_on_six_threads():
    many_times(jax.jit(lambda x: jaxpyop.py_function(lambda x: x @ ones(600), [x @ x], F, **square(600))), ones(600))


@program
def a_numpy_function_between_products_on_six_threads():
    body = lambda x: np.asarray(jnp.asarray(x) @ ones(600))
    many_times(jax.jit(lambda x: jaxpyop.numpy_function(body, [x @ x], F) @ x), ones(600))


@program
def gradients_on_six_threads():
    loss = lambda x: jaxpyop.py_function(lambda x: jnp.sum((x @ ones(300)) ** 2), [x], F, output_shapes=())
    many_times(jax.jit(jax.grad(loss)), ones(300))


@program
def a_vmap_that_nobody_waits_for():
    f = jax.jit(jax.vmap(lambda x: jaxpyop.py_function(lambda x: x @ ones(300), [x], F, **square(300))))
    jax.block_until_ready([f(jnp.stack([ones(300)] * 4)) for _ in range(20)])


@program
def a_log_in_a_while_loop():
    seen = []

    def step(s):
        i, x = s
        jaxpyop.py_function(lambda i, x: seen.append((int(i), float(jnp.sum(x @ x)))), [i, x], None)
        return i + 1, x @ x

    f = jax.jit(lambda x: jax.lax.while_loop(lambda s: s[0] < 50, step, (0, x)))
    jax.block_until_ready([f(ones(200)) for _ in range(5)])
    jax.effects_barrier()
    assert sorted(i for i, _ in seen) == sorted(list(range(50)) * 5), len(seen)


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
    jaxpyop.config.transport = sys.argv[1]
    many_programs.main(PROGRAMS)
