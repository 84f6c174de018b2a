"""Traced values that reach a function by other ways than its arguments: an error, or the right gradient, never a zero.

A compiled gradient leaves out what it does not need. It takes such a value for a constant, so that the function would
never run, and the gradient would be zero.
"""

import collections
import contextvars
import dataclasses
import functools
import itertools
import queue
import sys
import types
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.tables import rows

F = jnp.float32


class Net:
    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return self.w * x

    def scale(self, x):
        return self.w * x

    def double(self, x):
        return 2 * x


class Slots:
    __slots__ = ("w",)

    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return self.w * x


@dataclasses.dataclass(frozen=True)
class Frozen:
    w: Any


class Variable:
    """As Keras has them."""

    def __init__(self, w):
        self.w = w

    def __jax_array__(self):
        return self.w


NAMED: Any = None
TABLE: dict[str, Any] = {}
KEPT: list[Any] = []
CONTEXT: contextvars.ContextVar[Any] = contextvars.ContextVar("CONTEXT")


def by_a_default(value):
    return lambda x, one=value: one.w * x


def by_an_operator(w):
    one: Any = type("Kind", (), {"__mul__": lambda self, x: w * x})()
    return lambda x: one * x


def by_a_global(w):
    global NAMED
    NAMED = w
    return lambda x: NAMED * x


def by_globals(w):
    global NAMED
    NAMED = w
    return lambda x: globals()["NAMED"] * x


def by_a_global_of_a_library(w):
    vars(jax)["jaxpyop_test_value"] = w
    return lambda x: vars(jax)["jaxpyop_test_value"] * x


def by_an_attribute(kind, value):
    def way(w):
        one: Any = kind(value) if kind is not np.ndarray else value.view(type("Kind", (kind,), {}))
        one.w = w
        return lambda x: one.w * x

    return way


def by_a_global_table(w):
    TABLE["net"] = Net(w)
    return lambda x: TABLE["net"].w * x


def by_a_look_up(w):
    TABLE["w"] = w
    helper: Any = types.SimpleNamespace(look_up=lambda name: TABLE[name])
    return lambda x: helper.look_up("w") * x


def by_an_iterator(w):
    values = itertools.repeat(w)
    return lambda x: next(values) * x


def by_a_map(w):
    values = map(lambda w, _: w, itertools.repeat(w), itertools.count())
    return lambda x: next(values) * x


def by_a_generator(w):
    def forever():
        while True:
            yield w

    values = forever()
    return lambda x: next(values) * x


def by_a_cache(w):
    @functools.lru_cache
    def cached():
        return w

    return lambda x: cached() * x


def by_a_class(w):
    kind: Any = type("Kind", (), {"w": w})
    return lambda x: kind.w * x


def by_a_property(w):
    one: Any = type("Kind", (), {"weight": property(lambda self: w)})()
    return lambda x: one.weight * x


def by_its_own_attribute(w):
    def scale(x):
        return scale.w * x

    scale.w = w
    return scale


def by_a_module(w):
    module: Any = types.ModuleType("parameters")
    module.w = w
    return lambda x: module.w * x


def by_an_imported_module(w):
    module: Any = sys.modules.setdefault("jaxpyop_test_parameters", types.ModuleType("jaxpyop_test_parameters"))
    module.w = w

    def scale(x):
        import jaxpyop_test_parameters as parameters

        return parameters.w * x

    return scale


def by_a_weak_reference(w):
    KEPT.append(Net(w))
    found = weakref.ref(KEPT[-1])
    return lambda x: found().w * x


def by_a_weak_proxy(w):
    KEPT.append(Net(w))
    found, gone = weakref.proxy(KEPT[-1]), weakref.proxy(Net(0))
    return lambda x, unused=gone: found.w * x


def by_a_context_variable(w):
    CONTEXT.set(w)
    return lambda x: CONTEXT.get() * x


def by_a_library(w):
    """An object of a class whose code is no code of the user's, as that of a layer of a network."""
    there: Any = types.ModuleType("jaxpyop_test_library")
    there.__file__ = jax.__file__.replace("jax", "library")
    sys.modules[there.__name__] = there
    code = "class Layer:\n    def __init__(self, w): self.weight = w\n    def __call__(self, x): return self.weight * x"
    exec(compile(code, there.__file__, "exec"), vars(there))
    layer = there.Layer(w)
    return lambda x: layer(x)


