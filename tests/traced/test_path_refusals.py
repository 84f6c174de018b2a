"""What cannot be followed is refused with its line; shapes along one path; what paths share."""

from __future__ import annotations

import functools
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import _jaxcore
from jaxpyop._paths import PathError, infer_shapes, trace_paths
from jaxpyop._paths.follow import explore as follow_module
from jaxpyop._paths.follow.tracer import MAX_PATHS
from tests.shared.path_bodies import (
    by_body,
    close,
    eager_values,
    elif_chain_of,
    jaxpr_of,
    points,
    primitives,
    sequential,
    traced,
)

pytestmark = pytest.mark.filterwarnings("error")


THIS_FILE = re.escape(__file__)


def line_of(text):
    """The number of the only line of this file that ends with a comment."""
    with open(__file__) as lines:
        found = [n for n, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {text}")]
    assert len(found) == 1, (text, found)
    return found[0]


# Results whose types differ between paths


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        pytest.param(lambda x: x if x > 0 else 0.0, "float32", id="weak"),
        pytest.param(lambda x: 1.0 if x > 0 else 0.0, "float32", id="both-weak"),
        pytest.param(lambda x: x if x > 0 else 2, "float32", id="weak-int"),
        pytest.param(lambda x: x > 1 if x > 0 else False, "bool", id="bool"),
        pytest.param(lambda x: x if x > 0 else x.astype(jnp.int32), "float32", id="int"),
        pytest.param(lambda x: x if x > 0 else x.astype(jnp.bfloat16), "float32", id="half"),
        pytest.param(lambda x: x if x > 0 else x + 1j, "complex64", id="complex"),
    ],
)
def test_dtypes_are_promoted(body, wanted):
    for x in (1.5, -1.5):
        x = jnp.float32(x)
        got = jax.jit(traced(body))(x)
        assert got.dtype == wanted
        close(got, body(x), rtol=1e-2)


def two_shapes(x):
    if x > 0:
        return jnp.ones(2)  # shape 2
    return jnp.ones(3)  # shape 3


def two_lengths(x):
    if x > 0:
        return [x]  # one result
    return [x, x]  # two results


def key_or_number(x):
    if x > 0:
        return jax.random.key(1)  # a key
    return x  # a number


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        pytest.param(lambda x: [two_shapes(x)], ("shape 2", "shape 3"), id="shape"),
        pytest.param(two_lengths, ("one result", "two results"), id="length"),
        pytest.param(lambda x: [key_or_number(x)], ("a key", "a number"), id="key"),
    ],
)
def test_different_results_name_both_lines(body, lines):
    first, second = map(line_of, lines)
    if body is not two_lengths:  # the outermost function of the user's
        first = second = body.__code__.co_firstlineno
    match = rf"different results.*{THIS_FILE}:{first} and {THIS_FILE}:{second}.*eager"
    with pytest.raises(PathError, match=match):
        trace_paths(body, [1.0])


# What cannot be followed


def uses_float(x):
    return [x * float(x)]  # float


def uses_int(x):
    return [x * int(x)]  # int


def uses_range(x):
    return [sum(range(x.astype(int)))]  # index


def uses_numpy(x):
    return [np.sin(x)]  # numpy


def uses_mean(x):
    return [np.median(x)]  # median


def uses_item(x):
    return [x.item()]  # item


def uses_tolist(x):
    return [x.tolist()]  # tolist


def raises(x):
    if x < 0:
        raise ValueError("negative")  # raise
    return [x]


def asserts(x):
    assert x > 0  # assert
    return [x]


def truth_of_a_vector(x):
    return [1.0 if jnp.ones(2) * x > 0 else 2.0]  # vector


def loops(x):
    while x > 1:  # while
        x = x / 2
    return [x]


def loops_forever(x):
    while True:
        if x > 1:  # forever
            x = x / 2


def wrong_result(x):
    return ["text"]


def swallows_float(x):
    try:
        return [x * float(x)]  # swallowed float
    except BaseException:
        return [x]


def swallows_the_bound(x):
    y = x
    try:
        while y > 1:  # swallowed bound
            y = y / 2
    except:  # noqa: E722
        pass
    return [x]


def bare_jit(x):
    return [jax.jit(lambda v: v if v > 0 else -v)(x)]  # inner jit


