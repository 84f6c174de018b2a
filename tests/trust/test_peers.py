"""With the libraries that users have beside it: optax, Flax, Equinox, SciPy, and JAX's minimizers.

Each case is compared with the same thing in plain JAX (or SciPy called directly).
Needs the extra `peers`; what is not installed is skipped.
"""

import functools
import warnings

import jax
import jax.numpy as jnp
import jax.scipy.optimize
import jax.scipy.special
import numpy as np
import pytest

import jaxpyop
from tests.shared.util import Counter

PEERS = "flax|equinox|optax|jaxtyping|chex|orbax|scipy"
# What the peers find outdated in one another is theirs to mend; ours stays an error.
NOT_OURS = f"ignore::DeprecationWarning:({PEERS})"
pytestmark = pytest.mark.filterwarnings(NOT_OURS)

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    import equinox as eqx
    import optax
    from flax import nnx
    from scipy import special

NEAR = {"rtol": 2e-5, "atol": 2e-6}


def assert_near(found, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **(NEAR | tolerance)), found, expected)


@pytest.mark.parametrize(("module", "fails"), [("flax.nnx.graph", False), ("optax", False), ("jaxpyop._op", True)])
def test_the_filter_lets_only_the_peers_warnings_pass(module, fails):
    def warn():
        warnings.warn_explicit("old", DeprecationWarning, "file.py", 1, module=module)

    if fails:
        with pytest.raises(DeprecationWarning, match="old"):
            warn()
    else:
        warn()


# ------------------------------------------------------------------ training loops

STEPS = 4
# Far from what a new model predicts, so that both branches of the loss are taken; and not
# symmetric: Adam makes whole steps of gradients that are zero but for rounding.
X = jnp.linspace(-1.0, 2.0, 8)[:, None]
Y = 2 * jnp.sin(2 * X)


def huber(error):
    if abs(error) <= 1:
        return error**2
    return 2 * abs(error) - 1


def huber_of_rows(predicted, y):
    """The mean over a batch, by a Python loop."""
    total = 0.0
    for error in jnp.ravel(predicted - y):
        total += huber(error)
    return total / len(y)


def huber_in_numpy(error):
    return np.where(abs(error) <= 1, error**2, 2 * abs(error) - 1)


def huber_vjp(inputs, outputs, cotangents):
    return cotangents[0] * np.clip(2 * inputs[0], -2, 2)


def of_each(op):
    return lambda predicted, y: jnp.mean(jax.vmap(op)(jnp.ravel(predicted - y)))


def plain(predicted, y):
    error = predicted - y
    return jnp.mean(jnp.where(abs(error) <= 1, error**2, 2 * abs(error) - 1))


LOSSES = {
    "vmap": of_each(lambda e: jaxpyop.py_function(huber, [e], jnp.float32)),
    "vmap-parallel": of_each(lambda e: jaxpyop.py_function(huber, [e], jnp.float32, vmap_method="parallel")),
    "vmap-traced": of_each(lambda e: jaxpyop.py_function(huber, [e], jnp.float32, mode="traced")),
    "batch": lambda p, y: jaxpyop.py_function(huber_of_rows, [p, y], jnp.float32, output_shapes=()),
    "batch-inferred": lambda p, y: jaxpyop.py_function(lambda p, y: plain(p, y), [p, y], jnp.float32),
    "checkpoint": jax.checkpoint(
        lambda p, y: jaxpyop.py_function(huber_of_rows, [p, y], jnp.float32, output_shapes=())
    ),
    "numpy": lambda p, y: jnp.mean(jaxpyop.numpy_function(huber_in_numpy, [p - y], jnp.float32, vjp=huber_vjp)),
}


class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(1, 6, rngs=rngs)
        self.out = nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.hidden(x)))


def train_flax(loss):
    """The losses and the last parameters of a few steps; `loss` takes a model, x and y."""
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.05), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        value, slopes = nnx.value_and_grad(loss)(model, x, y)
        optimizer.update(model, slopes)
        return value

    values = [float(step(model, optimizer, X, Y)) for _ in range(STEPS)]
    return values, jax.tree.leaves(nnx.state(model, nnx.Param))


def train_equinox(loss):
    """The same; the model predicts for one row, so that a batch is a vmap."""
    model = eqx.nn.MLP(1, 1, 6, 1, activation=jnp.tanh, key=jax.random.key(0))
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


TRAINERS = {"flax": train_flax, "equinox": train_equinox}


def of_predictions(loss):
    return lambda model, x, y: loss(model(x), y)


@functools.cache
def trained_in_plain_jax(trainer):
    return TRAINERS[trainer](of_predictions(plain))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_training(trainer, loss, transport):
    values, parameters = TRAINERS[trainer](of_predictions(LOSSES[loss]))
    assert values[-1] < values[0]
    assert_near((values, parameters), trained_in_plain_jax(trainer))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_training_step_runs_its_ops_once(trainer, transport):
    body, log = Counter(huber_of_rows), []

    def loss(model, x, y):
        value = jaxpyop.py_function(body, [model(x), y], jnp.float32, output_shapes=())
        jaxpyop.py_func(lambda value: log.append(float(value)), [value], None)
        return value

    values, _ = TRAINERS[trainer](loss)
    jax.effects_barrier()
    assert body.count == STEPS
    assert log == values


def model_in_flax(model, x, y):
    graph, state = nnx.split(model)
    return jaxpyop.py_function(lambda state, x, y: plain(nnx.merge(graph, state)(x), y), [state, x, y], jnp.float32)


def test_a_flax_model_as_an_input(transport):
    assert_near(train_flax(model_in_flax), trained_in_plain_jax("flax"))


