"""Errors show what a function or a rule was called with: names, types, and the values of small arrays."""

from __future__ import annotations

import concurrent.futures as cf
import multiprocessing
import re
import traceback

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxpyop
from tests.shared import workers
from tests.shared.error_cases import F, X, raised_by
from tests.shared.util import numpy_function, py_function


def fail(x, n):
    raise LookupError("no entry")


def text_of(run, *args):
    """The text of the error that a program raises, its notes included."""
    return "".join(traceback.format_exception_only(raised_by(lambda: jax.block_until_ready(run(*args)))))


N = jnp.int32(3)
ALL, ONE = "inputs: x=float32[3] [ 0.5 -1.   2. ], n=int32[] 3", "inputs: x=float32[] 0.5, n=int32[] 3"
BLOCK = "inputs: x=float32[3] [ 0.5 -1.   2. ], n=int32[1] [3]"


def op(x, n=N, **options):
    return numpy_function(fail, [x, n], F, name="mine", output_shapes=(), **options)


def tape(x):
    return py_function(fail, [x, N], F, name="mine", output_shapes=())


ROUTES = {
    "direct": (op, ALL),
    "jit": (jax.jit(op), ALL),
    "jaxpyop.jit": (jaxpyop.jit(lambda x: op(x) * 2), ALL),
    "vmap": (jax.vmap(op), ONE),
    "jit of vmap": (jax.jit(jax.vmap(op)), ONE),
    "threads": (jax.jit(jax.vmap(lambda x: op(x, vmap_method="parallel"))), "n=int32[] 3"),
    "block": (jax.jit(jax.vmap(lambda x: op(x, vmap_method="expand_dims"))), BLOCK),
    "tape": (jax.grad(tape), ALL),
    "jit of tape": (jax.jit(jax.grad(tape)), ALL),
    "when": (jax.jit(lambda x: op(x, when=x[0] > 0)), ALL),
    "scan": (jax.jit(lambda x: jax.lax.scan(lambda c, x: (c, op(x)), 0, x)), ONE),
}


@pytest.mark.parametrize(("run", "text"), ROUTES.values(), ids=ROUTES)
def test_the_inputs_are_shown_once(run, text, transport):
    shown = text_of(run, X)
    assert shown.count(text) == 1
    assert shown.count("inputs: ") == 1


def test_in_another_process():
    with cf.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        shown = text_of(jax.jit(jax.vmap(lambda x: numpy_function(workers.fail_at_two, [x], F, executor=pool))), X)
    assert "inputs: x=float32[] 2.\n" in shown
    assert "at batch index 2" in shown


def test_out_does_not_show_the_result():
    def fill(x, out):
        raise LookupError("no entry")

    shown = text_of(jax.jit(lambda x: numpy_function(fill, [x], F, out=True)), X)
    assert "inputs: x=float32[3] [ 0.5 -1.   2. ]\n" in shown


class Odd:
    def __repr__(self):
        raise RuntimeError("no text")


class OddArray:
    shape, dtype, size = (), np.dtype(np.float32), 1

    def __array__(self, *args, **kwargs):
        raise RuntimeError("no array")


