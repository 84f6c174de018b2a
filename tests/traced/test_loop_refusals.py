"""What cannot be one program is refused with file, line, variable and cure."""

from __future__ import annotations

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._paths.rewrite import convert

pytestmark = pytest.mark.filterwarnings("error")

THIS_FILE = re.escape(__file__)


def line_of(text):
    """The number of the only line of this file that ends with a comment."""
    with open(__file__) as lines:
        found = [n for n, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {text}")]
    assert len(found) == 1, (text, found)
    return found[0]


def as_op(body, **options):
    return lambda x: jaxpyop.py_function(body, [x], jnp.float32, mode="traced", output_shapes=(), **options)


def shape_grows(x):
    y = jnp.ones(1) * x
    while y.sum() < 9:  # shape grows
        y = jnp.concatenate([y, y])
    return y.sum()


def shape_changes_in_a_for(x):
    y = x
    for _ in range(jnp.int32(x)):  # shape in for
        y = jnp.ones(3) * y
    return x


def list_grows(x):
    ys = []
    while x > 1:  # list grows
        x = x / 2
        ys.append(x)
    return x + len(ys)


def list_grows_by_assignment(x):
    ys = [x]
    while x > 1:  # list assigned
        x = x / 2
        ys = [*ys, x]
    return x + ys[0]


def dict_grows(x):
    seen = {}
    k = 0
    while x > 1:  # dict grows
        x, k = x / 2, k + 1
        seen[len(seen)] = x
    return x


def set_grows(x):
    seen = set()
    for _ in range(jnp.int32(x)):  # set grows
        seen.add("turn")
    return x


_LOG = []


def global_list_grows(x):
    while x > 1:  # global list
        x = x / 2
        _LOG.append(1)
    return x


def _note(log, x):
    log.append(x)
    return x / 2


def list_grows_in_a_call(x):
    log = []
    while x > 1:  # list in a call
        x = _note(log, x)
    return x


class Counter:
    def __init__(self):
        self.count = 0

    def half(self, x):
        self.count += 1
        return x / 2


def attribute_changes_in_a_method(x):
    counter = Counter()
    while x > 1:  # attribute in a method
        x = counter.half(x)
    return x


def name_of_the_loop_only(x):
    while x > 1:  # bound in the loop
        last = x
        x = x / 2
    return last


def loop_variable_afterwards(x):
    for i in range(jnp.int32(x)):  # loop variable
        x = x + i
    return x + i


def name_of_a_for_only(x):
    for i in range(jnp.int32(x)):  # bound in the for
        y = x * i
    return y


def text_changes(x):
    how = "none"
    while x > 1:  # text
        x = x / 2
        how = how + "!"
    return x * len(how)


def function_changes(x):
    f = jnp.sin
    while x > 1:  # function
        x = x / 2
        f = jnp.cos
    return f(x)


def none_becomes_a_value(x):
    best = None
    while x > 1:  # none
        x = x / 2
        best = x
    return best


def key_becomes_a_number(x):
    k = jax.random.key(0)
    while x > 1:  # key
        x = x / 2
        k = x
    return x + k


def float_of_a_value(x):
    while x > 1:
        x = x / 2 + math.sin(x)  # float
    return x


def numpy_of_a_value(x):
    while x > 1:
        x = np.sin(x)  # numpy
    return x


def list_of_a_value(x):
    while x > 1:
        x = x / x.tolist()  # item
    return x


def index_of_a_list(x):
    table = [1.0, 2.0, 3.0]
    total = x
    for i in range(jnp.int32(x)):
        total = total + table[i]  # list index
    return total


def shape_of_a_value(x):
    while x > 1:
        x = x / 2 + jnp.ones(jnp.int32(x)).sum()  # dynamic shape
    return x


def asserts(x):
    while x > 1:
        assert x < 100  # assert
        x = x / 2
    return x


def asserts_in_an_if(x):
    if x > 0:
        x = x * 2
    assert x < 100, "too large"  # assert message
    return x


def raises(x):
    while x > 1:
        if x > 100:
            raise ValueError("too large")  # raise
        x = x / 2
    return x


def raises_afterwards(x):
    while x > 1:
        x = x / 2
    if x < 0:
        raise ValueError("negative")  # raise after
    return x


def divides_by_zero(x):
    while x > 1:
        x = x / 2 + 1 // 0  # zero
    return x


def no_return(x):  # noqa: RET503
    while x > 1:
        if x < 2:
            return x
        x = x / 2  # no return


def range_of_a_float(x):
    for _ in range(x):  # float range
        x = x + 1
    return x


def range_as_a_list(x):
    return x + sum([2 * i for i in range(jnp.int32(x))])  # range in a list


def enumerated_range(x):
    for i, k in enumerate(range(jnp.int32(x))):  # enumerated
        x = x + i * k
    return x


def truth_of_a_vector(x):
    v = jnp.ones(2) * x
    while v > 1:  # vector
        v = v / 2
    return v.sum()


def locals_inside(x):
    while x > 1:
        x = x / len(locals())  # locals
    return x


REFUSED = [
    (
        shape_grows,
        "shape grows",
        r"`y` has the shape \(1,\) before .* and \(2,\) after it; give it its final",
    ),
    (shape_changes_in_a_for, "shape in for", r"`y` has the shape \(\) before .* \(3,\) after it; give it its final"),
    (list_grows, "list grows", r"`ys` is changed in place inside of a loop .*; make an array of a fixed length"),
    (
        list_grows_by_assignment,
        "list assigned",
        r"`ys` is a list of 1 before an iteration .* a list of 2 after it; make an",
    ),
    (
        dict_grows,
        "dict grows",
        r"`seen` is changed in place .*; make an array|`seen\[.*\]` gets its first value inside",
    ),
    (set_grows, "set grows", r"`seen` is changed in place .*; make an array"),
    (global_list_grows, "global list", r"`_LOG` is changed in place .*; make an array"),
    (list_grows_in_a_call, "list in a call", r"`log` is changed in place .*; make an array"),
    (attribute_changes_in_a_method, "attribute in a method", r"`counter` is changed in place .*; make an array"),
    (
        name_of_the_loop_only,
        "bound in the loop",
        r"`last` gets its first value inside of a loop .*; give it one before",
    ),
    (loop_variable_afterwards, "loop variable", r"`i` gets its first value inside of a loop .*; give it one before"),
    (name_of_a_for_only, "bound in the for", r"`y` gets its first value inside of a loop .*; give it one before"),
    (text_changes, "text", r"`how` holds a str in a loop .*; a loop in the program carries arrays and numbers only"),
    (function_changes, "function", r"`f` holds a .* in a loop .*; a loop in the program carries arrays and numbers"),
    (none_becomes_a_value, "none", r"`best` is None before an iteration .*, and float32\[\] after it; "),
    (key_becomes_a_number, "key", r"`k` is key<fry>\[\] before an iteration .*, and float32\[\] after it; "),
    (float_of_a_value, "float", r"float\(x\) asks for the value of a traced float32\[\].*jax\.lax\.while_loop"),
    (numpy_of_a_value, "numpy", r"np\.asarray\(x\) asks for the value of a traced float32\[\].*traced ops"),
    (list_of_a_value, "item", r"x\.tolist\(\) asks for the value"),
    (index_of_a_list, "list index", r"operator\.index\(x\) asks for the value of a traced int32\[\]"),
    (shape_of_a_value, "dynamic shape", r"a path raises TypeError: Shapes must be 1D sequences|asks for the value"),
    (asserts, "assert", r"an assert of a traced value cannot stop a compiled program; leave it out, return a value"),
    (asserts_in_an_if, "assert message", r"an assert of a traced value cannot stop .*; leave it out, return a value"),
    (raises, "raise", r"a path raises ValueError: too large; .*jnp\.nan"),
    (raises_afterwards, "raise after", r"a path raises ValueError: negative; .*jnp\.nan"),
    (divides_by_zero, "zero", r"a path raises ZeroDivisionError"),
    (no_return, None, r"not every path is sure to end with a `return`, and some .*leave a `while True` by `break`"),
    (
        range_of_a_float,
        "float range",
        r"a path raises TypeError: range\(\) takes integers, got float32\[\]; write range",
    ),
    (range_as_a_list, "range in a list", r"a range of a traced number is used where Python needs its numbers; write a"),
    (enumerated_range, "enumerated", r"a range of a traced number is used where Python needs its numbers; write a"),
    (truth_of_a_vector, "vector", r"a path raises ValueError: The truth value of an array"),
    (locals_inside, "locals", r"locals\(\) sees other names in a rewritten body; write the names that are needed"),
]


@pytest.mark.parametrize(("body", "line", "match"), REFUSED, ids=lambda v: getattr(v, "__name__", ""))
def test_refused_with_line_variable_and_cure(body, line, match):
    number = body.__code__.co_firstlineno if line is None else line_of(line)
    full = rf"^py_function '{body.__name__}': {THIS_FILE}:{number}: {match}"
    with pytest.raises(TypeError, match=full) as caught:
        jax.jit(as_op(body))(3.0)
    assert "eager" in str(caught.value) or "; " in str(caught.value)
    _LOG.clear()


def halve(x):
    while x > 1:  # halve
        x = x / 2
    return x


def test_without_the_extra_ifs_are_followed_and_loops_are_refused(monkeypatch):
    monkeypatch.setattr(convert, "is_installed", lambda: False)
    monkeypatch.setattr(convert, "_factories", {})
    op = as_op(lambda x: x * 2 if x > 0 else -x)
    assert jax.jit(op)(3.0) == 6.0
    command = r"run .* diastatic-malt. \(the extra loops\)"
    match = rf"{THIS_FILE}:{line_of('halve')}: .*loop whose end.*; {command}; or .*mode=\"eager\""
    with pytest.raises(TypeError, match=match):
        jax.jit(as_op(halve))(8.0)


def test_without_source_ifs_are_followed_and_loops_are_refused():
    space = {}
    exec(
        "def halve(x):\n    while x > 1:\n        x = x / 2\n    return x\ndef sign(x): return 1.0 if x > 0 else -1.0",
        space,
    )
    assert jax.jit(as_op(space["sign"]))(3.0) == 1.0
    with pytest.raises(
        TypeError,
        match=r"<string>:2: .*the source of halve, which .* cannot be found: write it in a file",
    ):
        jax.jit(as_op(space["halve"]))(8.0)


def test_what_the_converter_cannot_do_is_said():
    def body(x):
        class Half:
            factor = 0.5

        while x > 1:
            x = x * Half.factor
        return x

    with pytest.raises(TypeError, match="body cannot be rewritten: it has a class in it: write the class outside of"):
        jax.jit(as_op(body))(8.0)


def walrus(x):
    while (y := x / 2) > 1:
        x = y
    return x


def matching(x):
    match x.ndim:
        case 0:
            while x > 1:
                x = x / 2
    return x


beside, in_one_line = (lambda x: halve(x)), (lambda x: halve(x) * 2)
takes_float, beside_it = (lambda x: x + float(x)), (lambda x: float(x) * 2)


def recursive(x):
    return recursive(x / 2) if x > 1 else x


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (walrus, "walrus cannot be rewritten: it has a `:=` in a condition: assign before the loop"),
        (matching, "matching cannot be rewritten: it has a `match`: write `if` and `elif`"),
        (beside, "shares its line with other functions and cannot be told from them: write it with def"),
        (takes_float, r"float\(x\) asks for .*; .*lambda.* shares its line with other functions"),
        (recursive, "calls itself on a condition of values.*jax.lax.while_loop"),
    ],
    ids=["walrus", "match", "lambdas in one line", "float in one line", "recursion"],
)
def test_what_the_converter_takes_for_something_else_is_said(body, match):
    with pytest.raises(TypeError, match=match):
        jax.jit(as_op(body))(8.0)


