"""Exceptions in bodies, directly and under `jit`."""

from __future__ import annotations

import functools
import re
import sys
import threading
import traceback
import types

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from util import APIS, numpy_function, py_func, py_function, run_python

import jaxpyop

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])
every_api = pytest.mark.parametrize("api", APIS.values(), ids=APIS)
both_sides = pytest.mark.parametrize("api", [py_function, numpy_function])


class NeedsArguments(Exception):  # noqa: N818
    def __init__(self, code, detail):
        super().__init__(f"{code}: {detail}")
        self.code = code


class BrokenStr(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("no text")


class BrokenRepr(Exception):  # noqa: N818
    def __repr__(self):
        raise RuntimeError("no repr")


class OddEquality(Exception):  # noqa: N818
    def __eq__(self, other):
        raise RuntimeError("not comparable")

    __hash__ = None


class BaseOnly(BaseException):
    pass


class ReadOnlyNotes(Exception):  # noqa: N818
    def add_note(self, note):
        raise RuntimeError("no notes")


def chained():
    try:
        raise KeyError("the cause")
    except KeyError as error:
        try:
            raise ValueError("the effect") from error
        except ValueError as effect:
            return effect


EXCEPTIONS = {
    "ValueError": lambda: ValueError("mine"),
    "KeyError": lambda: KeyError("mine"),
    "TypeError": lambda: TypeError("mine"),
    "AssertionError": lambda: AssertionError(),
    "ZeroDivisionError": lambda: ZeroDivisionError("division by zero"),
    "StopIteration": lambda: StopIteration(3),
    "OSError": lambda: OSError(2, "no such file", "a.txt"),
    "UnicodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "MemoryError": lambda: MemoryError("mine"),
    "RecursionError": lambda: RecursionError("mine"),
    "own class": lambda: NeedsArguments(3, "mine"),
    "broken __str__": lambda: BrokenStr("mine"),
    "broken __repr__": lambda: BrokenRepr("mine"),
    "odd equality": lambda: OddEquality("mine"),
    "no notes": lambda: ReadOnlyNotes("mine"),
    "group": lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    "base group": lambda: BaseExceptionGroup("several", [KeyboardInterrupt("one"), KeyError("two")]),
    "chained": chained,
    "KeyboardInterrupt": lambda: KeyboardInterrupt("mine"),
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": lambda: GeneratorExit("mine"),
    "own base": lambda: BaseOnly("mine"),
    "long text": lambda: ValueError("long " * 50_000),
    "many lines": lambda: ValueError("one\ntwo\n\nthree"),
    "odd characters": lambda: ValueError("%s {0} \x00 é 漢 [jaxpyop error 1]"),
    "no arguments": lambda: Exception(),
    "JAX's own": lambda: jax.errors.JaxRuntimeError("mine"),
}
SEVERAL = ["KeyError", "own class", "broken __str__", "KeyboardInterrupt", "SystemExit", "group"]


class Failing:
    """A body that fails on negative first elements, and keeps what it raised."""

    __name__ = "failing"

    def __init__(self, make):
        self.make = make
        self.raised = []

    def __call__(self, x):
        if np.asarray(x).ravel()[0] < 0:
            self.raised.append(self.make())
            raise self.raised[-1]
        return x * 2


def raised_by(f, *args):
    """What a call raises; pytest.raises cannot match an exception without text."""
    try:
        f(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def reraised_by(f, *args):
    def call():
        with jaxpyop.reraise():
            f(*args)

    return raised_by(call)


def run(f, *args):
    jax.block_until_ready(f(*args))
    jax.effects_barrier()


@pytest.mark.parametrize("make", EXCEPTIONS.values(), ids=EXCEPTIONS)
@every_api
def test_direct_calls_raise_the_users_own_exception(api, make):
    body = Failing(make)
    assert raised_by(api, body, [-X], F) is body.raised[0]
    assert reraised_by(api, body, [-X], F) is body.raised[1]
    np.testing.assert_array_equal(api(body, [X], F), X * 2)


@pytest.mark.parametrize("make", EXCEPTIONS.values(), ids=EXCEPTIONS)
@both_sides
def test_under_jit_cold_and_warm(api, make, transport):
    """JAX's error, its text, the original by reraise(), and the next call works."""
    body = Failing(make)
    f = jax.jit(lambda x: api(body, [x], F, output_shapes=(3,)))
    for warm in range(4):
        body.raised.clear()
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="'failing' failed") as caught:
            run(f, -X)
        assert type(body.raised[0]).__name__ in str(caught.value)
        original = reraised_by(run, f, -X)
        assert original is body.raised[1]
        assert isinstance(original.__context__, (jax.errors.JaxRuntimeError, ValueError))
        assert "'failing' failed" in str(original.__context__)
        if warm % 2:
            np.testing.assert_array_equal(f(X), X * 2)


@pytest.mark.parametrize("transport", ["auto", "callback"])
@pytest.mark.parametrize("where", ["in the text", "in a note", "in a cause"])
def test_what_utf8_cannot_encode(where, transport):
    """A lone surrogate, as in the name of a file on disk; in a process of its own, for it can crash XLA."""
    run_python(f"""
import jaxpyop, jax, jax.numpy as jnp
jaxpyop.config.transport = {transport!r}
where = {where!r}
def body(x):
    error = ValueError("\\udc80" if where == "in the text" else "mine")
    if where == "in a note":
        error.add_note("\\udc80")
    raise error from (KeyError("\\udc80") if where == "in a cause" else None)
f = jax.jit(lambda x: jaxpyop.numpy_function(body, [x], jnp.float32))
for _ in range(3):
    try:
        with jaxpyop.reraise():
            f(1.0).block_until_ready()
    except ValueError as error:
        assert type(error) is ValueError and isinstance(error.__context__, (jax.errors.JaxRuntimeError, ValueError))
    else:
        raise SystemExit("no error")
""")


PROGRAMS = {
    "jit": lambda op: jax.jit(op),
    "scan": lambda op: jax.jit(lambda x: lax.scan(lambda c, v: (op(v), c), 0.0, x)),
    "while_loop": lambda op: jax.jit(lambda x: lax.while_loop(lambda v: v[0] < 9, op, x)),
    "cond": lambda op: jax.jit(lambda x: lax.cond(x[2] != 0, op, lambda x: x, x)),
    "vmap": lambda op: jax.vmap(op),
    "jit of vmap": lambda op: jax.jit(jax.vmap(op)),
    "jit of grad": lambda op: jax.jit(jax.grad(lambda x: op(x).sum())),
    "grad": lambda op: jax.grad(lambda x: op(x).sum()),
    "direct scan": lambda op: lambda x: lax.scan(lambda c, v: (op(v), c), 0.0, x),
    "map": lambda op: lambda x: lax.map(op, x),
    "nested op": lambda op: jax.jit(lambda x: py_function(op, [x], F, output_shapes=(3,))),
    "jit in a body": lambda op: jax.jit(lambda x: py_function(jax.jit(op), [x], F, output_shapes=(3,))),
}


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
def test_the_original_comes_out_of_every_program(name, program, stateful, transport):
    body = Failing(EXCEPTIONS[name])
    f = program(lambda x: py_function(body, [x], F, output_shapes=np.shape(x), stateful=stateful))
    for _ in range(2):
        body.raised.clear()
        original = reraised_by(run, f, -X)
        assert any(original is error for error in body.raised)
    run(f, jnp.abs(X))


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
        "float32[3], int32[]",
        "Traceback (most recent call last)",
        f'File "{__file__}", line {line("# the line that fails")}, in helper',
        'raise LookupError(f"no entry {value}")',
        "return helper(float(np.asarray(y)[0]))",
        "LookupError: no entry 1.0",
        "jaxpyop.reraise()",
    ):
        assert part in text, part
    assert_no_library_frames(text)


