"""What cannot be a program is refused while JAX traces, by an error that names the op, the line and the expression."""

from __future__ import annotations

import enum
import inspect
import re
import threading
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._traced import machine
from tests.shared.tables import named
from tests.traced import outside
from tests.traced.rows import op


def line_of(function):
    """The number of the line that ends with `# here`, or else the function's first."""
    lines, first = inspect.getsourcelines(function)
    return first + next((k for k, line in enumerate(lines) if line.rstrip().endswith("# here")), 0)


def shape_grows(x):
    y = jnp.ones(1) * x
    while y.sum() < 9:  # here
        y = jnp.concatenate([y, y])
    return y.sum()


def list_grows(x):
    ys = []
    while x > 1:  # here
        x = x / 2
        ys.append(x)
    return x + len(ys)


def none_becomes_a_value(x):
    best = None
    while x > 1:
        x = x / 2
        best = x
    return best  # here


def numpy_of_a_value(x):
    while x > 1:
        x = np.sin(x)  # here
    return x


def range_of_a_float(x):
    for _ in range(x):  # here
        x = x + 1
    return x


def range_in_a_comprehension(x):
    return x + sum([2 * i for i in range(jnp.int32(x))])  # here


def swallowed(x):
    try:  # here
        while x > 1:
            x = jnp.ones(2) * x
    except BaseException:
        return x
    return x


def recursion(x):
    return recursion(x / 2) if x > 1 else x


def compares_what_may_be_nan(x):
    return x * ((x, 1) == (x * 1, 1))  # here


# Each with what the error has to name.
TEXTS = {
    shape_grows: r"`y` .*\(1,\).*\(2,\)",
    list_grows: "`ys` .*array of a fixed length",
    none_becomes_a_value: "None",
    numpy_of_a_value: r"np\.",
    range_of_a_float: "range.*no integer.*int",
    range_in_a_comprehension: "range",
    swallowed: "try",
    compares_what_may_be_nan: "needs its value",
}