def test_variables_with_types():
    def body(x: float) -> jax.Array:
        turns: int = 0
        later: int
        while x > 1:
            x: float = x / 2
            turns += 1
        later = turns
        return x + later

    assert jax.jit(as_op(body))(8.0) == 4.0


SOURCE = """
def halve(x):
    while x > 1:
        x = x / 2
    return x


def half(x):
    return x / 2 if x > 1 else x
"""
CHANGES = {
    "lines above": lambda text: "\n\n" + text,
    "another constant": lambda text: text.replace("x / 2", "x / 4"),
    "another order": lambda text: text.replace("halve", "h").replace("half", "halve").replace("def h(", "def half("),
    "another sign": lambda text: text.replace("x > 1", "x > 3"),
    "a syntax error": lambda text: text + "def",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_that_changed_since_it_was_imported_is_no_source(change, tmp_path):
    path, space = tmp_path / "changing.py", {}
    path.write_text(SOURCE)
    exec(compile(SOURCE, str(path), "exec"), space)
    path.write_text(change(SOURCE))
    with pytest.raises(TypeError, match="the source of halve, which is needed to follow loops, cannot be found"):
        jax.jit(as_op(space["halve"]))(8.0)
    assert jax.jit(as_op(space["half"]))(8.0) == 4.0
    path.write_text(SOURCE)
    exec(compile(SOURCE.replace("x / 2", "x / 2.0"), str(path), "exec"), space)
    assert jax.jit(lambda x: jaxpyop.py_function(space["halve"], [x], jnp.float32, mode="auto", max_steps=9))(8.0) == 1


def test_a_function_with_another_code_runs_that_code():
    def quarter(x):
        while x > 1:
            x = x / 4
        return x

    def body(x):
        while x > 1:
            x = x / 2
        return x

    assert jax.jit(as_op(body))(6.0) == 0.75
    body.__code__ = quarter.__code__
    assert jax.jit(as_op(body))(6.0) == 0.375


def test_equal_functions_of_two_files_have_errors_of_their_own(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("def f(x):\n    while x > 1:\n        x = x[None]\n    return x\n")
        space = {}
        exec(compile((tmp_path / f"{name}.py").read_text(), str(tmp_path / f"{name}.py"), "exec"), space)
        with pytest.raises(TypeError, match=rf"{name}\.py:2: `x` has the shape \(\) before"):
            jax.jit(as_op(space["f"]))(8.0)


def test_a_backward_pass_without_a_bound_says_so():
    op = as_op(halve)
    assert jax.jit(op)(8.0) == 1.0
    match = rf"^py_function 'halve': {THIS_FILE}:{line_of('halve')}: a backward pass through .* pass max_steps="
    with pytest.raises(NotImplementedError, match=match):
        jax.jit(jax.grad(op))(8.0)
    assert jax.jit(jax.jacfwd(op))(8.0) == 1 / 8  # forward mode needs none
    assert jax.jit(jax.grad(as_op(halve, max_steps=4)))(8.0) == 1 / 8


def test_a_bound_that_does_not_do_shows():
    op = as_op(halve, max_steps=2)
    assert jax.jit(op)(8.0) == 1.0
    assert np.isnan(jax.jit(jax.grad(op))(8.0))
    assert jax.jit(jax.grad(op))(4.0) == 0.25


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, "ten"])
def test_no_bound(steps):
    with pytest.raises(
        ValueError,
        match=rf"py_function: max_steps is {steps!r}; expected the largest number of .* at least 1",
    ):
        as_op(halve, max_steps=steps)(1.0)