def assert_no_library_frames(text):
    files = re.findall(r'File "([^"]+)"', text)
    assert files, "the text has a traceback"
    library = [name for name in files if "/jaxpyop/" in name or "/jax/" in name or "/jaxlib/" in name]
    assert not library, library


def test_the_frame_check_can_fail():
    with pytest.raises(AssertionError, match="jax"):
        assert_no_library_frames(f'File "{jax.__file__}", line 3, in f')


def test_the_text_under_vmap_shows_one_elements_shapes(transport):
    f = jax.jit(jax.vmap(lambda x, n: py_func(user_body, [x, n], F, output_shapes=(3,)), (0, None)))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=r"float32\[3\], int32\[\]") as caught:
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


# -------------------------------------------------------------------- reraise()


def test_reraise_lets_everything_else_pass():
    with jaxpyop.reraise():
        pass
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught, jaxpyop.reraise():
        raise error
    assert caught.value is error
    with pytest.raises(jax.errors.JaxRuntimeError, match="other"), jaxpyop.reraise():
        raise jax.errors.JaxRuntimeError("other [jaxpyop error ffffff-1]")
    with pytest.raises(KeyboardInterrupt, match="mine"), jaxpyop.reraise():
        raise KeyboardInterrupt("mine")


def test_reraise_nests(transport):
    body = Failing(EXCEPTIONS["KeyError"])
    f = jax.jit(lambda x: py_func(body, [x], F))
    with pytest.raises(KeyError, match="mine") as caught, jaxpyop.reraise(), jaxpyop.reraise():
        run(f, -X)
    assert caught.value is body.raised[0]


