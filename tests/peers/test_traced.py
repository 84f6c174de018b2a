"""optax in traced mode: its losses and its steps are interpreted as the user's own functions are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.peers.library import assert_near, library

pytestmark = pytest.mark.slow

LOGITS, OTHERS = np.random.default_rng(0).uniform(0.1, 0.9, (2, 6, 4)).astype(np.float32)
CLASSES, WEIGHTS = np.arange(6) % 4, OTHERS / OTHERS.sum(1, keepdims=True)


def step_of(optax, optimizer):
    def step(x, y):
        return optax.apply_updates(x, optimizer.update(y, optimizer.init(x), x)[0])

    return step


FUNCTIONS = {
    "cross entropy": lambda optax: lambda x, y: optax.softmax_cross_entropy(x, WEIGHTS),
    "of integer labels": lambda optax: lambda x, y: optax.softmax_cross_entropy_with_integer_labels(x, CLASSES),
    "a schedule": lambda optax: lambda x, y: x * optax.warmup_cosine_decay_schedule(0.0, 1.0, 10, 100)(jnp.int32(3)),
    "a step of Adam": lambda optax: step_of(optax, optax.adam(0.01)),
}


@pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_of_optax_beside_a_branch_on_its_value(make):
    function = make(library("optax"))

    def body(x, y):
        found = jnp.mean(function(x, y))
        if found > 0.2:
            return 2 * found
        return found

    def of(mode):
        op = lambda x, y: jaxpyop.py_function(body, [x, y], jnp.float32, mode=mode, output_shapes=())
        return jax.value_and_grad(op)(LOGITS, OTHERS)

    assert_near(of("traced"), of("eager"))
