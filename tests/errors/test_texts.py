"""The texts of errors while a function runs: the op, its line, the inputs, the user's traceback; wrong calls elsewhere.

A test for the text of a new error belongs here if the text comes while a function runs or after it has returned.
Wrong calls are in tests/functions/test_keywords.py, wrong dtypes in tests/functions/test_casting.py, and advice to
beginners is in test_advice.py.
"""

import functools
import pathlib
import re
import sys
import traceback
import types

import jax
import jax.numpy as jnp
import jaxlib
import ml_dtypes
import numpy as np
import pytest

import jaxpyop
from tests.errors.exceptions import JAX_ERRORS, F, X, finish, raised_by
from tests.errors.exceptions import fail as broken
from tests.shared.functions import every_api, numpy_function, py_func, py_function

N = jnp.int32(3)


def helper(value):
    raise LookupError(f"no entry {value}")


def user_body(x, n):
    y = x * 2
    return helper(float(np.asarray(y).ravel()[0]))


def fail(x):
    raise LookupError("no entry")


def text_of(run, *args):
    """The text of the error that a program raises, its notes included."""
    return "".join(traceback.format_exception_only(raised_by(finish, run, *args)))


# The packages' own folders, because a clone of this project may lie in a folder that is called jaxpyop too.
LIBRARIES = [pathlib.Path(package.__file__).parent for package in (jaxpyop, jax, jaxlib)]


def assert_no_library_frames(text):
    files = re.findall(r'File "([^"]+)"', text)
    assert files, "the text has a traceback"
    assert [name for name in files if any(map(pathlib.Path(name).is_relative_to, LIBRARIES))] == []


@every_api
def test_what_the_text_says(api):
    f = jax.jit(lambda x, n: api(user_body, [x, n], F, name="lookup", output_shapes=(3,)))
    for _ in range(3):
        error = raised_by(finish, f, X, N)
        assert isinstance(error, JAX_ERRORS)
    name = {"contrib": "contrib.framework.py_func"}.get(api.__name__, api.__name__)
    for part in (
        f"{name} 'lookup' failed: LookupError: no entry 1.0",
        f"function: user_body, {__file__}:{user_body.__code__.co_firstlineno}\n",
        "inputs: x=float32[3] [ 0.5 -1.   2. ], n=int32[] 3\n",
        "jaxpyop.reraise()",
        "Traceback (most recent call last)",
        f'File "{__file__}", line {helper.__code__.co_firstlineno + 1}, in helper',
        'raise LookupError(f"no entry {value}")',
        "return helper(float(np.asarray(y).ravel()[0]))",
        "LookupError: no entry 1.0",
    ):
        assert part in str(error), part
    assert_no_library_frames(str(error))


def chain(x):
    try:
        helper(1)
    except LookupError as error:
        raise ValueError("outer") from error


def with_note(x):
    error = ValueError("mine")
    error.add_note("a note of the user's")
    raise error


def group(x):
    raise ExceptionGroup("several", [ValueError("first of two"), KeyError("second of two")])


TEXTS = {
    "a chain": (chain, ["no entry 1", "direct cause of the following exception", "outer"]),
    "a note": (with_note, ["a note of the user's"]),
    "a group": (group, ["first of two", "second of two"]),
    "a syntax error": (lambda x: compile("1 +", "made.py", "eval"), ["made.py"]),
    "an error of JAX": (lambda x: jnp.dot(x, jnp.ones((7, 7))), ["jnp.dot(x, jnp.ones((7, 7)))"]),
}


@pytest.mark.parametrize(("body", "parts"), TEXTS.values(), ids=TEXTS)
def test_the_text_has_what_python_would_show(body, parts):
    text = text_of(jax.jit(lambda x: py_func(body, [x], F)), X)
    assert all(part in text for part in parts), text
    assert_no_library_frames(text.replace("made.py", __file__))


KINDS = {
    "function": (lambda: user_body, "user_body"),
    "lambda": (lambda: lambda x, n: helper(1), "lambda"),
    "partial": (lambda: functools.partial(user_body), "user_body"),
    "callable object": (lambda: type("Thing", (), {"__call__": lambda self, x, n: helper(1)})(), "Thing"),
    "ufunc": (lambda: np.frompyfunc(lambda x, n: helper(1), 2, 1), "<lambda>|ufunc"),
    "jitted": (lambda: jax.jit(user_body), "user_body"),
}