@pytest.mark.parametrize("op", ["jit", "direct"])
def test_an_equinox_model_as_an_input(op, transport):
    model = eqx.nn.MLP(1, 1, 6, 1, activation=jnp.tanh, key=jax.random.key(0))

    def expected(model):
        return plain(jax.vmap(model)(X), Y)

    def loss(model):  # the activation is a leaf that is no array: it reaches the body as it is
        return jaxpyop.py_function(lambda m, x, y: plain(jax.vmap(m)(x), y), [model, X, Y], jnp.float32)

    slopes = eqx.filter_grad(loss)
    found = (eqx.filter_jit(slopes) if op == "jit" else slopes)(model)
    assert_near(jax.tree.leaves(found), jax.tree.leaves(eqx.filter_grad(expected)(model)))


# --------------------------------------------------------------- SciPy's functions


def jv_vjp(inputs, outputs, cotangents):
    order, x = inputs
    return None, cotangents[0] * (special.jv(order - 1, x) - special.jv(order + 1, x)) / 2


def betainc_vjp(inputs, outputs, cotangents):
    a, b, x = inputs
    return None, None, cotangents[0] * x ** (a - 1) * (1 - x) ** (b - 1) / special.beta(a, b)


def gammainc_vjp(inputs, outputs, cotangents):
    a, x = inputs
    return None, cotangents[0] * np.exp((a - 1) * np.log(x) - x - special.gammaln(a))


# The function, its derivative by the last argument, that argument, the ones before it, and
# value and slope of what it is compared with.
X_IN = np.linspace(0.1, 0.9, 5, dtype=np.float32)
SPECIAL = {
    "jv": (special.jv, jv_vjp, (2.0,), 3 * X_IN, lambda x: (special.jv(2.0, x), special.jvp(2.0, x))),
    "betainc": (
        special.betainc,
        betainc_vjp,
        (1.5, 2.5),
        X_IN,
        lambda x: in_jax(jax.scipy.special.betainc, x, 1.5, 2.5),
    ),
    "gammainc": (
        special.gammainc,
        gammainc_vjp,
        (2.5,),
        4 * X_IN,
        lambda x: in_jax(jax.scipy.special.gammainc, x, 2.5),
    ),
}


def in_jax(function, x, *before):
    return jax.vmap(jax.value_and_grad(lambda x: function(*before, x)))(x)


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all", "parallel"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name, method, route):
    function, vjp, before, x, expected = SPECIAL[name]
    op = jaxpyop.numpy_function(Tout=jnp.float32, vjp=vjp, vmap_method=method)(function)
    found = route(jax.vmap(jax.value_and_grad(lambda x: op(*before, x))), jnp.asarray(x))
    values, slopes = expected(x)
    assert_near(found, (np.asarray(values), np.asarray(slopes)), rtol=1e-4)


def test_a_ufunc_is_called_once_per_batch(route):
    calls = Counter(special.jv)
    op = jaxpyop.numpy_function(Tout=jnp.float32, vmap_method="expand_dims")(calls)
    assert_near(route(jax.vmap(lambda x: op(2.0, x)), jnp.asarray(X_IN)), special.jv(2.0, X_IN))
    assert calls.count == 1


# -------------------------------------------------------------------- minimizers


def rosenbrock(x):
    """Rosenbrock's valley, less steep: at 100 JAX's float32 BFGS gives up by itself."""
    return 3 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


def rosenbrock_by_value(x):
    """The same, with control flow that depends on values."""
    slow = (1 - x[0]) ** 2
    valley = x[1] - x[0] ** 2
    if abs(float(valley)) < 1e-30:
        return slow
    return 3 * valley**2 + slow


def rosenbrock_vjp(inputs, outputs, cotangents):
    x, y = inputs[0]
    return cotangents[0] * np.array([-12 * x * (y - x**2) - 2 * (1 - x), 6 * (y - x**2)], np.float32)


OBJECTIVES = {
    "py_function": lambda x: jaxpyop.py_function(rosenbrock_by_value, [x], jnp.float32, output_shapes=()),
    "py_function-traced": lambda x: jaxpyop.py_function(rosenbrock, [x], jnp.float32, mode="traced"),
    "numpy_function": lambda x: jaxpyop.numpy_function(
        rosenbrock, [x], jnp.float32, output_shapes=(), vjp=rosenbrock_vjp
    ),
}


START = jnp.array([-1.2, 1.0])


def bfgs(objective):
    found = jax.scipy.optimize.minimize(objective, START, method="BFGS")
    return found.x, found.fun


def lbfgs(objective):
    """L-BFGS with its zoom line search, which evaluates the objective in a `while_loop`."""
    optimizer = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(objective)

    def step(_, carry):
        x, state = carry
        value, slope = value_and_grad(x, state=state)
        updates, state = optimizer.update(slope, state, x, value=value, grad=slope, value_fn=objective)
        return optax.apply_updates(x, updates), state

    @jax.jit
    def minimize(x):
        x, _ = jax.lax.fori_loop(0, 15, step, (x, optimizer.init(x)))
        return x, objective(x)

    return minimize(START)


MINIMIZERS = {"bfgs": bfgs, "lbfgs": lbfgs}


@functools.cache
def minimum_in_plain_jax(minimizer):
    return MINIMIZERS[minimizer](rosenbrock)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("minimizer", MINIMIZERS)
def test_minimizers(minimizer, objective, transport):
    x, value = MINIMIZERS[minimizer](OBJECTIVES[objective])
    x_in_plain_jax, value_in_plain_jax = minimum_in_plain_jax(minimizer)
    assert_near(x_in_plain_jax, np.ones(2), rtol=2e-3)
    assert_near(x, x_in_plain_jax, rtol=2e-3)
    assert_near(value, value_in_plain_jax, atol=1e-6)
