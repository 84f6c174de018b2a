"""Training steps and other programs whose arguments and results are NamedTuples, dataclasses and modules of peers."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpyop import numpy_function, py_function, static

X = np.array([[0.5, -1.25], [2.0, 0.25], [1.5, 3.0]], np.float32)
F = jax.ShapeDtypeStruct((), jnp.float32)


class Pair(NamedTuple):
    """Fields in no order of the alphabet."""

    weights: Any
    bias: Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Settings:
    """A pytree with static fields, one of which is a function."""

    rate: Any
    scale: Any
    kind: str = dataclasses.field(metadata={"static": True})
    power: Callable[[Any], Any] = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class Plain:
    """A dataclass that JAX does not look into."""

    factors: tuple[float, ...]


class Registered:
    """A node of a pytree that only its registration knows how to write."""

    def __init__(self, x, factor):
        """Hold an array and a number."""
        self.x, self.factor = x, factor


jax.tree_util.register_pytree_node(Registered, lambda r: ((r.x,), r.factor), lambda factor, xs: Registered(*xs, factor))
jax.export.register_pytree_node_serialization(
    Registered,
    serialized_name="tests.Registered",
    serialize_auxdata=lambda factor: str(factor).encode(),
    deserialize_auxdata=lambda data: float(bytes(data)),
)
Named = collections.namedtuple("Named", ["first", "second"])  # of no module under this name
Renamed, Named = Named, None
jax.export.register_namedtuple_serialization(Renamed, serialized_name="tests.Renamed")


def squared(x):
    return x * x


def moved(pair, settings, plain, registered):
    assert settings.kind == "fast"
    weights = settings.power(pair.weights) * settings.rate - settings.scale * plain.factors[1]
    return Pair(weights.astype(np.float32), [np.float32(registered.x * registered.factor)])


def penalty(x):
    return jnp.sum(x * x) if x[0, 0] > 0 else jnp.sum(jnp.abs(x))


def of_classes(pair, settings, registered, renamed):
    """An op whose inputs and results are classes, and a program whose arguments and results are."""
    tout = Pair(jax.ShapeDtypeStruct((2,), jnp.float32), [F])
    new = numpy_function(moved, [pair, settings, static(Plain((1.0, 2.0))), registered], tout)
    changed = dataclasses.replace(settings, rate=new.bias[0])
    return new, changed, Registered(registered.x * 2, 5.0), renamed._replace(first=renamed.second)


def with_optax(params, state, x):
    """One step of a gradient descent with the states of three transformations."""
    value, slope = jax.value_and_grad(lambda w: py_function(penalty, [x @ w["w"]], F))(params)
    updates, state = OPTIMIZER.update(slope, state, params)
    return optax.apply_updates(params, updates), state, value


def with_equinox(model, state, x):
    """One step of the same for a module, whose functions are no part of what is saved."""

    def loss(model):
        return py_function(penalty, [jax.vmap(equinox.combine(model, FUNCTIONS))(x)], F)

    value, slope = jax.value_and_grad(loss)(model)
    updates, state = OPTIMIZER.update(slope, state, model)
    return equinox.apply_updates(model, updates), state, value


class Model(equinox.Module):
    """Two layers, and a function between them that is a static field."""

    layers: list[equinox.nn.Linear]
    between: Callable[[Any], Any] = equinox.field(static=True)

    def __init__(self, key):
        """Make the layers."""
        sizes = zip((2, 4), (4, 1), jax.random.split(key))
        self.layers, self.between = [equinox.nn.Linear(n, m, key=key) for n, m, key in sizes], squared

    def __call__(self, x):
        """Give the value for one row."""
        return self.layers[1](self.between(self.layers[0](x)))


PARAMETERS = {"w": jnp.ones((2, 2))}
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(0.1, 0.0, 9)))
MODEL, FUNCTIONS = equinox.partition(Model(jax.random.key(0)), equinox.is_array)
STEPS = {"classes": of_classes, "a step of Optax": with_optax, "a step of Equinox": with_equinox}
ARGUMENTS = {
    "classes": (
        Pair(X[0]),
        Settings(np.float32(3), np.float32(5), "fast", squared),
        Registered(np.float32(2), 4.0),
        Renamed(np.float32(1), np.float32(2)),
    ),
    "a step of Optax": (PARAMETERS, OPTIMIZER.init(PARAMETERS), X),
    "a step of Equinox": (MODEL, OPTIMIZER.init(MODEL), X),
}