def test_what_a_body_swallows_is_refused_all_the_same():
    def body(x):
        try:
            while x > 1:  # swallowed
                x = jnp.ones(2) * x
        except BaseException:
            return x
        return x

    with pytest.raises(TypeError, match=rf":{line_of('swallowed')}: `x` has the shape"):
        jax.jit(as_op(body))(3.0)


def test_a_print_happens_once(capsys):
    def body(x):
        while x > 1:
            print("a turn")
            x = x / 2
        return x

    op = jax.jit(as_op(body))
    assert op(8.0) == 1.0
    assert op(4.0) == 1.0
    assert capsys.readouterr().out.count("a turn") <= 3  # the attempts at tracing it, and none when it runs


def test_partial_methods_and_nested_ops():
    def power(exponent, x):
        y, k = 1.0, 0
        while k < exponent and y < 100:
            y, k = y * x, k + 1
        return y

    assert jax.jit(as_op(functools.partial(power, 3)))(2.0) == 8.0
    inner = as_op(halve)
    outer = as_op(lambda x: inner(x * 8) + 1)
    assert jax.jit(outer)(1.0) == 2.0


def test_without_the_extra_too_many_paths_name_it(monkeypatch):
    monkeypatch.setattr(convert, "is_installed", lambda: False)
    monkeypatch.setattr(convert, "_factories", {})

    def many(x):
        for k in range(8):
            x = x + 1 if x > k else x
        return x

    with pytest.raises(TypeError, match=r"more than 128 paths.*; run .* diastatic-malt. \(the extra loops\); or write"):
        jax.jit(as_op(many))(1.0)