VALUES = {
    "eight elements": (np.arange(8, dtype=np.int8), "int8[8] [0 1 2 3 4 5 6 7]"),
    "nine elements": (np.arange(9, dtype=np.int8), "int8[9]"),
    "two axes": (np.eye(2, dtype=np.float32), "float32[2,2] [[1. 0.]  [0. 1.]]"),
    "a long text": (np.full(8, 1.2345678e-30 + 1e-20j, np.complex64), "complex64[8]"),
    "nan and inf": (np.array([np.nan, -np.inf], np.float32), "float32[2] [ nan -inf]"),
    "empty": (np.zeros((0, 3), np.float32), "float32[0,3] []"),
    "bool": (np.array([True]), "bool[1] [ True]"),
    "bfloat16": (np.array([0.5], ml_dtypes.bfloat16), "bfloat16[1] [0.5]"),
    "int4": (np.array([-3], ml_dtypes.int4), "int4[1] [-3]"),
    "float8": (np.array([2.0], ml_dtypes.float8_e4m3fn), "float8_e4m3fn[1] [2]"),
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


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
@pytest.mark.parametrize(("value", "text"), VALUES.values(), ids=VALUES)
def test_values(value, text, jit):
    def fail(x):
        raise LookupError("no entry")

    call = lambda: numpy_function(fail, [value], F, output_shapes=())
    shown = text_of(jax.jit(call) if jit else call)
    assert "no entry" in shown
    assert re.search(rf"inputs: .*{re.escape(text)}$", shown, re.MULTILINE)
    assert "password" not in shown.replace("str256[2]", "")


def test_a_key_is_not_shown(transport):
    def fail(key):
        raise LookupError("no entry")

    shown = text_of(jax.jit(lambda: py_function(fail, [jax.random.key(7)], F, output_shapes=())))
    assert "inputs: key=key<fry>[]\n" in shown


FUNCTIONS = {
    "many": (lambda *args, **more: fail(1, 2), "args[0]=int32[] 1, more['b']=int32[] 2"),
    "no signature": (max, "int32[] 1, int32[] 2"),
    "does not fit": (lambda a: a, "int32[] 1, int32[] 2"),
}


@pytest.mark.parametrize(("func", "text"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_names(func, text):
    decorated = jaxpyop.numpy_function(Tout=F)(func)
    assert f"inputs: {text}\n" in text_of(lambda: decorated(np.int32(1), b=np.int32(2)))


def test_an_exception_that_is_raised_again_has_the_last_inputs_only():
    error = LookupError("no entry")

    def fail(x):
        raise error

    call = lambda x: numpy_function(fail, [x], F)
    for value in (1, 2, 3):
        assert re.findall(r"inputs: .*", text_of(call, value)) == [f"inputs: x=int32[] {value}"]


# ------------------------------------------------------------------------- rules


def rule_that_fails(*args):
    raise LookupError("no entry")


def wrong_shape(*args):
    return np.ones(7), None


def fwd(x, y):
    return x * y, {"slope": y, "solver": Odd()}


PLAIN = "inputs: float32[] 0.5, float32[] 2.\n  outputs: float32[] 1.\n  {}: float32[] 1.{}"
TYPES = "inputs: float32[], float32[]\n  outputs: float32[]\n  {}: float32[]{}\n"
BATCH = "inputs: float32[3] [ 0.5 -1.   2. ], float32[1] [2.]\n  outputs: float32[3] [ 1. -2.  4.]\n"
RULES = {
    "vjp": ({"vjp": rule_that_fails}, PLAIN.format("cotangents", "\n")),
    "vjp, wrong shape": ({"vjp": wrong_shape}, TYPES.format("cotangents", "")),
    "bwd": (
        {"vjp": (fwd, rule_that_fails)},
        "residuals: float32[] 2., Odd\n  cotangents: float32[] 1.\n",
    ),
    "bwd, wrong shape": (
        {"vjp": (fwd, wrong_shape)},
        "inputs: float32[], float32[]\n  cotangents: float32[]\n",
    ),
    "fwd": ({"vjp": (rule_that_fails, wrong_shape)}, "inputs: args[0]=float32[] 0.5, args[1]=float32[] 2.\n"),
    "jvp": ({"jvp": rule_that_fails}, PLAIN.format("tangents", "\n")),
    "jvp, wrong shape": ({"jvp": lambda *args: np.ones(7)}, TYPES.format("tangents", "")),
    "transpose": ({"transpose": rule_that_fails}, "cotangents: float32[] 1.\n"),
    "vjp of a block": (
        {"vjp": rule_that_fails, "vmap_method": "expand_dims"},
        BATCH + "  cotangents: float32[3] [1. 1. 1.]\n",
    ),
    "vjp of a block, wrong shape": (
        {"vjp": wrong_shape, "vmap_method": "expand_dims"},
        "inputs: float32[3], float32[1]\n  outputs: float32[3]\n  cotangents: float32[3]\n",
    ),
}


@pytest.mark.parametrize(("options", "text"), RULES.values(), ids=RULES)
def test_rules_name_their_groups(options, text, transport):
    op = lambda x: numpy_function(lambda x, y: x * y, [x, jnp.float32(2)], F, **options)
    if "transpose" in options:
        op = lambda x: numpy_function(lambda x: 2 * x, [x], F, **options)
    take = (lambda x: jax.jvp(op, (x,), (x * 0 + 1,))[1]) if "jvp" in options else jax.grad(op)
    assert f"  {text}" in text_of(jax.jit(jax.vmap(take)), X)
