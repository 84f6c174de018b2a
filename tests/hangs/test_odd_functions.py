"""Functions that fork, start threads, print or clear JAX's caches end, and are right.

What could hang runs in a process of its own, several programs each.
"""

import jax
import jax.numpy as jnp
import pytest

import jaxpyop
from tests.shared.processes import run_python

START = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np
import gc, os, sys, threading, time, warnings
warnings.simplefilter("error")
jaxpyop._config.TRANSPORT = {transport!r}
F = jnp.float32
APIS = [jaxpyop.numpy_function, jaxpyop.py_function]
PROGRAMS = [lambda f: f, jax.jit, lambda f: jax.jit(lambda x: jax.vmap(f)(x[None])[0])]

def check(body, x, wanted, apis=APIS, **options):
    for api in apis:
        op = lambda x: api(body, [x], F, output_shapes=np.shape(wanted), **options)
        for program in PROGRAMS:
            f = program(op)
            for _ in range(2):
                np.testing.assert_allclose(f(x), wanted, rtol=1e-5)

work = jax.jit(lambda x: jax.lax.fori_loop(0, 30, lambda i, x: jnp.sin(x @ x), x))
busy = lambda: work(jnp.ones((300, 300)))  # from JAX 0.12 on, what takes it is run in the background
"""

FORK = """
warnings.simplefilter("ignore")  # os.fork() of a process with threads
def fork(x):
    child = os.fork()
    if child == 0:  # the package holds nothing that a fork could not leave
        os._exit(9 if jaxpyop._config.TRANSPORT == "callback" and callable(jaxpyop.py_function(Tout=F)) else 1)
    return x + os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
check(fork, F(1), 10)
f = jax.jit(jax.grad(lambda x: jaxpyop.py_function(lambda x: fork(x) * x, [x], F)))
assert f(F(2)) == 13
"""

THREADS = """
large = jnp.full((400, 400), 1 / 400)
def matmul(x):
    found = []
    threads = [threading.Thread(target=lambda: found.append(jnp.asarray(x) @ large)) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(found) == 4
    return found[-1]
check(matmul, large, large)
"""

CACHES = """
def body(x):
    jax.clear_caches()
    gc.collect()
    return x * 2
op = lambda x: jaxpyop.py_function(body, [x], F, output_shapes=(), vmap_method="parallel")
f, g, h = jax.jit(op), jax.jit(jax.grad(op)), jax.jit(jax.vmap(op))
for _ in range(2):
    assert f(F(1)) == g(F(1)) == op(F(1)) == 2
    np.testing.assert_array_equal(h(jnp.ones(3)), [2, 2, 2])
    jax.clear_caches()
"""

# With the transport of each.
CASES = {"fork": (FORK, "callback"), "threads": (THREADS, "auto"), "caches": (CACHES, "callback")}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "transport"), CASES.values(), ids=CASES)
def test_ends_and_is_right(code, transport):
    assert run_python(START.format(transport=transport) + code).stderr == ""


def test_what_a_function_prints_is_captured(capsys):
    f = jax.jit(lambda x: jaxpyop.numpy_function(lambda x: (print("in the function", x), x)[1], [x], jnp.float32))
    f(jnp.float32(2)).block_until_ready()
    assert capsys.readouterr().out == "in the function 2.0\n"
