"""The names, keywords, defaults and aliases of the four functions, and calls that are written wrong.

A new keyword of a function begins here: add it to `KEYWORDS`, with its default, and to `WRONG_CALLS` what it refuses.
"""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.functions import numpy_function

F = jnp.float32
S = jax.ShapeDtypeStruct
X = jnp.arange(3.0)
FUNCTIONS = [jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func, jaxpyop.contrib.framework.py_func]
three_functions = pytest.mark.parametrize("function", FUNCTIONS[:3])

# The keyword-only arguments and their defaults: those of all functions, and those that some have besides.
KEYWORDS = {
    "ordered": False,
    "when": None,
    "vmap_method": "sequential",
    "executor": None,
    "chunksize": None,
    "progress": False,
    "casting": "same_kind",
    "on_error": "raise",
    "vjp": None,
    "jvp": None,
}
OF_NUMPY = {"transpose": None, "copy": True, "out": False}
SIGNATURES = {
    "py_function": (
        jaxpyop.py_function,
        ["func", "inp", "Tout", "name"],
        {"output_shapes": None, "stateful": False, "mode": None, "max_steps": None} | KEYWORDS,
    ),
    "numpy_function": (
        jaxpyop.numpy_function,
        ["func", "inp", "Tout", "stateful", "name"],
        {"output_shapes": None} | KEYWORDS | OF_NUMPY,
    ),
    "py_func": (
        jaxpyop.py_func,
        ["func", "inp", "Tout", "stateful", "name"],
        {"output_shapes": None} | KEYWORDS | OF_NUMPY,
    ),
    "contrib": (
        jaxpyop.contrib.framework.py_func,
        ["func", "args", "kwargs", "output_types", "output_shapes", "stateful", "name"],
        KEYWORDS | OF_NUMPY,
    ),
}


@pytest.mark.parametrize(("function", "positional", "keywords"), SIGNATURES.values(), ids=SIGNATURES)
def test_positional_arguments_are_tensorflows_and_keywords_have_their_defaults(function, positional, keywords):
    parameters = inspect.signature(function).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == positional
    assert {p.name: p.default for p in parameters if p.kind is not p.POSITIONAL_OR_KEYWORD} == keywords


def test_the_old_names_of_tensorflow_are_stateful_by_default_where_jax_sees_it():
    stateful = [inspect.signature(f).parameters["stateful"].default for f in FUNCTIONS[1:]]
    assert stateful == [False, True, True]
    effects = lambda api: bool(jax.make_jaxpr(lambda x: api(np.sin, [x], Tout=F))(X).effects)
    assert [effects(api) for api in FUNCTIONS[:3]] == [False, False, True]


def test_aliases_are_the_functions_themselves():
    v1, v2 = jaxpyop.compat.v1, jaxpyop.compat.v2
    assert v1.py_func is jaxpyop.py_func
    assert v1.py_function is v2.py_function is jaxpyop.py_function
    assert v1.numpy_function is v2.numpy_function is jaxpyop.numpy_function
    assert not hasattr(v2, "py_func")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_help_describes_every_argument(function):
    for section in ("Args:", "Returns:", "Raises:", "Example:"):
        assert section in function.__doc__
    for name in inspect.signature(function).parameters:
        assert f"    {name}: " in function.__doc__, name


def test_positional_calls_as_in_tensorflow():
    assert jaxpyop.py_function(jnp.negative, [F(2)], F, "neg") == -2
    assert jaxpyop.numpy_function(np.negative, [F(2)], F, True, "neg") == -2
    assert jaxpyop.py_func(np.negative, [F(2)], F, False, "neg") == -2
    times = lambda x, by: x * by
    assert jaxpyop.contrib.framework.py_func(times, [F(2)], {"by": 3}, F, (), True, "times") == 6


def test_keyword_arguments_of_contrib():
    def body(x, *, by, shift):
        return {"out": x * by["f"] + shift, "n": len(x)}

    out = jaxpyop.contrib.framework.py_func(
        body,
        args=[X],
        kwargs={"shift": 1.0, "by": {"f": F(2)}},
        output_types={"out": F, "n": jnp.int32},
        output_shapes={"out": (3,), "n": ()},
    )
    np.testing.assert_array_equal(out["out"], [1, 3, 5])
    assert out["n"] == 3
    assert jaxpyop.contrib.framework.py_func(lambda: 3, output_types=jnp.int32) == 3