def by_a_metaclass(w):
    kind: Any = type("Meta", (type,), {"w": property(lambda cls: w)})("Kind", (), {})
    return lambda x: kind.w * x


def by_a_queue(w):
    waiting = queue.Queue()
    for _ in range(20):
        waiting.put(w)
    return lambda x: waiting.get() * x


def held(value, use):
    return lambda x: use(value, x)


WAYS = {
    "object": Net,
    "method": lambda w: Net(w).scale,
    "slots": Slots,
    "frozen dataclass": lambda w: held(Frozen(w), lambda one, x: one.w * x),
    "object in an object": lambda w: held(Frozen([{"a": Net(w)}]), lambda one, x: one.w[0]["a"].w * x),
    "object in a tuple": lambda w: held((Net(w),), lambda one, x: one[0].w * x),
    "deque": lambda w: held(collections.deque([w]), lambda one, x: one[0] * x),
    "name as a text": lambda w: held(Net(w), lambda one, x: getattr(one, "w") * x),  # noqa: B009
    "__jax_array__": lambda w: held(Variable(w), lambda one, x: jnp.multiply(one, x)),
    "partial": lambda w: functools.partial(lambda one, x: one.w * x, Net(w)),
    "partial of a method": lambda w: functools.partial(Net.scale, Net(w)),
    "default": lambda w: by_a_default(Net(w)),
    "jitted object": lambda w: jax.jit(Net(w)),
    "operator": by_an_operator,
    "global": by_a_global,
    "globals()": by_globals,
    "global of a library": by_a_global_of_a_library,
    "attribute of a number": by_an_attribute(type("Kind", (float,), {}), 1.0),
    "attribute of an array": by_an_attribute(np.ndarray, np.ones(1)),
    "global table": by_a_global_table,
    "look-up": by_a_look_up,
    "iterator": by_an_iterator,
    "map": by_a_map,
    "generator": by_a_generator,
    "cache": by_a_cache,
    "class": by_a_class,
    "property": by_a_property,
    "attribute of the function": by_its_own_attribute,
    "module": by_a_module,
    "imported module": by_an_imported_module,
    "weak reference": by_a_weak_reference,
    "weak proxy": by_a_weak_proxy,
    "context variable": by_a_context_variable,
    "library": by_a_library,
    "metaclass": by_a_metaclass,
    "queue": by_a_queue,
    "proxy": lambda w: held(weakref.proxy(KEPT.append(Net(w)) or KEPT[-1]), lambda one, x: one.w * x),
    "computed name": lambda w: held(Net(w), lambda one, x: next(iter(vars(one).values())) * x),
    "fields": lambda w: held(Frozen(w), lambda one, x: getattr(one, dataclasses.fields(one)[0].name) * x),
    "chain of maps": lambda w: held(collections.ChainMap({}, {"w": w}), lambda maps, x: maps["w"] * x),
}

# A transformation of a function of `w` that gives `2 * w`, and what it should give for a `w` of 3.
TRANSFORMED = {
    "jit": (lambda f: jax.jit(f)(3.0), 6),
    "grad": (lambda f: jax.grad(f)(3.0), 2),
    "jit of grad": (lambda f: jax.jit(jax.grad(f))(3.0), 2),
    "jit of grad of jit": (lambda f: jax.jit(jax.grad(jax.jit(f)))(3.0), 2),
    "grad of jit": (lambda f: jax.grad(jax.jit(f))(3.0), 2),
    "jit of jvp": (lambda f: jax.jit(lambda w: jax.jvp(f, [w], [1.0])[1])(3.0), 2),
    "jit of vmap of grad": (lambda f: jax.jit(jax.vmap(jax.grad(f)))(jnp.full(1, 3.0))[0], 2),
    "vmap": (lambda f: jax.vmap(f)(jnp.full(1, 3.0))[0], 6),
    "grad of scan": (lambda f: jax.grad(lambda w: jax.lax.scan(lambda c, _: (f(c), 0), w, length=1)[0])(3.0), 2),
    "jit of grad of scan": (
        lambda f: jax.jit(jax.grad(lambda w: jax.lax.scan(lambda c, _: (f(c), 0), w, length=1)[0]))(3.0),
        2,
    ),
    "jit of grad of cond": (lambda f: jax.jit(jax.grad(lambda w: jax.lax.cond(w > 0, f, lambda w: w, w)))(3.0), 2),
    "jit of grad of checkpoint": (lambda f: jax.jit(jax.grad(jax.checkpoint(f)))(3.0), 2),
    "jaxpyop.jit of grad": (lambda f: jaxpyop.jit(jax.grad(f))(3.0), 2),
    # Nothing is left out where the function is traced, but where its program is used.
    "jit of grad of what was traced before": (lambda f: jax.jit(jax.grad(jax.closure_convert(f, 3.0)[0]))(3.0), 2),
}