@pytest.mark.parametrize(("body", "what"), TEXTS.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_the_error_names_op_line_and_expression(body, what):
    where = rf"(?s)py_function '{body.__name__}': .*test_refusals\.py:{line_of(body)}: "
    with pytest.raises(TypeError, match=where + ".*" + what) as caught:
        jax.jit(op(body, "traced"))(3.0)
    assert re.search(r'; |mode="eager"', str(caught.value))  # what to write instead


class Pair(typing.NamedTuple):
    first: float

    def __add__(self, other):
        return self.first - other


class Side(enum.IntEnum):
    LEFT = 1


class Plain:
    pass


class Extra:
    def __init__(self, x):
        super().__init__(x)


class Named(typing.NamedTuple):
    first: float


NAMED = Named(1.0)
LOCK = threading.Lock()
RULED = jax.custom_jvp(lambda x: x)


def raises_an_interrupt(x):
    raise KeyboardInterrupt


class CodeError(ValueError):
    def __init__(self, *, code):
        super().__init__(f"code {code}")
        self.code = code


def raises_one_with_keywords(x):
    if x < 0:
        raise CodeError(code=3)
    return x


def a_match(x):
    match x:
        case 0:
            return x


def with_a_lock(x):
    with LOCK:
        return x


def a_finally(x):
    try:
        return x
    finally:
        x = 0


def an_annotation_that_calls(x):
    def double(y: print("an effect")):
        return y * 2

    return double(x)


# Each with what the error has to name: the expression, and what is not in the language or what to write.
NOT_IN_THE_LANGUAGE = {
    "a key of max": (lambda x: max([x, 2.0], key=abs), "arguments that are not in the language: .*key"),
    "an array among arrays": (lambda x: x if x in [x.real] else 2 * x, "are one object, which is not known"),
    "a key of sort": (lambda x: x * [1, 2].sort(key=abs), "list.sort with a key; write l = sorted"),
    "a float of a complex": (lambda x: x * float(x * 1j), "the Python number of complex64"),
    "many turns": (lambda x: x + sum(i for i in range(10**8)), "turns of loops are unrolled; use jax.lax.fori_loop"),
    "a second array of NumPy's": (
        lambda x: x + np.exp(np.ones(2), np.ones(2))[0],
        "a second array of `.*, which NumPy may change",
    ),
    "a number in a small array": (lambda x: jnp.array([jnp.int8(1), int(x)])[1] * x, "a number of Python becomes int8"),
    "a small array of a number": (lambda x: jnp.full_like(jnp.uint32(1), int(x)) * x, "Python becomes uint32"),
    "an item by its place": (lambda x: x.reshape(1).item(3), "an item by its place; index the array"),
    "a namedtuple replaced by place": (lambda x: NAMED._replace(x).first, "_replace.* takes 1 positional argument"),
    "a power of a bool": (lambda x: (x > 1) ** int(x), "a power of bools.*; make them integers"),
    "a shift": (lambda x: x * (1 << int(x)), r"1 << int\(x\)`: LShift of Python numbers; make them arrays"),
    "a keyword twice": (lambda x: dict(a=1, **{"a": x})["a"], "multiple values for keyword"),  # noqa: PIE804
    "a remainder of floats": (lambda x: x * (float(x) % 2), "Mod of floats of Python; make one of them an array"),
    "NumPy of an array": (lambda x: np.sum(x), "np.sum` is not in the language; .*jax.numpy"),
    "a key that is not known": (lambda x: {3: x}[int(x)], "needs its value"),
    "a set of a value": (lambda x: x * len({0, int(x)}), "a int that is not known that needs its value"),
    "an error with a constructor of its own": (raises_one_with_keywords, "CodeError"),
    "an enum of a value": (
        lambda x: x * (Side(1) is Side.LEFT),
        "a Side that is looked up by its value; write Side.NAME",
    ),
    "an enum of numbers": (lambda x: x * (int(x) == Side.LEFT), "an enum that is a number .*; compare its value"),
    "a namedtuple with an operator": (lambda x: Pair(x) + 1.0, "a namedtuple with __add__"),
    "a rule of the user": (lambda x: RULED(x), r"RULED\(x\)`.* is not in the language"),
    "a match": (a_match, "`match` is not in the language; write an if"),
    "a with": (with_a_lock, "`with LOCK` is not in the language; leave it out"),
    "a try": (a_finally, "`try:` is not in the language; write an if"),
    "an annotation that calls": (an_annotation_that_calls, "an annotation that calls something; leave it out"),
    "an object that is returned": (
        lambda x: Plain(),
        "an object of Plain that is made here is returned; return a tuple",
    ),
    "objects that are compared": (lambda x: x * (Plain() == Plain()), "a comparison of objects; compare their"),
    "an argument that no class takes": (lambda x: Extra(x) and x, "raises TypeError: NoneType takes no arguments"),
    "an interrupt": (raises_an_interrupt, "a raise of what is no Exception"),
}


@pytest.mark.parametrize(("body", "what"), named(NOT_IN_THE_LANGUAGE, slow=["many turns"]))
def test_what_is_not_in_the_language_is_named(body, what):
    with pytest.raises(TypeError, match=rf"(?s)py_function '.*test_refusals\.py:\d+: .*{what}"):
        jax.jit(op(body, "traced"))(3.0)


class Never(list):
    def __bool__(self):
        return False


def test_explain_traced_tells_the_reason_of_the_gate():
    never = Never()
    reason = r"test_refusals\.py:\d+: `never`: an object of Never, which is a subclass of list; read what is needed"
    assert re.search(reason, jaxpyop.explain_traced(lambda x: x if never else -x, 1.0))


@pytest.mark.slow
def test_a_recursion_on_values_is_refused():
    with pytest.raises(TypeError, match=r"py_function 'recursion': .*calls itself"):
        jax.jit(op(recursion, "traced"))(3.0)


def test_what_merges_into_no_shape_is_equal_or_refused():
    assert jax.jit(op(lambda x: jnp.sum(jnp.ones(2) * x if x > 0 else jnp.ones(3) * x), "traced"))(2.0) == 4.0
    for first, second in ((jnp.ones(2), jnp.ones(3)), ((1.0, 2.0), 1.0)):
        with pytest.raises((TypeError, ValueError), match="py_function"):
            jax.jit(op(lambda x, a=first, b=second: a if x > 0 else b, "traced"))(2.0)


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"first": v}], ids=["alone", "in a dict"])
def test_results_of_two_shapes_are_refused_where_no_shape_is_declared(wrap):
    of = lambda mode: (
        lambda x: jaxpyop.py_function(lambda x: wrap(x if x > 0 else jnp.ones(3)), [x], wrap(jnp.float32), mode=mode)
    )
    with pytest.raises(TypeError, match=r"py_function '.*test_refusals\.py:\d+: .*one shape on one path"):
        jax.jit(of("traced"))(2.0)
    assert jax.jit(of("auto"))(2.0) == wrap(2.0)