@pytest.mark.parametrize(("make", "name"), KINDS.values(), ids=KINDS)
def test_every_kind_of_callable_is_named(make, name):
    text = text_of(jax.jit(lambda x, n: numpy_function(make(), [x, n], F, output_shapes=(3,))), X, N)
    assert re.search(rf"function: .*({name})", text)


def test_an_error_about_a_result_is_said_once():
    """And not with the advice to use reraise(), which would say the same."""
    for body in (lambda x: np.ones(2), lambda x: x + 1j, lambda x: (x, x)):
        text = text_of(jax.jit(lambda x: py_func(body, [x], F, output_shapes=())), 1.0)  # noqa: B023
        assert text.count("func returned") == 1
        assert "reraise" not in text


def test_what_to_write_comes_first():
    text = text_of(jax.jit(lambda x: numpy_function(lambda x: x.mean(), [x], F, name="metric")), X)
    wanted = "Error: numpy_function 'metric': write output_shapes=(), or that shape in Tout: func returned"
    assert wanted in text
    assert text.count("write output_shapes") == 1
    assert "failed: ValueError" not in text


def test_a_cell_of_a_notebook_is_named_as_it_is_there(monkeypatch):
    names = lambda file: ("Cell", "In[7]") if file == "/tmp/cell_1.py" else None  # what IPython knows of its cells
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(format_code_name=names))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    namespace = {}
    exec(compile("def pick(x):\n    raise KeyError(int(x))", "/tmp/cell_1.py", "exec"), namespace)
    text = text_of(jax.jit(lambda x: py_func(namespace["pick"], [x], F)), 1.0)
    assert "pick, Cell In[7]:1" in text
    assert 'File "Cell In[7]", line 2, in pick' in text
    assert "/tmp/cell_1.py" not in text


# --------------------------------------------------------------- the inputs shown

ALL, ONE = "inputs: x=float32[3] [ 0.5 -1.   2. ], n=int32[] 3", "inputs: x=float32[] 0.5, n=int32[] 3"
BLOCK = "inputs: x=float32[3] [ 0.5 -1.   2. ], n=int32[1] [3]"


def op(x, n=N, **options):
    return numpy_function(user_body, [x, n], F, name="mine", output_shapes=(), **options)


ROUTES = {
    "direct": (op, ALL),
    "jit": (jax.jit(op), ALL),
    "jaxpyop.jit": (jaxpyop.jit(lambda x: op(x) * 2), ALL),
    "vmap": (jax.vmap(op), ONE),
    "jit of vmap": (jax.jit(jax.vmap(op)), ONE),
    "block": (jax.jit(jax.vmap(lambda x: op(x, vmap_method="expand_dims"))), BLOCK),
    "grad": (jax.grad(lambda x: py_function(user_body, [x, N], F, output_shapes=())), ALL),
    "when": (jax.jit(lambda x: op(x, when=x[0] > 0)), ALL),
    "scan": (jax.jit(lambda x: jax.lax.scan(lambda c, x: (c, op(x)), 0, x)), ONE),
}


@pytest.mark.parametrize(("run", "text"), ROUTES.values(), ids=ROUTES)
def test_the_inputs_are_shown_once(run, text):
    """Under vmap those of one element."""
    shown = text_of(run, X)
    assert shown.count(text) == shown.count("inputs: ") == 1


Odd = type("Odd", (), {"__repr__": broken})
OddArray = type("OddArray", (), {"shape": (), "dtype": np.dtype("float32"), "size": 1, "__array__": broken})
VALUES = {
    "eight elements": (np.arange(8, dtype=np.int8), "int8[8] [0 1 2 3 4 5 6 7]"),
    "nine elements": (np.arange(9, dtype=np.int8), "int8[9]"),
    "a long text": (np.full(8, 1.2345678e-30 + 1e-20j, np.complex64), "complex64[8]"),
    "bfloat16": (np.array([0.5], ml_dtypes.bfloat16), "bfloat16[1] [0.5]"),
    "a number": (2.5, "float32[] 2.5"),
    "a text": ("a password", "str"),
    "texts": (np.array(["a", "password"]), "str256[2]"),
    "an object without a text": (Odd(), "Odd"),
    "an object like an array": (OddArray(), "float32[]"),
    "a class": ((np.float32, 1.0), "x[0]=type, x[1]=float32[] 1."),
    "a dict": ({"a": np.int32(1), "b": [np.int32(2)]}, "x['a']=int32[] 1, x['b'][0]=int32[] 2"),
    "many": ([np.int8(1)] * 20, "x[15]=int8[] 1, and 4 more"),
    "none": (None, "none"),
}