def branching(func):
    return lambda x, func=func: x if x > 100 else func(x)


def slope_by(func, **options):
    rule = lambda inputs, outputs, cotangents: (func(2 * cotangents),)
    return jax.grad(lambda x: jaxpyop.py_function(lambda x: x, [x], F(0), vjp=rule, **options))(1.0)


# How the op is made. No value is known in a run on types, so that such a run ends at the `if`, and a function of NumPy
# arrays does not have one.
OPS = {
    "straight": lambda func: jaxpyop.py_function(func, [2.0], F(0)),
    "branching": lambda func: jaxpyop.py_function(branching(func), [2.0], F(0)),
    "NumPy": lambda func: jaxpyop.numpy_function(func, [2.0], F(0)),
    "straight, any shape": lambda func: jaxpyop.py_function(func, [2.0], F),
    "branching, any shape": lambda func: jaxpyop.py_function(branching(func), [2.0], F),
    "NumPy, any shape": lambda func: jaxpyop.numpy_function(branching(func), [2.0], F),
    "auto": lambda func: jaxpyop.py_function(branching(func), [2.0], F, mode="auto"),
    "traced": lambda func: jaxpyop.py_function(branching(func), [2.0], F, mode="traced"),
    "input": lambda func: jaxpyop.py_function(branching(None), [2.0, func], F),
    "node of an input": lambda func: jaxpyop.py_function(branching(None), [2.0, jax.tree_util.Partial(func)], F),
    "NumPy input": lambda func: jaxpyop.numpy_function(branching(None), [2.0, func], F(0)),
    "rule": slope_by,
    "rule of a stateful op": lambda func: slope_by(func, stateful=True),
}


FAST = [
    *itertools.product(["straight"], [*WAYS][::3]),
    *itertools.product(OPS.keys() - {"auto", "traced"}, ["object"]),
    ("branching", "library"),
]
# Each kind of op has every fourth way, since all pairs would take long. The next kind has the ways that follow.
PAIRS = [
    (op, way)
    for i, op in enumerate(OPS)
    for k, way in enumerate(WAYS)
    if (i + k) % 4 == 0 or op == "straight" or way == "object" or (op, way) in FAST
]


@pytest.mark.parametrize(("op", "way"), rows(PAIRS, FAST))
def test_a_hidden_value_is_an_error_or_has_its_gradient(op, way):
    for transform, expected in TRANSFORMED.values():
        try:
            found = transform(lambda w: OPS[op](WAYS[way](w)))
        except Exception:  # whatever it is: nothing comes out
            continue
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("way", ["object", "slots", "cache", "generator", "imported module", "__jax_array__"])
def test_the_error_says_what_to_write(way):
    gradient = jax.jit(jax.grad(lambda w: jaxpyop.py_function(WAYS[way](w), [2.0], F(0), name="net")))
    with pytest.raises(ValueError, match=r"py_function 'net': func (uses|holds) .*traced value.*pass it through inp"):
        gradient(3.0)


def test_a_method_that_does_not_use_the_traced_values_of_its_object():
    def loss(w):
        net = Net(w)
        of_a_method = jaxpyop.py_function(net.double, [2.0], F(0))
        return net(of_a_method + jaxpyop.py_function(lambda x: net.double(x), [2.0], F(0)))

    assert jax.jit(jax.grad(loss))(3.0) == 8


def test_a_function_with_branches_whose_shape_is_not_declared():
    def loss(w):
        net = Net(w)
        return jaxpyop.py_function(lambda x: net(x) if x > 0 else x, [2.0], F)

    with pytest.raises(ValueError, match=r"func holds a traced value .* by itself or in an object"):
        jax.jit(jax.grad(loss))(3.0)


def test_a_run_for_the_shapes_refuses_it_as_well():
    program = jax.jit(lambda w: jaxpyop.py_function(Net(w), [2.0], F))
    with pytest.raises(ValueError, match=r"func uses a traced value .* by itself or in an object"):
        program(3.0)