def searched(x, low=0, high=4096):
    middle = (low + high) // 2
    if high - low == 1:
        return low * 1.0
    return searched(x, low, middle) if x < middle else searched(x, middle, high)


def test_a_function_of_very_many_branches_is_refused_and_called_in_auto_mode(monkeypatch):
    monkeypatch.setattr(machine, "_MOST_SIDES", 50)
    with pytest.raises(TypeError, match=r"more than 50 sides of branches are interpreted; use jnp\.where"):
        jax.jit(op(searched, "traced"))(2600.0)
    assert jax.jit(op(searched, "auto"))(2600.0) == 2600


CHANGES = {
    "a number": ("x / 2", "x / 4"),
    "a sign": ("x / 2", "x * 2"),
    "a comparison": ("x > 1", "x >= 1"),
    "a text": ("== 'near'", "== 'far'"),
    "lines above": ("def halve", "\ndef halve"),
}


@pytest.mark.parametrize("line", ["", "    assert to\n"], ids=["", "with an assert"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_that_changed_since_it_was_imported_is_no_source(change, line, tmp_path):
    path, space = tmp_path / "changing.py", {}
    source = f"def halve(x, to='near'):\n{line}    while x > 1 and to == 'near':\n        x = x / 2\n    return x\n"
    exec(compile(source, str(path), "exec"), space)
    for text, said in (("", "cannot be found"), (source.replace(*change, 1), "(cannot be found|has changed)")):
        path.write_text(text)
        with pytest.raises(TypeError, match=rf"the source of halve {said}"):
            jax.jit(op(space["halve"], "traced"))(8.0)
    assert jax.jit(op(space["halve"], "auto"))(8.0) == 1


def test_lambdas_in_one_line_are_told_by_their_columns():
    twice, thrice = lambda x: x * 2 if x > 0 else x, lambda x: x * 3 if x > 0 else x
    assert [jax.jit(op(f, "traced"))(1.0) for f in (twice, thrice)] == [2, 3]


def scan_changes(x, seen):
    return jax.lax.scan(lambda c, v: (seen.append(v), (c + v, c))[1], x[0], x)[0]


# Functions that JAX calls once for many elements, or in a branch, and that change an object of their caller.
CALLED_BY_JAX = {
    "scan": scan_changes,
    "tree.map": lambda x, seen: jnp.sum(jax.tree.map(lambda v: (seen.append(1), v)[1], [x, x])[0]) * len(seen),
}


@pytest.mark.parametrize("changing", CALLED_BY_JAX.values(), ids=CALLED_BY_JAX)
def test_a_function_that_jax_calls_may_not_change_its_callers_objects(changing):
    with pytest.raises(TypeError, match="a function that JAX calls changes a variable or an object of its caller"):
        jax.jit(op(lambda x: changing(x, []), "traced"))(jnp.arange(3.0))


def test_a_function_with_another_code_runs_that_code():
    def quarter(x):
        while x > 1:
            x = x / 4
        return x

    def body(x):
        while x > 1:
            x = x / 2
        return x

    assert jax.jit(op(body, "traced"))(6.0) == 0.75
    body.__code__ = quarter.__code__
    assert jax.jit(op(body, "traced"))(6.0) == 0.375


@pytest.mark.parametrize(("body", "name"), outside.READS.values(), ids=outside.READS)
def test_what_reads_from_outside_is_refused_and_called_in_auto_mode(body, name):
    with pytest.raises(TypeError, match=rf"outside\.py:\d+: .*({name})"):
        jax.make_jaxpr(op(body, "traced"))(1.0)
    assert "python_call" in str(jax.make_jaxpr(op(body, "auto"))(1.0))
