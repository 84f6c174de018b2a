"""What a folder of `map_batches` compares: whether a function on the host would give the same results again."""

import copy
import functools
import math
import operator
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import map_batches, numerical
from tests.shared.functions import numpy_function
from tests.shared.processes import run_python
from tests.shared.tables import named
from tests.sweeps.programs import F, X, on_host, same

fcntl = pytest.importorskip("fcntl", reason="checkpoint= needs POSIX locks")


def with_rule(scale):
    rule = lambda inputs, outputs, cotangents: (scale * cotangents,)
    return jax.grad(lambda x: numpy_function(np.sin, [x], F(0), vjp=rule))


def with_callback_of_jax(scale):
    return lambda x: jax.pure_callback(lambda x: x * np.float32(scale), F(0), x, vmap_method="sequential")


CHANGED = {
    "its code": lambda scale: on_host(eval(f"lambda x: x * {scale}")),
    "a rule": with_rule,
    "a callback of JAX": with_callback_of_jax,
}


@pytest.mark.parametrize("make", named(CHANGED, slow=["a callback of JAX"]))
def test_a_function_on_the_host_has_a_version_and_its_code_is_compared(make, tmp_path):
    call = lambda scale, **options: map_batches(make(scale), X, batch_size=2, checkpoint=tmp_path / "a", **options)
    with pytest.raises(ValueError, match="f calls a Python function on the host"):
        call(2)
    expected = call(2, version="1")
    same(call(2, version="1"), np.asarray(expected))
    with pytest.warns(RuntimeWarning, match="was another one"):
        same(call(3, version="1"), np.asarray(expected))
    with pytest.raises(ValueError, match="version: 1 there, 2 here"):
        call(2, version="2")


def pick(x, mode):
    return x[mode] if isinstance(x, dict) else x * {"two": 2, "three": 3}[mode]


class Model:
    """An object whose text tells nothing."""

    def __init__(self, *held):
        self.held = held


def of(value):
    """What reads a value that is no array of the program."""
    return lambda x: numpy_function(lambda x, value: x, [x, jaxpyop.static(value)], F(0))


def adding(k):
    return lambda x: x + k


def model_class(scale):
    return type("Config", (), {"scale": scale, "__module__": __name__})


def with_attribute(scale):
    function = lambda x: x
    function.scale = scale
    return function


def drawing(kind):
    draw = lambda key: jax.random.uniform(jax.random.split(key)[0])
    key = lambda x: jax.random.wrap_key_data(jnp.full(4, x, jnp.uint32), impl=kind)
    return lambda x: jaxpyop.py_function(draw, [key(x)], F(0))


def drawing_in_a_block(kind):
    def f(x):
        with jax.default_prng_impl(kind):
            return jaxpyop.py_function(lambda x: x + jax.random.uniform(jax.random.key(0)), [x], F(0))

    return f


def nested(first, *rest):
    return sum(first) + 100 * sum(rest, F(0))


# What the author of a class may write into it, besides functions and plain data.
WRITTEN = {
    "a property that is cached": lambda k: functools.cached_property(lambda self: k),
    "a method that is cached": lambda k: functools.lru_cache(lambda self: k),
    "a method that is compiled": lambda k: jax.jit(lambda self: k),
    "a partial method": lambda k: functools.partialmethod(lambda self, n: n, k),
    "a partial": lambda k: functools.partial(pow, k),
    "a class": lambda k: type("Inner", (), {"k": k, "__module__": __name__}),
    "an object": lambda k: Model(k),
    "an array of JAX": lambda k: jnp.full(2, k),
}


def written(name, k):
    return type("Config", (), {"a": WRITTEN[name](k), "__module__": __name__})()


