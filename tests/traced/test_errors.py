"""Where Python raises because of a value, so does the program, at its end: the same error, with the line in a note."""

from __future__ import annotations

import functools
import inspect
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.traced.rows import F, op, raised_by

NAMED = 5.0


def asserts(x):
    assert x > 0, f"{NAMED} and {x}"
    return x * 2


def raises(x):
    if x < 0:
        raise ValueError("negative")
    return math.sqrt(x)


def raises_with_a_value(x):
    if x < 0:
        raise ValueError(f"negative: {x}")
    return x


def raises_one_of_two(x):
    if x < 0:
        if x < -1:
            raise ValueError("negative")
        raise KeyError("small")
    return x


def raises_what_a_variable_holds(x):
    error = ValueError("small") if x > -2 else KeyError("very small")
    if x < 0:
        raise error
    return x


def raises_in_a_call(x):
    return raises(x) + raises(x + 1)


def raises_in_a_turn(x):
    total = 0.0
    for k in range(int(x)):
        total += 1 / (3 - k)
    return total


def sets_an_item(x):
    items = [x, x * 3]
    items[int(x)] = x * 2
    return items[0] + items[1]


def bound_in_the_loop(x):
    while x > 1:
        last = x
        x = x / 2
    return last


def read_by_a_function_that_was_returned(x):
    def chosen(x):
        later = lambda: y
        if x > 0:
            return later
        y = x * 2
        return later

    return chosen(x)()


def the_first_error_counts(x):
    y = math.sqrt(x)
    return y + 1 / int(x + 1)


def an_error_before_a_loop_that_would_not_end(x):
    y = 1 / float(x)
    while y > 0:
        y = y + 1 if x == 0 else y - 1
    return y