@pytest.mark.parametrize(("value", "text"), VALUES.values(), ids=VALUES)
def test_small_arrays_are_shown_and_secrets_are_not(value, text):
    shown = text_of(lambda: numpy_function(fail, [value], F))
    assert "no entry" in shown
    assert re.search(rf"inputs: .*{re.escape(text)}$", shown, re.MULTILINE)
    assert "password" not in shown.replace("str256[2]", "")


def test_a_key_and_the_result_to_fill_are_not_shown():
    def fill(x, out):
        raise LookupError("no entry")

    assert "inputs: x=float32[3] [ 0.5 -1.   2. ]\n" in text_of(lambda: numpy_function(fill, [X], F, out=True))
    shown = text_of(jax.jit(lambda: py_function(fail, [jax.random.key(7)], F, output_shapes=())))
    assert "inputs: x=key<fry>[]\n" in shown


NAMES = {
    "many": (lambda *args, **more: helper(1), "args[0]=int32[] 1, more['b']=int32[] 2"),
    "no signature": (max, "int32[] 1, int32[] 2"),
    "does not fit": (lambda a: a, "int32[] 1, int32[] 2"),
}


@pytest.mark.parametrize(("func", "text"), NAMES.values(), ids=NAMES)
def test_inputs_have_the_names_of_the_functions_arguments(func, text):
    decorated = jaxpyop.numpy_function(Tout=F)(func)
    assert f"inputs: {text}\n" in text_of(lambda: decorated(np.int32(1), b=np.int32(2)))


def test_an_exception_that_is_raised_again_has_the_last_inputs_only():
    error = LookupError("no entry")

    def fail(x):
        raise error

    for value in (1, 2, 3):
        shown = text_of(lambda: numpy_function(fail, [value], F))  # noqa: B023
        assert re.findall(r"inputs: .*", shown) == [f"inputs: x=int32[] {value}"]


# -------------------------------------------------------------------- rules


def rule_that_fails(*args):
    raise LookupError("no entry")


def wrong_shape(*args):
    return np.ones(7), None


def fwd(x, y):
    return x * y, {"slope": y, "solver": Odd()}


PLAIN = "inputs: float32[] 0.5, float32[] 2.\n  outputs: float32[] 1.\n  {}: float32[] 1.\n"
FILLED = "inputs: args[0]=float32[] 0.5, args[1]=float32[] 2.\n"
RULES = {
    "vjp": ({"vjp": rule_that_fails}, PLAIN.format("cotangents")),
    "vjp, wrong shape": ({"vjp": wrong_shape}, f"inputs of the derivative: {', '.join(['float32[]'] * 4)}\n"),
    "bwd": ({"vjp": (fwd, rule_that_fails)}, "residuals: float32[] 2., Odd\n  cotangents: float32[] 1.\n"),
    "fwd": ({"vjp": (rule_that_fails, wrong_shape)}, FILLED),
    "jvp": ({"jvp": rule_that_fails}, PLAIN.format("tangents")),
}


@pytest.mark.parametrize(("options", "text"), RULES.values(), ids=RULES)
def test_the_error_of_a_rule_has_a_line_for_each_group(options, text):
    op = lambda x: numpy_function(lambda x, y: x * y, [x, F(2)], F, **options)
    take = (lambda x: jax.jvp(op, (x,), (x * 0 + 1,))[1]) if "jvp" in options else jax.grad(op)
    assert f"  {text}" in text_of(jax.jit(jax.vmap(take)), X)


def test_the_error_of_a_rule_names_the_rule_and_its_line():
    step = jax.jit(jax.grad(lambda x: numpy_function(np.sin, [x], F, vjp=rule_that_fails)))
    line = rule_that_fails.__code__.co_firstlineno
    assert f"function: rule_that_fails, {__file__}:{line}\n" in text_of(step, 1.0)
