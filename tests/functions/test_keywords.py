"""The names, keywords, defaults and aliases of the four functions, and calls that are written wrong.

A new keyword of a function begins here: add it to `KEYWORDS`, with its default, and to `WRONG` what it refuses.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop

F = jnp.float32
S = jax.ShapeDtypeStruct
X = jnp.arange(3.0)
FUNCTIONS = [jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func]
contrib = jaxpyop.contrib.framework.py_func

# The keywords of all four functions and their defaults, and those of the NumPy ones.
KEYWORDS = (
    "ordered=False when=None vmap_method='sequential' executor=None casting='same_kind' on_error='raise'"
    " vjp=None jvp=None"
)
OF_NUMPY = f"{KEYWORDS} transpose=None copy=True out=False"
SIGNATURES = [
    (FUNCTIONS[0], "func inp Tout name", f"output_shapes=None stateful=False {KEYWORDS} mode=None max_steps=None"),
    (FUNCTIONS[1], "func inp Tout stateful name", f"output_shapes=None {OF_NUMPY}"),
    (FUNCTIONS[2], "func inp Tout stateful name", f"output_shapes=None {OF_NUMPY}"),
    (contrib, "func args kwargs output_types output_shapes stateful name", OF_NUMPY),
]


@pytest.mark.parametrize(("function", "positional", "keywords"), SIGNATURES)
def test_positional_arguments_are_tensorflows_and_keywords_have_their_defaults(function, positional, keywords):
    parameters = inspect.signature(function).parameters.values()
    assert " ".join(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD) == positional
    assert " ".join(f"{p.name}={p.default!r}" for p in parameters if p.kind is p.KEYWORD_ONLY) == keywords
    for part in ("Args:", "Returns:", "Raises:", "Example:", *(f"    {p.name}: " for p in parameters)):
        assert part in function.__doc__, part


def test_the_old_names_of_tensorflow_are_stateful_by_default():
    stateful = [inspect.signature(f).parameters["stateful"].default for f in (*FUNCTIONS, contrib)]
    assert stateful == [False, False, True, True]
    effects = [bool(jax.make_jaxpr(lambda x, f=f: f(np.sin, [x], Tout=F))(X).effects) for f in FUNCTIONS]
    assert effects == [False, False, True]


def test_aliases_are_the_functions_themselves():
    v1, v2 = jaxpyop.compat.v1, jaxpyop.compat.v2
    assert v1.py_func is jaxpyop.py_func
    assert v1.py_function is v2.py_function is jaxpyop.py_function
    assert v1.numpy_function is v2.numpy_function is jaxpyop.numpy_function
    assert not hasattr(v2, "py_func")


def test_positional_calls_as_in_tensorflow():
    assert jaxpyop.py_function(jnp.negative, [F(2)], F, "neg") == -2
    assert jaxpyop.numpy_function(np.negative, [F(2)], F, True, "neg") == -2
    assert jaxpyop.py_func(np.negative, [F(2)], F, False, "neg") == -2
    assert contrib(lambda x, by: x * by, [F(2)], {"by": 3}, F, (), True, "times") == 6


def test_keyword_arguments_of_contrib():
    body = lambda x, *, by, shift: {"out": x * by["f"] + shift, "n": len(x)}
    types, shapes = {"out": F, "n": jnp.int32}, {"out": (3,), "n": ()}
    kwargs = {"shift": 1.0, "by": {"f": F(2)}}
    out = jax.jit(lambda x: contrib(body, args=[x], kwargs=kwargs, output_types=types, output_shapes=shapes))(X)
    np.testing.assert_array_equal(out["out"], [1, 3, 5])
    assert out["n"] == 3
    assert contrib(lambda: 3, output_types=jnp.int32) == 3


# What is wrong in a call f(func=np.sin, inp=[1.0], Tout=float32); None leaves an argument out.
WRONG = {
    "no Tout": ({"Tout": None}, TypeError, r"Tout was not given; write .*Tout="),
    "no Tout and no inp": ({"Tout": None, "inp": None}, TypeError, r"as a decorator, @\w+\(Tout=jnp.float32\)"),
    "nothing": ({"func": None, "Tout": None, "inp": None}, TypeError, "Tout was not given"),
    "no inp": ({"inp": None}, TypeError, r"inp is None; expected a list of inputs.* later, \w+\(Tout=...\)\(func\)"),
    "no func": ({"func": None}, TypeError, r"func must be a function, as in \w+\(func, inp, Tout\), got None"),
    "a name that is a dtype": ({"name": F}, TypeError, r"name is <class .*float32'>; expected .*inp=\[x, y\]"),
    "a state that is a dtype": ({"stateful": F}, TypeError, r"stateful is <class .*float32'>; expected"),
    "ordered a word": ({"ordered": "yes"}, TypeError, "ordered is 'yes'; expected True or"),
    "inp a str": ({"inp": "x"}, TypeError, "inp is 'x'; expected a list"),
    "inp a dict": ({"inp": {"x": 1.0}}, TypeError, "inp is .*expected a list"),
    "vmap_method": ({"vmap_method": "none"}, ValueError, "vmap_method='none'; expected one of 'sequential'"),
    "casting": ({"casting": "safest"}, ValueError, "casting='safest'; expected one of"),
    "Tout a number": ({"Tout": 3.0}, TypeError, "Tout has a leaf 3.0 of type float"),
    "Tout a shape": ({"Tout": (3, 2)}, TypeError, "Tout has a leaf 3 of type int"),
    "Tout a word": ({"Tout": "floaty"}, TypeError, "Tout has 'floaty', which is not a dtype"),
    "Tout object": ({"Tout": object}, TypeError, "Tout has the dtype object, which JAX does not have"),
    "shape of wrong type": ({"output_shapes": "ab"}, TypeError, "output_shapes has 'ab' where a shape"),
    "shape a number": ({"output_shapes": 3}, TypeError, "output_shapes has 3 where a shape"),
    "dimension": ({"output_shapes": (1.5,)}, ValueError, "output_shapes has the dimension 1.5; expected a size"),
    "negative dimension": ({"output_shapes": (-1,)}, ValueError, "output_shapes has the dimension -1; .* or None"),
    "two shapes": ({"Tout": S((3,), F), "output_shapes": (4,)}, ValueError, r"gives the shape \(3,\) .*gives \(4,\)"),
    "misspelt Tout": ({"tout": F}, TypeError, "unexpected keyword argument 'tout'; it has func, inp, Tout, "),
    "pure_callback's order": ({"inp": S((3,), F), "Tout": X}, TypeError, "the order is func, inp, Tout"),
    "its order, with structs": ({"inp": [S((3,), F)], "Tout": X}, TypeError, "the order is func, inp, Tout"),
    "its order, with a dtype": ({"inp": F, "Tout": [X]}, TypeError, "the order is func, inp, Tout"),
}


@pytest.mark.parametrize(("written", "error", "text"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_names_the_function_and_says_what_to_write(written, error, text):
    for function in FUNCTIONS:
        arguments = {"func": np.sin, "inp": [1.0], "Tout": F} | written
        with pytest.raises(error, match=text) as caught:
            function(**{name: value for name, value in arguments.items() if value is not None})
        assert str(caught.value).startswith(function.__name__)


CONTRIB_WRONG = {
    "args no list": ({"args": 1.0}, r"args is 1.0; expected a list or tuple"),
    "kwargs no dict": ({"kwargs": [2.0]}, r"kwargs is \[2.0\]; expected a dict"),
    "func no callable": ({"func": None}, r"func must be a function, as in contrib"),
    "misspelt": ({"output_type": F}, r"'output_type'; it has func, args, kwargs, output_types, "),
}


@pytest.mark.parametrize(("written", "text"), CONTRIB_WRONG.values(), ids=CONTRIB_WRONG)
def test_a_wrong_call_of_contrib(written, text):
    with pytest.raises(TypeError, match=text):
        contrib(**({"func": np.sin, "args": [1.0], "output_types": F} | written))
