"""What the text of an error says, and what it says to write instead."""

from __future__ import annotations

import functools
import pathlib
import re
import sys
import traceback
import types

import jax
import jax.export
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest

import jaxpyop
from tests.shared.error_cases import (
    F,
    X,
    run,
)
from tests.shared.util import every_api, numpy_function, py_func, py_function

# -------------------------------------------------------------------- the text


def helper(value):
    raise LookupError(f"no entry {value}")  # the line that fails


def user_body(x, n):
    y = x * 2
    return helper(float(np.asarray(y)[0]))


def line(text):
    with open(__file__) as lines:
        (found,) = [k for k, row in enumerate(lines, 1) if row.rstrip().endswith(text)]
    return found


@every_api
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_what_the_text_says(api, warm, transport):
    f = jax.jit(lambda x, n: api(user_body, [x, n], F, name="lookup", output_shapes=(3,)))
    text = ""
    for _ in range(1 + 3 * warm):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=r"no entry 1\.0") as caught:
            run(f, X, jnp.int32(3))
        text = str(caught.value)
    api_name = {"contrib": "contrib.framework.py_func"}.get(api.__name__, api.__name__)
    first = user_body.__code__.co_firstlineno
    for part in (
        f"{api_name} 'lookup' failed: LookupError: no entry 1.0",
        "user_body",
        f"{__file__}:{first}",
        "inputs: x=float32[3] [ 0.5 -1.   2. ], n=int32[] 3\n",
        "Traceback (most recent call last)",
        f'File "{__file__}", line {line("# the line that fails")}, in helper',
        'raise LookupError(f"no entry {value}")',
        "return helper(float(np.asarray(y)[0]))",
        "LookupError: no entry 1.0",
        "jaxpyop.reraise()",
    ):
        assert part in text, part
    assert_no_library_frames(text)


# The packages' own folders, because a clone of this project may lie in a folder that is called jaxpyop too.
LIBRARIES = [pathlib.Path(package.__file__).parent for package in (jaxpyop, jax, jaxlib)]


def assert_no_library_frames(text):
    files = re.findall(r'File "([^"]+)"', text)
    assert files, "the text has a traceback"
    library = [name for name in files if any(map(pathlib.Path(name).is_relative_to, LIBRARIES))]
    assert not library, library


@pytest.mark.parametrize("package", [jax, jaxlib, jaxpyop], ids=lambda package: package.__name__)
def test_the_frame_check_can_fail(package):
    with pytest.raises(AssertionError, match=package.__name__):
        assert_no_library_frames(f'File "{package.__file__}", line 3, in f')


def test_the_frame_check_knows_a_clone_in_a_folder_called_jaxpyop(tmp_path):
    assert_no_library_frames(f'File "{tmp_path / "jaxpyop" / "tests" / "test_it.py"}", line 3, in f')


def test_the_text_under_vmap_shows_one_elements_shapes(transport):
    f = jax.jit(jax.vmap(lambda x, n: py_func(user_body, [x, n], F, output_shapes=(3,)), (0, None)))
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match=r"inputs: x=float32\[3\] .*, n=int32\[\] 3"
    ) as caught:
        run(f, jnp.stack([X, X]), jnp.int32(3))
    assert "batch index 0" in str(caught.value)


def test_the_text_of_a_chain_shows_every_link(transport):
    def body(x):
        try:
            helper(1)
        except LookupError as error:
            raise ValueError("outer") from error

    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="outer") as caught:
        run(jax.jit(lambda x: py_func(body, [x], F)), X)
    text = str(caught.value)
    assert "no entry 1" in text
    assert "direct cause of the following exception" in text
    assert_no_library_frames(text)


def test_the_text_of_a_body_that_fails_in_jax_has_no_library_frames(transport):
    def body(x):
        return jnp.dot(x, jnp.ones((7, 7)))  # shapes that do not fit

    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="'body' failed") as caught:
        run(jax.jit(lambda x: py_function(body, [x], F, output_shapes=(7,))), X)
    assert "return jnp.dot(x, jnp.ones((7, 7)))" in str(caught.value)
    assert_no_library_frames(str(caught.value))


def test_notes_are_in_the_text(transport):
    def body(x):
        error = ValueError("mine")
        error.add_note("a note of the user's")
        raise error

    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="a note of the user's"):
        run(jax.jit(lambda x: py_func(body, [x], F)), X)


def test_syntax_errors_and_groups_have_their_text(transport):
    def syntax(x):
        compile("1 +", "made.py", "eval")

    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=r"made\.py"):
        run(jax.jit(lambda x: py_func(syntax, [x], F)), X)

    def group(x):
        raise ExceptionGroup("several", [ValueError("first of two"), KeyError("second of two")])

    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=r"(?s)first of two.*second of two"):
        run(jax.jit(lambda x: py_func(group, [x], F)), X)