def test_reraise_has_the_users_traceback(transport):
    f = jax.jit(lambda x: py_func(user_body, [x, 1], F))
    with pytest.raises(LookupError, match="no entry") as caught, jaxpyop.reraise():
        run(f, X)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-2:] == ["user_body", "helper"]


def test_reraise_of_an_error_caught_before(transport):
    body = Failing(EXCEPTIONS["own class"])
    f = jax.jit(lambda x: py_func(body, [x], F))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="failed") as first:
        run(f, -X)
    with pytest.raises(NeedsArguments, match="3: mine") as caught, jaxpyop.reraise():
        raise first.value
    assert caught.value is body.raised[0]
    assert caught.value.code == 3
    assert caught.value.__context__ is first.value


def test_the_last_sixteen_are_kept(transport):
    body = Failing(lambda: KeyError(len(body.raised)))
    f = jax.jit(lambda x: py_func(body, [x], F))
    errors = []
    for _ in range(20):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="failed") as caught:
            run(f, -X)
        errors.append(caught.value)
    originals = list(body.raised)
    assert len(originals) == 20
    for error, original in zip(errors[-16:], originals[-16:]):
        with pytest.raises(KeyError, match=r"\d+") as caught, jaxpyop.reraise():
            raise error
        assert caught.value is original
    for error in errors[:4]:
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="failed"), jaxpyop.reraise():
            raise error


def test_reraise_in_several_threads(transport):
    wrong = []

    def work(k):
        body = Failing(lambda: KeyError(k))
        f = jax.jit(lambda x: py_func(body, [x], F))
        for _ in range(4):  # no more at once than reraise() keeps
            try:
                with jaxpyop.reraise():
                    jax.block_until_ready(f(-X))
            except KeyError as error:
                if error.args != (k,):
                    wrong.append(error)
            else:
                wrong.append(None)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


# ---------------------------------------------------------- nothing is corrupted


@pytest.mark.parametrize(
    "options", [{}, {"stateful": True}, {"ordered": True}], ids=["stateless", "stateful", "ordered"]
)
def test_errors_and_successes_in_turn(options, transport):
    body = Failing(EXCEPTIONS["ValueError"])
    f = jax.jit(lambda x: numpy_function(body, [x], F, **options))
    for i in range(30):
        if i % 3 == 1:
            with pytest.raises(ValueError, match="mine"), jaxpyop.reraise():
                run(f, -X)
        else:
            np.testing.assert_array_equal(f(X + i), (X + i) * 2)


