"""Errors that people meet first: what they say to write instead."""

import jax
import jax.export
import numpy as np
import pytest

import jaxpyop
from tests.errors.exceptions import F, X
from tests.shared.checks import run
from tests.shared.functions import both_sides, every_api, numpy_function, py_func

SIGNATURES = {
    "too many": (lambda x: x, [X, X], r"'lambda': func is called with 2 arguments, one for each element of inp, which"),
    "too few": (lambda x, y: x, [X], r"func is called with 1 arguments, one for each .*missing 1 required positional"),
    "none": (lambda x: x, [], r"func is called with 0 arguments"),
    "keyword only": (lambda *, x: x, [X], r"func is called with 1 arguments, "),
}


@pytest.mark.parametrize(("func", "inp", "text"), SIGNATURES.values(), ids=SIGNATURES)
@both_sides
def test_a_function_of_another_signature(api, func, inp, text):
    op = lambda: api(func, inp, F, output_shapes=(3,))
    for call in (op, jax.jit(op)):
        with pytest.raises(TypeError, match=text):
            run(call)


@pytest.mark.parametrize("vjp", [lambda x, y: x, lambda ct: ct, lambda a, b, c, d: a], ids=["two", "one", "four"])
def test_a_vjp_of_another_signature(vjp):
    text = r"numpy_function 'sin': vjp is called with \(inputs, outputs, cotangents\), which it does not take"
    with pytest.raises(TypeError, match=text):
        jax.grad(lambda x: numpy_function(np.sin, [x], F, vjp=vjp))(1.0)


def test_a_type_error_inside_the_function_is_its_own():
    for func, text in ((lambda x: len(3), "object of type 'int' has no len"), (lambda x: (lambda a: a)(), "missing 1")):
        with pytest.raises(TypeError, match=text) as caught:
            numpy_function(func, [X], F)
        assert "is called with" not in str(caught.value)


def test_a_read_only_array_of_the_functions_own_is_its_own_error():
    mine = np.zeros(3)
    mine.flags.writeable = False
    with pytest.raises(ValueError, match=r"^assignment destination is read-only"):
        py_func(lambda: mine.__setitem__(0, 1), [], None)


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit, jaxpyop.jit], ids=["direct", "jit", "cut"])
def test_a_nan_under_debug_nans_names_the_op(jit):
    op = lambda x: py_func(lambda x: x * np.nan, [x], F, name="bad") + 1
    text = "'bad': func returned a value that jax_debug_nans forbids"
    if jax.__version_info__ < (0, 10, 2):
        text = "invalid value"  # JAX looks at the values of the next operation only
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=text):
        jax.block_until_ready(jit(op)(X))


OF_TENSORS = {
    "numpy": (lambda x: x.numpy(), r"np.asarray\(x\), float\(x\) or x.item\(\)"),
    "get_shape": (lambda x: x.get_shape(), "x.shape"),
    "as_list": (lambda x: x.shape.as_list(), r"list\(x.shape\)"),
}


@pytest.mark.parametrize(("func", "instead"), OF_TENSORS.values(), ids=OF_TENSORS)
@every_api
def test_a_method_of_tensors(api, func, instead):
    op = lambda x: api(func, [x], F, output_shapes=(3,), name="mine")
    for call in (op, jax.jit(op), lambda x: jax.vjp(op, x)):
        with pytest.raises(AttributeError, match=rf"^\S+ 'mine': func gets no tensors: write {instead}"):
            run(call, X)


def test_a_text_is_no_tensor():
    with pytest.raises(AttributeError, match=r"a text comes as it is; leave .numpy\(\).decode\(\) out"):
        py_func(lambda path: len(path.numpy().decode()), [jaxpyop.static("file.wav")], F)


def raises(error):
    raise error


# What a function does with a number, and whether `jaxpyop.static` may help.
WITH_A_NUMBER = {
    "a key": (lambda n: {3: 1.0}[n], True),
    "repeats a list": (lambda n: len([0.5] * n), True),
    "needs an int": (lambda n: len(range(n + 0.5)), True),
    "its own complaint": (lambda n: raises(TypeError("no such colour")), False),
    "another number": (lambda n: len(3), False),
}


@pytest.mark.parametrize(("func", "helps"), WITH_A_NUMBER.values(), ids=WITH_A_NUMBER)
def test_static_is_advised_for_errors_that_it_may_end(func, helps):
    with pytest.raises(TypeError) as caught:
        jaxpyop.py_function(func, [3], F)
    assert any("jaxpyop.static(3)" in note for note in caught.value.__notes__) is helps


@both_sides
def test_jax_export_says_what_to_do(api):
    f = jax.jit(lambda x: api(lambda x: x * 2, [x], F, output_shapes=(3,)))
    text = (
        r"'lambda': a Python function belongs to its process, so jax.export cannot .*; use jaxpyop.export, export the"
    )
    with pytest.raises((NotImplementedError, ValueError), match=text):
        jax.export.export(f)(X)


def test_coroutines_and_generators_that_were_never_run():
    """Python gives no warning of a coroutine that nobody awaited, after the error."""

    async def coroutine():
        return 1.0

    def generator():
        yield 1.0

    async def async_generator():
        yield 1.0

    for make, kind in ((coroutine, "coroutine"), (generator, "generator"), (async_generator, "async_generator")):
        for tout in (F, [F], None):
            with pytest.raises(TypeError, match=rf"func returned an? {kind}, which was never run"):
                numpy_function(lambda: make(), [], tout)  # noqa: B023