# Each with an input for which Python raises, and one for which it does not.
RAISES = {
    "a division": (lambda x: x * (1 / float(x)), 0.0, 2.0),
    "a quotient of ints": (lambda x: 7 // int(x) * 1.0, 0.5, 2.0),
    "a root": (lambda x: math.sqrt(x), -1.0, 4.0),
    "a logarithm": (lambda x: math.log(x), 0.0, 2.0),
    "an exponential": (lambda x: math.exp(x), 1e4, 2.0),
    "a power that is too large": (lambda x: x * (float(x) ** 400.0 > 1), 1e30, 1.0),
    "a power of zero": (lambda x: float(x) ** -1.0, 0.0, 2.0),
    "a negative power": (lambda x: 2 ** x.astype(int) * 1.0, -1.0, 3.0),
    "a negative power of JAX": (lambda x: jnp.power(jnp.int32(2), int(x.astype(int))) * 1.0, -1.0, 3.0),
    "a negative number for a key": (
        lambda x: jax.random.uniform(jax.random.fold_in(jax.random.key(0), int(x.astype(int)))),
        -1.0,
        3.0,
    ),
    "an index": (lambda x: [1.0, 2.0][int(x)], 5.0, -2.0),
    "an item that is set": (sets_an_item, -3.0, -2.0),
    "an int of infinity": (lambda x: int(x) * 1.0, math.inf, 2.0),
    "an int of no number": (lambda x: x if int(x) > 3 else x * 2, math.nan, 2.0),
    "an int that does not fit": (lambda x: x.astype(jnp.int32) + int(x.astype(jnp.int32)) * 3 * 2**20, 1e4, 2.0),
    "an assert": (asserts, -1.0, 2.0),
    "a raise": (raises, -1.0, 4.0),
    "one of two": (raises_one_of_two, -0.5, 4.0),
    "a variable": (raises_what_a_variable_holds, -5.0, 4.0),
    "a call": (raises_in_a_call, -0.5, 4.0),
    "a turn of a loop": (raises_in_a_turn, 5.0, 3.0),
    "a variable without a value": (bound_in_the_loop, 0.5, 3.0),
    "a function that was returned": (read_by_a_function_that_was_returned, 0.5, -3.0),
    "the first": (the_first_error_counts, -1.0, 4.0),
    "before an endless loop": (an_error_before_a_loop_that_would_not_end, 0.0, 4.0),
}


@pytest.mark.parametrize(("body", "bad", "good"), RAISES.values(), ids=RAISES)
def test_the_program_raises_what_python_raises(body, bad, good):
    program = jax.jit(op(body, "traced"))
    wanted, got = raised_by(body, F(bad)), raised_by(program, F(bad))
    assert isinstance(got, type(wanted))
    first = inspect.getsourcelines(body)[1]
    lines = range(first, first + len(inspect.getsourcelines(body)[0])) if body is not raises_in_a_call else range(99)
    assert any(f"test_errors.py:{line}: `" in note for note in got.__notes__ for line in lines)
    np.testing.assert_allclose(program(F(good)), body(F(good)), rtol=1e-6)


@pytest.mark.slow
def test_the_text_is_that_of_python_and_names_what_the_program_does_not_know():
    texts = {asserts: "5.0 and {x}", raises: "negative", raises_with_a_value: "negative: {x}"}
    assert {body: str(raised_by(jax.jit(op(body, "traced")), F(-1))) for body in texts} == texts
    with pytest.raises(Exception, match=r"(?s)py_function 'raises'.*ValueError: negative.*`raise ValueError"):
        jax.jit(op(raises, "traced"))(F(-1)).block_until_ready()


@pytest.mark.parametrize("first", [-1.0, 4.0])
def test_a_direct_call_and_mode_auto_raise_too(first):
    assert type(raised_by(op(raises, "traced"), F(-1))) is ValueError
    assert type(raised_by(jax.jit(op(raises, "auto")), F(-1))) is ValueError
    assert "python_call" in str(jax.make_jaxpr(op(raises, "auto"))(first))
    assert "raises_traced" in str(jax.make_jaxpr(op(raises, "auto"))(first))


def constant(x):
    return 1 / float(x)


# What the program gives may not let XLA drop the check.
RESULTS = {
    "the input": (lambda x: x, F),
    "a float": (lambda x: 0.0, F),
    "an int": (lambda x: 0, jnp.int32),
    "true": (lambda x: True, jnp.bool_),
    "an array": (lambda x: jnp.zeros(3), jax.ShapeDtypeStruct((3,), F)),
    "a complex number": (lambda x: x + 0j, jnp.complex64),
}


@pytest.mark.parametrize(("body", "dtype"), RESULTS.values(), ids=RESULTS)
def test_it_raises_whatever_the_result_is(body, dtype):
    checked = lambda x: (raises(x), body(x))[1]
    program = jax.jit(lambda x: jaxpyop.py_function(checked, [x], dtype, mode="traced"))
    assert type(raised_by(program, F(-1))) is ValueError


XS = jnp.array([4.0, -1.0, 9.0])
AROUND = {
    "vmap": lambda f: jax.vmap(f)(XS),
    "grad": lambda f: jax.grad(f)(XS[1]),
    "grad of a constant": lambda f: jax.grad(lambda x: op(constant, "traced")(x))(XS[1] + 1),
    "jvp": lambda f: jax.jvp(f, (XS[1],), (XS[0],)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f))(XS),
    "scan": lambda f: jax.lax.scan(lambda c, x: (c + f(x), x), 0.0, XS),
    "while": lambda f: jax.lax.while_loop(lambda x: x > -3, lambda x: x - 1 + 0 * f(x), XS[0]),
    "cond": lambda f: jax.lax.cond(XS[0] > 0, f, jnp.sin, XS[1]),
    "one of two results": lambda f: (f(XS[1]), XS)[0],
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.filterwarnings("ignore:.*took the value of a differentiated")
def test_it_raises_under_transformations(around):
    error = raised_by(jax.jit(lambda: around(lambda x: op(raises, "traced")(x) + x)))
    assert type(error) is (ZeroDivisionError if around is AROUND["grad of a constant"] else ValueError)


def doubled_number(n):
    return int(n) * 2


@pytest.mark.parametrize(
    ("body", "named"), [(doubled_number, "return int(n) * 2"), (lambda n: doubled_number(n), "doubled_number(n)")]
)
def test_the_note_of_a_result_that_does_not_fit_names_what_is_returned(body, named):
    error = raised_by(jax.jit(lambda n: jaxpyop.py_function(body, [n], jnp.int32, mode="traced")), jnp.int32(2**30))
    assert f": `{named}`" in error.__notes__[0]


# --------------------------------------------------------------------------- what has no check


def counted(x):
    n = 0
    while x > 1 and n < 1000:
        x, n = x / 2, n + 1
    return x * n


NEVER = {
    "arrays": lambda x: jnp.sqrt(1 / x),
    "a counter": counted,
    "a constant divisor": lambda x: float(x) / 3 + int(x.astype(int)) % 7,
    "an index of a range": lambda x: sum([1.0, x, 3.0][k] for k in range(3)),
    "a sum that is no zero": lambda x: x if float(x) * 2 - 1 > 0 else -x,
    "a test": lambda x: x * 2 if x > 0 else -x,
}


@pytest.mark.parametrize("body", NEVER.values(), ids=NEVER)
def test_a_program_that_cannot_raise_calls_no_python(body):
    text = str(jax.make_jaxpr(op(body, "traced"))(2.0))
    assert "python_call" not in text


# --------------------------------------------------------------- nothing runs after the error


def printed_afterwards(x):
    y = 1 / float(x)
    jax.debug.print("after {}", x)
    for k in range(int(x.astype(int)) + 3):
        jax.debug.print("turn {}", k)
    jax.debug.print("end")
    return y


def test_nothing_has_an_effect_after_the_error(capfd):
    program = jax.jit(op(printed_afterwards, "traced"))
    raised_by(program, F(0))
    jax.effects_barrier()
    assert capfd.readouterr().out == ""
    program(F(-1)).block_until_ready()
    jax.effects_barrier()
    assert capfd.readouterr().out == "after -1.0\nturn 0\nturn 1\nend\n"


# --------------------------------------------------------------------- what is still refused


def raises_of_a_value(x):
    if x < 0:
        raise ValueError("negative", x)
    return x


def raises_a_text(x):
    text = f"negative: {x}"
    if x < 0:
        raise ValueError(text)
    return x


def leaves_a_loop_of_quotients(x):
    for y in (1 / v for v in (float(x), 0.0)):
        if y > 1:
            break
    return y


def calls_an_op_that_may_raise(x):
    return jaxpyop.py_function(raises, [x], jnp.float32, mode="traced") if x > 0 else x


REFUSED = {
    "an op inside": (calls_an_op_that_may_raise, "an op in a traced function"),
    "a function that JAX calls": (
        lambda x: jax.lax.scan(lambda c, v: (c + math.sqrt(v), c), x, jnp.ones(3))[0],
        "in a function that JAX calls",
    ),
    "an iterator that may not be asked": (leaves_a_loop_of_quotients, "iterator in a loop with an exit|Python raises"),
    "a mistake on a path": (lambda x: x if x > 0 else x + None, "array meets a NoneType"),
    "always": (lambda x: x * math.sqrt(-1.0), "Python raises ValueError"),
    "an unpacked tuple": (functools.partial(lambda n, x: (lambda a, b: a)(*[x] * n), 3), "positional argument"),
    "an error of a value": (raises_of_a_value, "a ValueError of a value that is not known; write an f-string"),
    "a text of a value": (raises_a_text, "an f-string of a value that is not known; write it in the raise"),
    "a range of no step": (lambda x: x + sum(range(4, 0, int(x.astype(int)))), "traced step"),
}


@pytest.mark.parametrize(("body", "why"), REFUSED.values(), ids=REFUSED)
def test_where_it_cannot_raise_the_function_is_refused(body, why):
    with pytest.raises(TypeError, match=rf"(?s)py_function .*({why})"):
        jax.make_jaxpr(op(body, "traced"))(2.0)


@pytest.mark.parametrize("operate", [operator.floordiv, operator.mod], ids=["//", "%"])
def test_a_path_that_is_not_taken_divides_a_constant_by_zero(operate):
    """XLA would end the process."""
    body = lambda x, n: x + (operate(10, int(n)) if int(n) else 0)
    assert jax.jit(lambda x: jaxpyop.py_function(body, [x, 0], F, mode="traced"))(1.0) == 1.0


def test_a_path_that_is_not_taken_reads_behind_the_end_of_a_list():
    body = lambda m: 1.0 if m < 3 else [1.0, 0.5][2 + abs(int(m))]
    f = jax.jit(op(body, "traced"))
    assert f(-3) == 1.0
    with pytest.raises(IndexError, match="list index out of range"), jaxpyop.reraise():
        f(3)


def negative(x):
    if x < 0:
        raise ValueError("negative")
    return 2 * x


def test_the_error_of_a_program_names_the_function():
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"(?s)function: negative, .*test_errors\.py:\d+\n.*raise Value"
    ):
        jax.block_until_ready(jax.jit(lambda x: jaxpyop.py_function(negative, [x], F, mode="traced"))(-1.0))


def test_a_function_that_always_raises_is_explained():
    assert "Python raises ValueError" in jaxpyop.explain_traced(lambda x: x * math.sqrt(-1.0), 2.0)


def test_with_the_setting_refuse_no_program_calls_python():
    with jaxpyop.config.override(errors="refuse"):
        with pytest.raises(TypeError, match=r"`1 / float\(x\)`: Python may raise ZeroDivisionError.*config.errors"):
            jax.make_jaxpr(op(constant, "traced"))(2.0)
        assert "constant_traced" not in str(jax.make_jaxpr(op(constant, "auto"))(2.0))
        assert "ZeroDivisionError" in jaxpyop.explain_traced(constant, 2.0)
    assert jaxpyop.explain_traced(constant, 2.0) is None