def test_large_arrays_after_an_error(transport):
    body = Failing(EXCEPTIONS["ValueError"])
    f = jax.jit(lambda x: numpy_function(body, [x], F))
    big = jnp.ones(200_000)
    for _ in range(3):
        with pytest.raises(ValueError, match="mine"), jaxpyop.reraise():
            run(f, -big)
        assert (np.asarray(f(big)) == 2).all()


def test_one_of_two_ops_fails(transport):
    good, bad = Failing(EXCEPTIONS["KeyError"]), Failing(EXCEPTIONS["KeyError"])
    f = jax.jit(lambda x: py_func(good, [x], F) + py_func(bad, [-x], F))
    for _ in range(3):
        with pytest.raises(KeyError, match="mine"), jaxpyop.reraise():
            run(f, X)
    np.testing.assert_array_equal(jax.jit(lambda x: py_func(good, [x], F))(X), X * 2)


def test_an_undrained_error_does_not_hang_what_comes_after(transport):
    body = Failing(EXCEPTIONS["KeyError"])
    f = jax.jit(lambda x: numpy_function(body, [x], F))
    pending = []
    for x in [X, -X, X, -X, X]:
        try:
            pending.append(f(x))
        except Exception:  # some calls report at once
            pending.append(None)
    outcomes = []
    for y in pending:
        try:
            outcomes.append(None if y is None else np.asarray(y).tolist())
        except Exception:
            outcomes.append(None)
    good = (X * 2).tolist()
    assert outcomes == [good, None, good, None, good]
    run(f, X)


def test_an_error_then_effects_barrier_then_success():
    """A failed stateful call is reported once, not again by a later barrier."""
    body = Failing(EXCEPTIONS["KeyError"])
    f = jax.jit(lambda x: py_func(body, [x], F))
    with pytest.raises(KeyError, match="mine"), jaxpyop.reraise():
        run(f, -X)
    run(f, X)


def test_the_environment_is_restored_after_an_error(transport):
    def body(x):
        raise ValueError("mine")

    with jax.enable_x64(True):
        f = jax.jit(lambda x: py_func(body, [x], F))
        with pytest.raises(ValueError, match="mine"), jaxpyop.reraise():
            run(f, X)
    assert not jax.config.jax_enable_x64
    assert jnp.asarray(np.float64(1)).dtype == np.float32
    assert jaxpyop.py_func(np.sin, [1.0], F).dtype == np.float32


def test_warnings_of_a_body_raised_as_errors(transport):
    import warnings

    def body(x):
        warnings.warn("careful", UserWarning, stacklevel=1)
        return x

    with pytest.raises(UserWarning, match="careful"), jaxpyop.reraise():
        run(jax.jit(lambda x: py_func(body, [x], F)), X)


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


def test_what_a_tensorflow_user_writes_is_answered(transport):
    """`x.numpy()` of a tensor is `np.asarray(x)` here."""
    with pytest.raises(AttributeError, match="no attribute 'numpy'") as caught:
        py_function(lambda x: x.numpy(), [1.0], F)
    assert "np.asarray(x)" in caught.value.__notes__[0]
    with pytest.raises(Exception, match=r"write np\.asarray\(x\), float\(x\) or x\.item\(\)"):
        jax.block_until_ready(jax.jit(lambda x: py_function(lambda x: x.numpy(), [x], F, output_shapes=()))(1.0))


def test_an_error_without_frames_of_the_users_is_said_once(transport):
    with pytest.raises(Exception, match="where \\(\\) was promised") as caught:
        jax.block_until_ready(jax.jit(lambda x: py_func(lambda x: np.ones(2), [x], F, output_shapes=()))(1.0))
    assert str(caught.value).count("was promised") == 1


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

    for func, where in ((namespace["pick"], r"pick, Cell In\[7\]:1"), (chained, "chained, .*test_errors.py")):
        with pytest.raises(Exception, match=where) as caught:
            jax.block_until_ready(jax.jit(lambda x, f=func: py_func(f, [x], F))(1.0))
        assert 'File "Cell In[7]", line 2, in pick' in str(caught.value)
        assert "/tmp/cell_1.py" not in str(caught.value)
