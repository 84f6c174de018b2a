"""How ops are written: signatures, wrong calls, decorators, kinds of functions."""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.util import (
    py_func,
    py_function,
)

F = jnp.float32
both_sides = pytest.mark.parametrize("api", [py_function, py_func])


# ------------------------------------------------------------ names, signatures


def test_aliases_are_the_functions_themselves():
    v1, v2 = jaxpyop.compat.v1, jaxpyop.compat.v2
    assert v1.py_func is jaxpyop.py_func
    assert v1.py_function is v2.py_function is jaxpyop.py_function
    assert v1.numpy_function is v2.numpy_function is jaxpyop.numpy_function
    assert not hasattr(v2, "py_func")


SIGNATURES = {
    "py_function": (jaxpyop.py_function, ["func", "inp", "Tout", "name"]),
    "numpy_function": (jaxpyop.numpy_function, ["func", "inp", "Tout", "stateful", "name"]),
    "py_func": (jaxpyop.py_func, ["func", "inp", "Tout", "stateful", "name"]),
    "contrib": (
        jaxpyop.contrib.framework.py_func,
        ["func", "args", "kwargs", "output_types", "output_shapes", "stateful", "name"],
    ),
}


@pytest.mark.parametrize(("function", "names"), SIGNATURES.values(), ids=SIGNATURES)
def test_positional_parameters_are_tensorflows(function, names):
    parameters = inspect.signature(function).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == names
    assert not [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


@pytest.mark.parametrize(
    ("function", "extras"),
    [
        (
            jaxpyop.py_function,
            {
                "output_shapes": None,
                "ordered": False,
                "vmap_method": "sequential",
                "casting": "same_kind",
                "stateful": False,
            },
        ),
        (
            jaxpyop.numpy_function,
            {
                "output_shapes": None,
                "ordered": False,
                "vmap_method": "sequential",
                "casting": "same_kind",
                "vjp": None,
                "copy": True,
            },
        ),
        (
            jaxpyop.py_func,
            {
                "output_shapes": None,
                "ordered": False,
                "vmap_method": "sequential",
                "casting": "same_kind",
                "vjp": None,
                "copy": True,
            },
        ),
        (jaxpyop.contrib.framework.py_func, {"ordered": False, "vmap_method": "sequential", "casting": "same_kind"}),
    ],
    ids=SIGNATURES,
)
def test_keyword_only_extras_and_their_defaults(function, extras):
    parameters = inspect.signature(function).parameters
    for name, default in extras.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == default


@pytest.mark.parametrize(
    ("function", "stateful"),
    [(jaxpyop.numpy_function, False), (jaxpyop.py_func, True), (jaxpyop.contrib.framework.py_func, True)],
    ids=["numpy_function", "py_func", "contrib"],
)
def test_default_of_stateful(function, stateful):
    assert inspect.signature(function).parameters["stateful"].default is stateful


def test_positional_calls_as_in_tensorflow(route):
    assert route(lambda x: jaxpyop.py_function(jnp.negative, [x], F, "neg"), F(2)) == -2
    assert route(lambda x: jaxpyop.numpy_function(np.negative, [x], F, True, "neg"), F(2)) == -2
    assert route(lambda x: jaxpyop.py_func(np.negative, [x], F, False, "neg"), F(2)) == -2
    times = lambda x, by: x * by
    assert route(lambda x: jaxpyop.contrib.framework.py_func(times, [x], {"by": 3}, F, (), True, "times"), F(2)) == 6


# ---------------------------------------------------------------- wrong calls

WRONG_CALLS = {
    "no Tout": (lambda f: f(np.sin, [1.0]), TypeError, r"Tout was not given; write .*Tout="),
    "no Tout, decorator": (lambda f: f(), TypeError, r"Tout was not given"),
    "decorator without parentheses": (lambda f: f(np.sin), TypeError, r"as a decorator, @\w+\(Tout=jnp.float32\)"),
    "inputs not in a list": (
        lambda f: f(np.add, F(1), F(1), F),
        TypeError,
        r"(name|stateful) is <class .*float32'>; expected .*inp=\[x, y\]",
    ),
    "ordered a word": (lambda f: f(np.sin, [1.0], F, ordered="yes"), TypeError, r"ordered is 'yes'; expected True or"),
    "no inp": (lambda f: f(np.sin, Tout=F), TypeError, r"inp was not given; write"),
    "no func": (lambda f: f(inp=[1.0], Tout=F), TypeError, r"func was not given"),
    "func no callable": (lambda f: f(3, [1.0], F), TypeError, r"func must be callable, got 3"),
    "decorator of no callable": (lambda f: f(Tout=F)(3), TypeError, r"func must be callable, got 3"),
    "inp a str": (lambda f: f(np.sin, "x", F), TypeError, r"inp is 'x'; expected a list"),
    "inp a dict": (lambda f: f(np.sin, {"x": 1.0}, F), TypeError, r"inp is .*expected a list"),
    "vmap_method": (
        lambda f: f(np.sin, [1.0], F, vmap_method="none"),
        ValueError,
        r"vmap_method='none'; expected one of 'sequential'",
    ),
    "casting": (lambda f: f(np.sin, [1.0], F, casting="safest"), ValueError, r"casting='safest'; expected one of"),
    "Tout a number": (lambda f: f(np.sin, [1.0], 3.0), TypeError, r"Tout has a leaf 3.0 of type float"),
    "Tout a shape": (lambda f: f(np.sin, [1.0], (3, 2)), TypeError, r"Tout has a leaf 3 of type int"),
    "Tout a word": (lambda f: f(np.sin, [1.0], "floaty"), TypeError, r"Tout has 'floaty', which is not a dtype"),
    "Tout object": (
        lambda f: f(np.sin, [1.0], object),
        TypeError,
        r"Tout has the dtype object, which JAX does not have",
    ),
    "Tout str": (lambda f: f(np.sin, [1.0], str), TypeError, r"Tout has the dtype <U0"),
    "Tout datetime": (lambda f: f(np.sin, [1.0], "datetime64[s]"), TypeError, r"Tout has the dtype datetime64"),
    "Tout record": (lambda f: f(np.sin, [1.0], np.dtype([("a", "f4")])), TypeError, r"which JAX does not have"),
    "Tout key dtype": (lambda f: f(np.sin, [1.0], jax.random.key(0).dtype), TypeError, r"Tout"),
    "shape of wrong type": (
        lambda f: f(np.sin, [1.0], F, output_shapes="ab"),
        TypeError,
        r"output_shapes has 'ab' where a shape",
    ),
    "shape a number": (lambda f: f(np.sin, [1.0], F, output_shapes=3), TypeError, r"output_shapes has 3 where a shape"),
    "dimension": (
        lambda f: f(np.sin, [1.0], F, output_shapes=(1.5,)),
        TypeError,
        r"output_shapes has the dimension 1.5",
    ),
    "negative dimension": (
        lambda f: f(np.sin, [1.0], F, output_shapes=(-1,)),
        ValueError,
        r"output_shapes has the dimension -1; write None",
    ),
    "shapes' structure": (
        lambda f: f(np.sin, [1.0], [F, F], output_shapes=[()]),
        ValueError,
        r"output_shapes must have the structure of Tout",
    ),
    "two shapes": (
        lambda f: f(np.sin, [1.0], jax.ShapeDtypeStruct((3,), F), output_shapes=(4,)),
        ValueError,
        r"Tout gives the shape \(3,\) and output_shapes gives \(4,\)",
    ),
}


@pytest.mark.parametrize(("call", "error", "text"), WRONG_CALLS.values(), ids=WRONG_CALLS)
@pytest.mark.parametrize("function", [jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func])
def test_wrong_call_says_what_to_write(function, call, error, text):
    with pytest.raises(error, match=text) as caught:
        call(function)
    assert str(caught.value).startswith(f"{function.__name__}"), "the error names the function"


@pytest.mark.parametrize("vjp", [3, "x", [np.sin]])
@pytest.mark.parametrize("function", [jaxpyop.numpy_function, jaxpyop.py_func])
def test_vjp_must_be_callable(function, vjp):
    with pytest.raises(TypeError, match=r"vjp must be a function f\(inputs, outputs, cotangents\)"):
        function(np.sin, [1.0], F, vjp=vjp)


CONTRIB_WRONG = {
    "args no list": (lambda f: f(np.sin, 1.0, output_types=F), r"args is 1.0; expected a list or tuple"),
    "kwargs no dict": (lambda f: f(np.sin, [1.0], [2.0], F), r"kwargs is \[2.0\]; expected a dict"),
    "func no callable": (lambda f: f(None, [1.0], None, F), r"func must be callable"),
}


@pytest.mark.parametrize(("call", "text"), CONTRIB_WRONG.values(), ids=CONTRIB_WRONG)
def test_wrong_contrib_call(call, text):
    with pytest.raises(TypeError, match=text):
        call(jaxpyop.contrib.framework.py_func)


async def coroutine(x):
    return x


async def async_generator(x):
    yield x


def generator(x):
    yield x


class AsyncCall:
    async def __call__(self, x):
        return x


class GeneratorMethods:
    def body(self, x):
        yield x

    async def coroutine(self, x):
        return x


NOT_PLAIN = {
    "async": (coroutine, "async function"),
    "async generator": (async_generator, "async function"),
    "generator": (generator, "generator function"),
    "partial of async": (functools.partial(coroutine), "async function"),
    "partial of generator": (functools.partial(generator), "generator function"),
    "async __call__": (AsyncCall(), "async function"),
    "generator method": (GeneratorMethods().body, "generator function"),
    "async method": (GeneratorMethods().coroutine, "async function"),
}


@pytest.mark.parametrize(("func", "text"), NOT_PLAIN.values(), ids=NOT_PLAIN)
@both_sides
def test_async_and_generator_functions_are_refused_at_once(api, func, text):
    with pytest.raises(TypeError, match=rf"func is an? {text}.*write a plain function"):
        api(func, [1.0], F)


@pytest.mark.parametrize("function", [jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func])
def test_decorator_refuses_async(function):
    with pytest.raises(TypeError, match="async function"):
        function(Tout=F)(coroutine)


# ----------------------------------------------------------------- decorators

DECORATORS = [jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func]
every_decorator = pytest.mark.parametrize("function", DECORATORS)


@every_decorator
def test_decorator(function, route):
    @function(Tout=F)
    def scaled(x, m=2.0, *, by=1.0):
        """Scale."""
        return x * m * by

    assert scaled.__name__ == "scaled"
    assert scaled.__doc__ == "Scale."
    three = F(3)
    assert route(lambda x: scaled(x), three) == 6
    assert route(lambda x: scaled(x, 3.0), three) == 9
    assert route(lambda x: scaled(x, m=3.0), three) == 9
    assert route(lambda x: scaled(x, by=x), three) == 18
    assert route(lambda x: scaled(x=x, m=x, by=x), three) == 27


@every_decorator
def test_decorated_method_classmethod_staticmethod(function, route):
    class Model:
        factor = 2.0

        def __init__(self, w):
            self.w = w

        @function(Tout=F)
        def plain(self, x):
            return x * self.w

        @classmethod
        @function(Tout=F)
        def of_class(cls, x):
            return x * cls.factor

        @staticmethod
        @function(Tout=F)
        def static(x, y=1.0):
            return x + y

    model = Model(5.0)
    assert route(lambda x: model.plain(x), F(3)) == 15
    assert route(lambda x: model.plain(x=x), F(3)) == 15
    assert route(lambda x: Model.of_class(x), F(3)) == 6
    assert route(lambda x: Model.static(x), F(3)) == 4


@every_decorator
def test_decorator_with_all_options(function, route):
    @function(Tout=[F, jnp.int32], name="both", output_shapes=[(2,), ()], stateful=True)
    def body(x):
        return [x[:2], len(x)]

    a, n = route(body, jnp.arange(3.0))
    np.testing.assert_array_equal(a, [0, 1])
    assert n == 3


@every_decorator
def test_decorator_of_an_op_without_inputs_or_results(function, route):
    runs = []

    @function(Tout=None)
    def log():
        runs.append(1)

    assert route(log) is None
    assert runs == [1]


@every_decorator
def test_decorated_errors_are_those_of_the_call(function):
    @function(Tout=F)
    def body(x, y):
        return x

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
        body(1.0)
