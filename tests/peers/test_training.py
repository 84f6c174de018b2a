"""Training steps with optax and Equinox: the losses and parameters of the same steps in plain JAX.

Flax is trained by a recipe and by notebooks.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.peers.library import assert_near, library

# What these libraries find outdated in one another is theirs to mend; ours stays an error.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning:(equinox|optax|jaxtyping|chex)")]

STEPS = 4
# Far from what a new model predicts, so that both branches of the loss are taken; and not
# symmetric: Adam makes whole steps of gradients that are zero but for rounding.
X = np.linspace(-1.0, 2.0, 8, dtype=np.float32)[:, None]
Y = 2 * np.sin(2 * X)


# ------------------------------------------------------------------------- losses


def huber(error):
    if abs(error) <= 1:
        return error**2
    return 2 * abs(error) - 1


def huber_of_rows(predicted, y):
    """The mean over a batch, by a Python loop."""
    return sum(huber(error) for error in jnp.ravel(predicted - y)) / len(y)


def plain(predicted, y):
    error = predicted - y
    return jnp.mean(jnp.where(abs(error) <= 1, error**2, 2 * abs(error) - 1))


def of_each(**options):
    op = lambda e: jaxpyop.py_function(huber, [e], jnp.float32, **options)
    return lambda predicted, y: jnp.mean(jax.vmap(op)(jnp.ravel(predicted - y)))


def of_batch(p, y):
    return jaxpyop.py_function(huber_of_rows, [p, y], jnp.float32, output_shapes=())


LOSSES = {
    "vmap": of_each(),
    "vmap, traced": of_each(mode="traced"),
    "batch": of_batch,
    "checkpoint": jax.checkpoint(of_batch),
}


# ------------------------------------------------------------------------ trainer


def mlp():
    return library("equinox").nn.MLP(1, 1, 6, 1, activation=jnp.tanh, key=jax.random.key(0))


def trained(loss):
    """The losses and the last parameters of a few steps; `loss` takes what predicts for a batch, x and y."""
    eqx, optax, model = library("equinox"), library("optax"), mlp()
    optimizer = optax.adam(0.05)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model, state, x, y):
        value, slopes = eqx.filter_value_and_grad(lambda m: loss(jax.vmap(m), x, y))(model)
        updates, state = optimizer.update(slopes, state)
        return eqx.apply_updates(model, updates), state, value

    values = []
    for _ in range(STEPS):
        model, state, value = step(model, state, X, Y)
        values.append(float(value))
    return values, jax.tree.leaves(eqx.filter(model, eqx.is_array))


# -------------------------------------------------------------------------- tests


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_training_as_in_plain_jax(loss):
    found = trained(lambda model, x, y: loss(model(x), y))
    assert_near(found, trained(lambda model, x, y: plain(model(x), y)))


def test_an_equinox_model_as_an_input():
    """Its activation is a leaf that is no array, and reaches the function as it is."""
    of_model = lambda m, x, y: plain(jax.vmap(m)(x), y)
    loss = lambda model: jaxpyop.py_function(of_model, [model, X, Y], jnp.float32)
    eqx = library("equinox")
    found, wanted = (eqx.filter_jit(eqx.filter_grad(f))(mlp()) for f in (loss, lambda model: of_model(model, X, Y)))
    assert_near(jax.tree.leaves(found), jax.tree.leaves(wanted))