# --------------------------------------------------------------- wrong calls

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
    "Tout object": (lambda f: f(np.sin, [1.0], object), TypeError, r"Tout has the dtype object, which JAX does not"),
    "Tout str": (lambda f: f(np.sin, [1.0], str), TypeError, r"Tout has the dtype <U0"),
    "Tout datetime": (lambda f: f(np.sin, [1.0], "datetime64[s]"), TypeError, r"Tout has the dtype datetime64"),
    "Tout record": (lambda f: f(np.sin, [1.0], np.dtype([("a", "f4")])), TypeError, r"which JAX does not have"),
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
        lambda f: f(np.sin, [1.0], S((3,), F), output_shapes=(4,)),
        ValueError,
        r"Tout gives the shape \(3,\) and output_shapes gives \(4,\)",
    ),
}


@pytest.mark.parametrize(("call", "error", "text"), WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_a_wrong_call_says_what_to_write(call, error, text):
    for function in FUNCTIONS[:3]:
        with pytest.raises(error, match=text) as caught:
            call(function)
        assert str(caught.value).startswith(function.__name__), "the error names the function"


WRONG_OPTIONS = {
    "vjp a number": ({"vjp": 3}, r"vjp must be a function f\(inputs, outputs, cotangents\)"),
    "vjp a word": ({"vjp": "x"}, r"vjp must be a function f\(inputs, outputs, cotangents\)"),
    "vjp a list": ({"vjp": [np.sin]}, r"vjp must be a function f\(inputs, outputs, cotangents\)"),
}


@pytest.mark.parametrize(("options", "text"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_a_wrong_option_says_what_it_takes(options, text):
    with pytest.raises(TypeError, match=text):
        numpy_function(np.sin, [1.0], F, **options)


CONTRIB_WRONG = {
    "args no list": (lambda f: f(np.sin, 1.0, output_types=F), r"args is 1.0; expected a list or tuple"),
    "kwargs no dict": (lambda f: f(np.sin, [1.0], [2.0], F), r"kwargs is \[2.0\]; expected a dict"),
    "func no callable": (lambda f: f(None, [1.0], None, F), r"func must be callable"),
    "misspelt": (
        lambda f: f(np.sin, [1.0], output_types=F, output_type=F),
        r"'output_type'; did you mean output_types\?",
    ),
}


@pytest.mark.parametrize(("call", "text"), CONTRIB_WRONG.values(), ids=CONTRIB_WRONG)
def test_a_wrong_call_of_contrib(call, text):
    with pytest.raises(TypeError, match=text):
        call(jaxpyop.contrib.framework.py_func)


NEAR_MISSES = {
    "tout": "Tout",
    "Inp": "inp",
    "statefull": "stateful",
    "output_shape": "output_shapes",
    "vmapmethod": "vmap_method",
}


@pytest.mark.parametrize(("written", "meant"), NEAR_MISSES.items(), ids=NEAR_MISSES)
@three_functions
def test_a_misspelt_keyword_names_the_right_one(function, written, meant):
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{written}'; did you mean {meant}\?$"):
        function(np.sin, **{written: X})


def test_an_unknown_keyword_lists_the_known_ones():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'xyz'; it has func, inp, Tout, stateful, name, "):
        jaxpyop.numpy_function(np.sin, xyz=X)


ORDERS = {
    "struct": (S((3,), F), X),
    "structs": ([S((3,), F), S((), F)], X),
    "dtype": (F, X),
    "list": ([F, np.float32], [X]),
    "np.dtype": (np.dtype("f4"), X),
    "dict": ({"a": S((), F)}, [X]),
}


@pytest.mark.parametrize(("inp", "tout"), ORDERS.values(), ids=ORDERS)
def test_the_order_of_pure_callback_is_refused(inp, tout):
    for function in FUNCTIONS[:3]:
        with pytest.raises(TypeError, match="the order is func, inp, Tout"):
            function(np.sin, inp, tout)
    with pytest.raises(TypeError, match="the order is func, inp, Tout"):
        jax.jit(lambda x: jaxpyop.numpy_function(np.sin, inp, x))(X)


def test_a_dask_client_as_executor_says_what_to_pass():
    class Client:
        def submit(self, f):
            raise AssertionError

        get_executor = submit

    with pytest.raises(TypeError, match=r"executor is a Dask client.*pass client.get_executor\(\)"):
        numpy_function(np.sin, [X], F, vmap_method="parallel", executor=Client())