LONG = np.zeros(2000)
# Two functions that ask the same function on the host for different things.
ASKED = {
    "an element of a long array": (of, LONG, LONG + (np.arange(2000) == 1000)),
    "the last bit of a number": (of, np.float64(0.1), np.nextafter(0.1, 1)),
    "an attribute": (of, Model(1), Model(2)),
    "what an attribute holds": (of, [Model({"a": LONG})], [Model({"a": LONG + 1})]),
    "the order of a dict": (of, {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "a set": (of, {"a", "b"}, {"a", "c"}),
    "a set whose copy has another order": (of, {7, 15}, {7, 16}),
    "code": (of, Model(lambda x: x + 1), Model(lambda x: x + 2)),
    "a closure": (of, Model(adding(LONG)), Model(adding(LONG + 1))),
    "objects in an array": (of, *(np.array([Model(k), None], object) for k in (1, 2))),
    "one object or two": (of, [Model(1)] * 2, [Model(1), Model(1)]),
    "a class": (of, model_class(1), model_class(2)),
    "the class of an object": (of, model_class(1)(), model_class(2)()),
    "an attribute of a function": (of, with_attribute(1), with_attribute(2)),
    "a function of NumPy's": (of, np.sin, np.cos),
    "a function that is cached": (of, functools.cache(lambda x: x), functools.cache(lambda x: x + 1)),
    "the kind of keys": (drawing, "rbg", "unsafe_rbg"),
    "another class of objects": (of, Model(1), types.SimpleNamespace(held=(1,))),
    "an argument that is no array": (lambda mode: lambda x: numpy_function(pick, [x, mode], F(0)), "two", "three"),
    "the structure of inputs": (lambda k: lambda x: numpy_function(pick, [{k: x, "c": x}, "c"], F(0)), "a", "b"),
    "the arity of inputs": (lambda k: lambda x: numpy_function(nested, [[x, x][:k], *[x, x][k:]], F(0)), 1, 2),
    "a block with other settings": (drawing_in_a_block, "threefry2x32", "rbg"),
    "a function of C": (of, math.pow, operator.pow),
    **{f"{name} of a class": (of, written(name, 1), written(name, 2)) for name in WRITTEN},
    "a step": (lambda h: jax.grad(lambda x: numpy_function(np.sin, [x], F(0), vjp=numerical(step=h))), 0.1, 0.2),
    "a fill": (lambda v: lambda x: numpy_function(abs, [x[None]], jaxpyop.padded(F, 3, v)).values, 0, 5),
}


@pytest.mark.parametrize(("make", "first", "second"), ASKED.values(), ids=ASKED)
def test_what_is_asked_of_a_function_on_the_host(make, first, second, tmp_path):
    call = lambda value: map_batches(make(value), X, batch_size=2, checkpoint=tmp_path / "a", version="1")
    expected = call(first)
    same(call(copy.deepcopy(first)), np.asarray(expected))
    with pytest.raises(ValueError, match="functions on the host: "):
        call(second)


@pytest.mark.slow
def test_what_is_held_has_the_same_checksum_in_another_process():
    code = "from tests.sweeps import test_compared as t; from jaxpyop._batches.contents import checksum_of; print("
    code += "checksum_of([row for name, row in t.ASKED.items() if row[0] is t.of]))"
    found = {run_python(code, PYTHONHASHSEED=str(seed)).stdout for seed in (1, 2)}
    assert len(found) == 1, found


def test_an_object_that_cannot_be_compared(tmp_path):
    for value in (threading.Lock(), Model(iter([1]), threading.Lock()), np.frompyfunc(abs, 1, 1)):
        with pytest.raises(TypeError, match=r"tell whether it has changed \(.* pickle.*; .* name it by version="):
            map_batches(of(value), X, batch_size=2, checkpoint=tmp_path / "a", version="1")


def test_each_change_of_the_code_is_told(tmp_path):
    call = lambda k: map_batches(
        on_host(eval(f"lambda x: {k} * x")), X, batch_size=2, checkpoint=tmp_path / "a", version="1"
    )
    call(2)
    for k in (3, 4):
        with pytest.warns(RuntimeWarning, match="the code of a Python function on the host was another one"):
            call(k)
