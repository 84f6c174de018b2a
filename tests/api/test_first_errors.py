"""Errors that people meet first: the op and what to write come first, directly and under jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.util import Route, close, every_api, every_numpy_api, numpy_function, py_func, py_function, run

F = jnp.float32
S = jax.ShapeDtypeStruct
X = jnp.arange(3.0)
JIT = Route("jit", "auto", True)


ORDERS = {
    "struct": (S((3,), F), X),
    "structs": ([S((3,), F), S((), F)], X),
    "dtype": (F, X),
    "list": ([F, np.float32], [X]),
    "np.dtype": (np.dtype("f4"), X),
    "dict": ({"a": S((), F)}, [X]),
}


@pytest.mark.parametrize(("inp", "tout"), ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("api", [jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func])
def test_the_order_of_pure_callback(api, inp, tout):
    with pytest.raises(TypeError, match="the order is func, inp, Tout"):
        api(np.sin, inp, tout)
    with pytest.raises(TypeError, match="the order is func, inp, Tout"):
        jax.jit(lambda x: api(np.sin, inp, x))(X)


def test_a_dask_client():
    class Client:
        def submit(self, f):
            raise AssertionError

        def get_executor(self):
            raise AssertionError

    with pytest.raises(TypeError, match=r"executor is a Dask client.*pass client.get_executor\(\)"):
        numpy_function(np.sin, [X], F, vmap_method="parallel", executor=Client())


SIGNATURES = {
    "too many": (lambda x: x, [X, X], r"'lambda': func is called with 2 arguments, one for each element of inp, which"),
    "too few": (lambda x, y: x, [X], r"func is called with 1 argument, one for each .*missing 1 required positional"),
    "none": (lambda x: x, [], r"func is called with 0 arguments"),
    "keyword only": (lambda *, x: x, [X], r"func is called with 1 argument, "),
}


@pytest.mark.parametrize(("func", "inp", "text"), SIGNATURES.values(), ids=SIGNATURES)
@every_api
def test_a_function_of_another_signature(api, func, inp, text, route):
    with pytest.raises(TypeError, match=text), jaxpyop.reraise():
        route(lambda: api(func, inp, F, output_shapes=(3,)))


@pytest.mark.parametrize("vjp", [lambda x, y: x, lambda ct: ct, lambda a, b, c, d: a], ids=["two", "one", "four"])
def test_a_vjp_of_another_signature(vjp, route):
    f = lambda x: numpy_function(np.sin, [x], F, vjp=vjp).sum()
    text = r"numpy_function 'sin': vjp is called with three tuples, f\(inputs, outputs, cotangents\), which it does not"
    with pytest.raises(TypeError, match=text), jaxpyop.reraise():
        route(jax.grad(f), X)


def test_a_type_error_inside_func_is_its_own(route):
    def body(x):
        return len(3)

    def deeper(x):
        return (lambda a: a)()

    for func, text in ((body, "object of type 'int' has no len"), (deeper, "missing 1 required positional")):
        with pytest.raises(TypeError, match=text) as caught, jaxpyop.reraise():
            route(lambda func=func: py_func(func, [X], F))
        assert "is called with" not in str(caught.value)


@every_numpy_api
def test_writing_into_what_copy_false_lends(api, route):
    def double(x):
        x *= 2
        return x

    text = "func writes into an input, and copy=False lends inputs for reading"
    with pytest.raises(ValueError, match=text), jaxpyop.reraise():
        route(lambda x: api(double, [x], F, copy=False), X)


def test_a_read_only_array_of_the_functions_own_is_its_own_error(route):
    mine = np.zeros(3)
    mine.flags.writeable = False
    with pytest.raises(ValueError, match=r"^assignment destination is read-only"), jaxpyop.reraise():
        route(lambda: py_func(lambda: mine.__setitem__(0, 1), [], None))


@pytest.mark.parametrize("jit", [lambda op: op, jax.jit, lambda op: jax.jit(lambda x: op(x) + 1)])
@pytest.mark.parametrize("api", ["numpy_function", "py_func"])
def test_a_nan_under_debug_nans_names_the_op(api, jit):
    op = lambda x: getattr(jaxpyop, api)(lambda x: x * np.nan, [x], F, name="bad")
    with (
        jax.debug_nans(True),
        pytest.raises(FloatingPointError, match="'bad': func returned a value that jax_debug_nans forbids"),
    ):
        jax.block_until_ready(jit(op)(jnp.arange(3.0)))


class Model:
    def __init__(self, w):
        self.w = w
        self.other = np.ones(3)


def test_a_tracer_in_an_attribute_is_found_while_tracing():
    def f(w, x):
        model = Model(w)
        return py_function(lambda x: x * model.w, [x], F)

    with pytest.raises(ValueError, match=r"func uses 'model.w' from the code around it.*pass it through inp"):
        jax.jit(f)(2.0, X)

    def unused(w, x):
        model = Model(w)
        return numpy_function(lambda x: x * model.other, [x], F)

    close(jax.jit(unused)(2.0, X), X)


def test_a_tracer_deep_in_an_object_is_told_first():
    def f(w, x):
        models = {"a": [Model(w)]}
        return numpy_function(lambda x: x * models["a"][0].w, [x], F, name="step")

    with pytest.raises(Exception, match="pass it through inp") as caught:
        jax.block_until_ready(jax.jit(f)(2.0, X))
    text = (
        "PythonBodyError: numpy_function 'step': if func uses a traced value of the code around it, pass it through inp"
    )
    assert text in str(caught.value)


def test_the_line_to_write_comes_first():
    metric = lambda x: numpy_function(lambda x: x.mean(), [x], F, name="metric")
    with pytest.raises(Exception, match="metric") as caught:
        jax.block_until_ready(jax.jit(metric)(X))
    said = str(caught.value)
    text = "Error: numpy_function 'metric': write output_shapes=() (or Tout=jnp.float32(0), a scalar): func returned"
    assert text in said
    assert said.count("write output_shapes") == 1
    assert "failed: ValueError" not in said


SCALARS = {"jnp": jnp.float32(0), "np": np.float32(0), "an array": jnp.zeros(()), "struct": S((), F)}


@pytest.mark.parametrize("tout", SCALARS.values(), ids=SCALARS)
@every_api
def test_a_scalar_as_an_example_of_itself(api, tout, route):
    y = route(lambda x: api(lambda x: x.mean(), [x], tout), X)
    assert (y.shape, y.dtype, float(y)) == ((), F, 1.0)
    close(route(jax.vmap(lambda x: api(lambda x: x.mean(), [x], tout)), jnp.ones((4, 3))), np.ones(4))
    close(route(lambda x: api(lambda x: x.mean(), [x], jnp.float32(0)), X), 1.0)  # made where it is traced


def test_letting_all_records_go():
    calls = []

    def square(x):
        calls.append(1)
        return x**2

    f = jax.jit(lambda x: py_function(square, [x], jnp.float32(0)))
    y, pullback = jax.vjp(f, 3.0)
    jax.block_until_ready(y)
    del calls[:]
    jaxpyop.clear_records()
    close(run(pullback, 1.0)[0], 6)
    assert len(calls) == 1
    close(run(jax.grad(f), 3.0), 6)


@every_api
def test_the_numpy_method_of_tensorflow(api, route):
    text = r"^\S+ 'lambda': func gets (jax.Arrays|NumPy arrays): write np.asarray\(x\), float\(x\) or x.item\(\)"
    with pytest.raises(AttributeError, match=text), jaxpyop.reraise():
        route(lambda x: api(lambda x: x.numpy(), [x], F, output_shapes=(3,)), X)


def test_the_numpy_method_of_tensorflow_in_a_gradient():
    f = lambda x: py_function(lambda x: jnp.asarray(x.numpy()), [x], F)
    with pytest.raises(AttributeError, match=r"^\S+ 'lambda': func gets jax.Arrays.*np.asarray\(x\)"):
        jax.grad(f)(1.0)


NEAR_MISSES = {
    "tout": "Tout",
    "Inp": "inp",
    "statefull": "stateful",
    "output_shape": "output_shapes",
    "vmapmethod": "vmap_method",
}


@pytest.mark.parametrize(("written", "meant"), NEAR_MISSES.items(), ids=NEAR_MISSES)
@pytest.mark.parametrize("api", [jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func])
def test_a_misspelt_keyword_names_the_right_one(api, written, meant):
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{written}'; did you mean {meant}\?$"):
        api(np.sin, **{written: X})


def test_an_unknown_keyword_lists_the_known_ones():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'xyz'; it has func, inp, Tout, stateful, name, "):
        jaxpyop.numpy_function(np.sin, xyz=X)
    with pytest.raises(TypeError, match=r"'output_type'; did you mean output_types\?"):
        jaxpyop.contrib.framework.py_func(np.sin, [X], output_types=F, output_type=F)


WRONG_RESULTS = {
    "shape": (lambda x: x[:2], "func returned shape"),
    "dtype": (lambda x: x + 1j, "casting='same_kind' does not turn into"),
    "number": (lambda x: (x, x), "func returned a tuple of 2"),
}


@pytest.mark.parametrize(("func", "text"), WRONG_RESULTS.values(), ids=WRONG_RESULTS)
def test_the_text_of_a_wrong_result_says_nothing_of_reraise(func, text):
    f = jax.jit(lambda x: numpy_function(func, [x], F))
    with pytest.raises(Exception, match=text) as caught:  # JAX's class depends on the call.
        run(f, X)
    assert "reraise" not in str(caught.value)