@pytest.mark.parametrize(
    ("body", "line", "match"),
    [
        pytest.param(uses_float, "float", r"float\(x\) asks for the value", id="float"),
        pytest.param(uses_int, "int", r"int\(x\) asks", id="int"),
        pytest.param(uses_range, "index", r"operator\.index\(x\) asks", id="index"),
        pytest.param(uses_numpy, "numpy", r"np\.asarray\(x\) asks", id="numpy"),
        pytest.param(uses_mean, "median", r"asks|raises", id="numpy-python"),
        pytest.param(uses_item, "item", r"x\.item\(\) asks", id="item"),
        pytest.param(uses_tolist, "tolist", r"x\.tolist\(\) asks", id="tolist"),
        pytest.param(raises, "raise", "a path raises ValueError: negative", id="raise"),
        pytest.param(asserts, "assert", "a path raises AssertionError", id="assert"),
        pytest.param(truth_of_a_vector, "vector", "a path raises ValueError", id="vector"),
        pytest.param(loops, "while", "loop whose end depends", id="while"),
        pytest.param(loops_forever, "forever", "loop whose end depends", id="forever"),
        pytest.param(swallows_float, "swallowed float", "asks", id="swallow-float"),
        pytest.param(swallows_the_bound, "swallowed bound", "loop", id="swallow-bound"),
        pytest.param(bare_jit, "inner jit", "TracerBoolConversion", id="inner-jit"),
    ],
)
def test_refused_with_the_users_line(body, line, match):
    full = rf"^{THIS_FILE}:{line_of(line)}: .*{match}.*mode=\"eager\""
    for transform in (lambda f: f, jax.jit, jax.grad):
        with pytest.raises(PathError, match=full) as caught:
            transform(lambda x: trace_paths(body, [x])[0])(jnp.float32(1.0))
        assert caught.value.filename == __file__
        assert caught.value.lineno == line_of(line)


def test_a_dispatch_on_the_type():
    dispatched = functools.singledispatch(lambda x: [1.0])
    with pytest.raises(PathError, match=r"singledispatch.*eager"):
        trace_paths(lambda x: dispatched(x), [1.0])


def test_wrong_type_of_result():
    with pytest.raises(PathError, match=r"a path raises TypeError.*eager"):
        trace_paths(wrong_result, [1.0])


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(sequential(8), id="sequential"),
        pytest.param(elif_chain_of(MAX_PATHS), id="elif"),
    ],
)
def test_the_bound_is_named_after_few_runs(body):
    runs = []

    def counted(x):
        runs.append(x)
        return body(x)

    with pytest.raises(PathError, match=f"more than {MAX_PATHS} paths"):
        jaxpr_of(counted, 1.0)
    assert len(runs) <= MAX_PATHS


def test_six_sequential_ifs_compile_in_time():
    start = time.thread_time()
    jax.jit(traced(sequential(6))).lower(1.0).compile()
    assert time.thread_time() - start < 2


@pytest.mark.parametrize("n", [1, 3, 5])
def test_exactly_the_bound_is_allowed(n):
    run = functools.partial(trace_paths, lambda x: [sequential(n)(x)], [1.0])
    close(run(max_paths=2**n), [sequential(n)(1.0)])
    with pytest.raises(PathError, match=f"more than {2**n - 1} paths"):
        run(max_paths=2**n - 1)


def test_outside_state_is_refused():
    calls = []

    def body(x):
        calls.append(0)
        return [jnp.sin(x) if x * len(calls) > 0 else x]

    with pytest.raises(PathError, match="two runs of the body differ"):
        trace_paths(body, [1.0])


def test_kept_tracers_are_errors():
    kept = []
    trace_paths(lambda x: [kept.append(x) or x], [1.0])
    with pytest.raises(jax.errors.UnexpectedTracerError, match="unexpected tracer"):
        kept[0] + 1


def test_nesting_too_deep_is_refused(monkeypatch):
    def evaluate(block, env):
        raise RecursionError

    monkeypatch.setattr(follow_module, "evaluate", evaluate)
    with pytest.raises(PathError, match="nested too deeply"):
        trace_paths(lambda x: [x], [1.0])


def test_keyboard_interrupt_passes():
    def body(x):
        raise KeyboardInterrupt

    for follow in (trace_paths, infer_shapes):
        with pytest.raises(KeyboardInterrupt):
            follow(body, [1.0])


# Shapes


@by_body
def test_shapes(body):
    x, m = points(body)[0]
    args = [jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((), m.dtype)]
    (got,) = infer_shapes(lambda *xs: [body(*xs)], args)
    wanted = eager_values(body)[0]
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)


