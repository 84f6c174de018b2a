"""A differentiated program runs its stateful functions as often as the program itself does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.effects.ops import F, every_route, wait
from tests.shared.functions import numpy_function, py_func, py_function
from tests.shared.tables import in_turn, rows

HOW = {"stateful": {"stateful": True}, "ordered": {"ordered": True}}


@every_route
@pytest.mark.parametrize(("loop", "options"), [("scan", HOW["stateful"]), ("fori_loop", HOW["ordered"])], ids=HOW)
def test_logging_in_a_differentiated_loop(loop, options, route):
    """A log line for each step of a training loop, whose result nobody uses."""
    seen = {"carry": [], "index": [], "constant and index": []}

    def log(name, *inputs):
        py_func(lambda *args: seen[name].append([float(a) for a in args]), list(inputs), None, **options)

    def loss(x):
        def step(c, i):
            log("carry", c)
            log("index", i)
            log("constant and index", 7.0, i)
            return c * x

        if loop == "fori_loop":
            return lax.fori_loop(0, 4, lambda i, c: step(c, i), 1.0)
        return lax.scan(lambda c, i: (step(c, i), None), 1.0, jnp.arange(4))[0]

    assert wait(route(jax.grad(loss))(2.0)) == 32
    assert seen == {
        "carry": [[1.0], [2.0], [4.0], [8.0]],
        "index": [[0.0], [1.0], [2.0], [3.0]],
        "constant and index": [[7.0, 0.0], [7.0, 1.0], [7.0, 2.0], [7.0, 3.0]],
    }


def scanned(g):
    return lambda x: lax.scan(lambda c, _: (c + g(x), None), 0.0, None, length=3)[0]


# Three iterations each, in which the inputs of the call are the same.
LOOPS = {
    "scan": scanned,
    "fori_loop": lambda g: lambda x: lax.fori_loop(0, 3, lambda _, c: c + g(x), 0.0),
    "cond in scan": lambda g: scanned(lambda x: lax.cond(True, g, g, x)),
    "jit in scan": lambda g: scanned(jax.jit(g)),
}
ROWS = in_turn(LOOPS, HOW, and_also=[("cond in scan", "ordered")])
# Calls of a function that counts its runs, and their slopes after three of them.
CALLS = {
    "an input": lambda count, x, **how: py_function(lambda x: x * count(), [x], F, output_shapes=(), **how),
    "a constant": lambda count, x, **how: x * numpy_function(lambda _: count(), [1.0], F, output_shapes=(), **how),
    "no input": lambda count, x, **how: x * numpy_function(count, [], F, output_shapes=(), **how),
    "no result": lambda count, x, **how: (numpy_function(count, [], None, **how), x * 2)[1],
}


@every_route
@pytest.mark.parametrize(("loop", "how"), rows(ROWS, fast=[("scan", "stateful")]))
def test_the_derivative_of_a_loop_runs_it_in_each_iteration(loop, how, route):
    runs = dict.fromkeys(CALLS, 0)

    def counter(name):
        def count():
            runs[name] += 1
            return np.float32(runs[name])

        return count

    def program(x):
        looped = lambda name: LOOPS[loop](lambda x: CALLS[name](counter(name), x, **HOW[how]))
        return sum(looped(name)(x) for name in CALLS)

    # 2 * (1 + 2 + 3) of each call that counts, and 2 * 3 * 2 of the one without a result.
    assert wait(route(jax.value_and_grad(program))(2.0)) == (48, 24)
    assert set(runs.values()) == {3}