KINDS = {
    "function": (lambda: user_body, "user_body"),
    "lambda": (lambda: lambda x, n: helper(1), "lambda"),
    "partial": (lambda: functools.partial(user_body), "user_body"),
    "callable object": (lambda: type("Thing", (), {"__call__": lambda self, x, n: helper(1)})(), "Thing"),
    "method": (lambda: type("Thing", (), {"go": lambda self, x, n: helper(1)})().go, "<lambda>|go"),
    "ufunc": (lambda: np.frompyfunc(lambda x, n: helper(1), 2, 1), "<lambda>|ufunc"),
    "builtin": (lambda: divmod_by_none, "divmod_by_none"),
    "jitted": (lambda: jax.jit(user_body), "user_body"),
    "wrapped": (lambda: functools.wraps(user_body)(lambda *a: user_body(*a)), "user_body"),
}


def divmod_by_none(x, n):
    return divmod(None, 1)


@pytest.mark.parametrize(("make", "name"), KINDS.values(), ids=KINDS)
def test_every_kind_of_callable_is_named(make, name, transport):
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=rf"function: .*({name})"):
        run(jax.jit(lambda x, n: numpy_function(make(), [x, n], F, output_shapes=(3,))), X, jnp.int32(1))


def test_no_traceback_of_the_library_between_the_user_and_a_direct_error():
    """A direct call's traceback shows the call and the body; frames between are few."""
    with pytest.raises(LookupError, match="no entry") as caught:
        py_func(user_body, [X, 1], F)
    frames = [f.name for f in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-2:] == ["user_body", "helper"]


# -------------------------------------------------- what says what to do instead


@every_api
def test_jax_export_says_what_to_do(api):
    f = jax.jit(lambda x: api(lambda x: x * 2, [x], F, output_shapes=(3,)))
    with pytest.raises(
        Exception,
        match=r"'lambda': a Python function belongs to its process, so jax.export cannot .*; export the parts",
    ) as caught:
        jax.export.export(f)(X)
    assert isinstance(caught.value, (NotImplementedError, ValueError))


FORWARD = {
    "jvp": lambda f: jax.jvp(f, (2.0,), (1.0,)),
    "jacfwd": lambda f: jax.jacfwd(f)(2.0),
    "jit of jvp": lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (1.0,)))(2.0),
    "linearize": lambda f: jax.linearize(f, 2.0)[1](1.0),
    "hessian": lambda f: jax.hessian(f)(2.0),
}


@pytest.mark.parametrize("take", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("vjp", [None, lambda i, o, c: 2 * c[0]], ids=["without vjp", "with vjp"])
def test_forward_mode_of_a_numpy_function_says_what_to_do(take, vjp, transport):
    f = lambda x: numpy_function(lambda x: x * 2, [x], F, vjp=vjp)
    with pytest.raises(
        Exception, match=r"(?s)'lambda'.*(forward-mode|[Ss]econd derivative|backward pass).*(py_function|vjp=)"
    ):
        jax.block_until_ready(take(f))


@pytest.mark.parametrize("take", FORWARD.values(), ids=FORWARD)
def test_forward_mode_of_a_py_function(take, transport):
    """Right, or an error that says what to do."""
    body = lambda x: x**3
    try:
        got = take(lambda x: py_function(body, [x], F))
    except Exception as error:
        assert "py_function" in str(error)  # noqa: PT017
        assert "mode='traced'" in str(error)  # noqa: PT017
    else:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, take(body))


def test_a_generator_or_coroutine_in_flight_is_closed():
    """No "coroutine was never awaited" warning comes after the error."""

    async def work(x):
        return x

    with pytest.raises(TypeError, match="never run"):
        py_func(lambda x: work(x), [1.0], F)


def test_an_error_without_frames_of_the_users_is_said_once(transport):
    with pytest.raises(Exception, match="where \\(\\) was declared") as caught:
        jax.block_until_ready(jax.jit(lambda x: py_func(lambda x: np.ones(2), [x], F, output_shapes=()))(1.0))
    assert str(caught.value).count("was declared") == 1


class FakeShell:
    """What IPython knows of its cells."""

    compile = property(lambda self: self)

    def format_code_name(self, filename):
        return ("Cell", "In[7]") if filename == "/tmp/cell_1.py" else None


def test_a_cell_of_a_notebook_is_named_as_it_is_there(monkeypatch, transport):
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=FakeShell))
    namespace = {}
    exec(compile("def pick(x):\n    raise KeyError(int(x))", "/tmp/cell_1.py", "exec"), namespace)

    def chained(x):
        try:
            namespace["pick"](x)
        except KeyError as error:
            raise ValueError("no such row") from error

    for func, where in ((namespace["pick"], r"pick, Cell In\[7\]:1"), (chained, "chained, .*test_error_texts.py")):
        with pytest.raises(Exception, match=where) as caught:
            jax.block_until_ready(jax.jit(lambda x, f=func: py_func(f, [x], F))(1.0))
        assert 'File "Cell In[7]", line 2, in pick' in str(caught.value)
        assert "/tmp/cell_1.py" not in str(caught.value)