def some_paths_fail(x):
    if x > 0:
        return [jnp.ones(int(x))]
    if x > -1:
        raise ValueError("no")
    return [jnp.ones((2, 3), jnp.int32)]


def newton(x):
    y = x
    while abs(y * y - x) > 1e-3:
        y = 0.5 * (y + x / y)
    return [y, len("abc"), 0.5]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        pytest.param(some_paths_fail, [((2, 3), "int32", False)], id="backtracks"),
        pytest.param(
            newton,
            [((), "float32", False), ((), "int32", True), ((), "float32", True)],
            id="while",
        ),
        pytest.param(lambda x: [x] * 2, [((), "float32", False)] * 2, id="two"),
        pytest.param(lambda x: [], [], id="none"),
    ],
)
def test_shapes_along_one_path(body, wanted):
    got = infer_shapes(body, [jax.ShapeDtypeStruct((), jnp.float32)])
    assert [(s.shape, s.dtype, s.weak_type) for s in got] == wanted


@pytest.mark.parametrize(
    ("body", "line"),
    [
        pytest.param(uses_float, "float", id="float"),
        pytest.param(uses_numpy, "numpy", id="numpy"),
        pytest.param(uses_item, "item", id="item"),
        pytest.param(swallows_float, "swallowed float", id="swallowed"),
    ],
)
def test_shapes_that_need_a_value(body, line):
    match = rf"^{THIS_FILE}:{line_of(line)}: .*asks for the value.*output_shapes="
    with pytest.raises(PathError, match=match):
        infer_shapes(body, [1.0])


def test_shapes_of_an_endless_body_take_bounded_time(monkeypatch):
    monkeypatch.setattr(follow_module, "_SHAPE_SECONDS", 0.3)
    runs = []

    def body(x):
        runs.append(x)
        while True:
            x = x + 1.0  # endless

    with pytest.raises(PathError, match=f":{line_of('endless')}: .*too long"):
        infer_shapes(body, [1.0])
    assert len(runs) == 1


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap, jax.jacfwd], ids=lambda f: f.__name__)
def test_shapes_under_transformations_add_nothing(transform):
    seen = []

    def f(x):
        seen.append(infer_shapes(lambda v: [v * x if v > x else 2.0 * v], [x])[0].shape)
        return x * 2.0

    arg = jnp.ones(3) if transform is jax.vmap else jnp.float32(1.0)
    jaxpr = jax.make_jaxpr(transform(f))(arg)
    wanted = jax.make_jaxpr(transform(lambda x: x * 2.0))(arg)
    assert set(seen) == {()}
    assert primitives(jaxpr) == primitives(wanted)


# The comparisons that decide what is shared


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        pytest.param((1, [2.0]), (1, [2.0]), True, id="nested"),
        pytest.param((1, 2), (1, 2, 3), False, id="length"),
        pytest.param({"a": 1}, {"b": 1}, False, id="keys"),
        pytest.param(1, 1.0, False, id="type"),
        pytest.param(np.ones(2), np.ones(2), False, id="in-doubt"),
        pytest.param(lambda: 0, lambda: 0, False, id="callables"),
    ],
)
def test_same_parameter(a, b, same):
    assert _jaxcore.is_same(a, b) is same


@pytest.mark.parametrize(
    ("f", "g", "same"),
    [
        pytest.param(lambda x: x + 1, lambda y: y + 1, True, id="names"),
        pytest.param(lambda x: x + 1, lambda x: x + 2, False, id="literal"),
        pytest.param(lambda x: x * (x + 1), lambda x: (x + 1) * x, False, id="order"),
        pytest.param(lambda x: x + 1, lambda x: x - 1, False, id="primitive"),
        pytest.param(lambda x: (x, x + 1), lambda x: (x + 1, x), False, id="results"),
        pytest.param(lambda x: x + np.arange(3.0), lambda x: x + np.arange(3.0)[::-1], False, id="consts"),
        pytest.param(jax.jit(lambda x: x + 1), jax.jit(lambda x: x + 1), True, id="jit"),
        pytest.param(jax.jit(lambda x: x + 1), jax.jit(lambda x: x + 2), False, id="jit-not"),
    ],
)
def test_same_jaxpr(f, g, same):
    pair = [jax.make_jaxpr(h)(1.0) for h in (f, g)]
    assert _jaxcore.is_same(*pair) is same
