"""`reraise()`: the original exception of a compiled program, with its traceback, on every thread."""

import signal
import threading
import traceback
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.errors.exceptions import JAX_ERRORS, F, Failing, NeedsArguments, X, finish, raised_by
from tests.shared.checks import eventually, run
from tests.shared.functions import numpy_function, py_func

KEPT = 64  # The guide says how many exceptions are kept.


def failing_program(**options):
    body = Failing(**options)
    return body, jax.jit(lambda x: numpy_function(body, [x], F))


def test_everything_else_passes():
    with jaxpyop.reraise():
        pass
    for error in (
        ValueError("mine"),
        KeyboardInterrupt("mine"),
        jax.errors.JaxRuntimeError("[jaxpyop error ffffff-1]"),
    ):

        def fail(error=error):
            raise error

        assert raised_by(run, fail) is error


def test_blocks_nest_and_an_error_may_have_been_caught_before():
    body, f = failing_program(make=lambda: NeedsArguments(3, "mine"))
    with pytest.raises(JAX_ERRORS, match="failed") as first:
        finish(f, -X)
    with pytest.raises(NeedsArguments, match="3: mine") as caught, jaxpyop.reraise(), jaxpyop.reraise():
        raise first.value
    assert caught.value is body.raised[0]
    assert caught.value.code == 3
    assert caught.value.__context__ is first.value


QUOTING = {
    "RuntimeError": lambda error: RuntimeError(f"step 3 failed: {error}"),
    "ValueError": lambda error: ValueError(f"cannot read the log: {error}"),
    "own class": lambda error: NeedsArguments(str(error), 1),
}


@pytest.mark.parametrize("quote", QUOTING.values(), ids=QUOTING)
def test_an_exception_that_quotes_jaxs_is_left_alone(quote):
    _, inner = failing_program()
    raised = []

    def quoting(x):
        try:
            finish(inner, x)
        except Exception as error:
            raised.append(quote(error))
            raise raised[-1] from error

    assert raised_by(run, quoting, -X) is raised[0]
    outer = jax.jit(lambda x: py_func(quoting, [x], F))
    assert raised_by(run, outer, -X) is raised[1]


def test_the_original_keeps_its_traceback_and_the_text_tells_what_was_being_handled():
    def helper(value):
        try:
            {}["k"]
        except KeyError:
            raise OSError(f"later {value}")  # noqa: B904

    def user_body(x):
        return helper(float(x[0]))

    with pytest.raises(OSError, match=r"later 0\.5") as caught:
        run(jax.jit(lambda x: py_func(user_body, [x], F)), X)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-2:] == ["user_body", "helper"]
    assert isinstance(caught.value.__context__, JAX_ERRORS)
    assert "KeyError: 'k'" in str(caught.value.__context__)


def test_the_last_ones_are_kept():
    body, f = failing_program(make=lambda: KeyError(len(body.raised)))
    errors = [raised_by(finish, f, -X) for _ in range(KEPT + 4)]
    for k, (error, original) in enumerate(zip(errors, body.raised, strict=True)):

        def again(error=error):
            raise error

        assert raised_by(run, again) is (error if k < 4 else original)


def test_an_interrupt_while_a_function_runs():
    """Ctrl-C, which Python raises on the main thread, where small programs run."""
    presses = [True]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored

    def body(x):
        if presses and presses.pop():
            signal.raise_signal(signal.SIGINT)
        return x

    f = jax.jit(lambda x: numpy_function(body, [x], F))
    try:
        assert isinstance(raised_by(run, f, X), KeyboardInterrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    np.testing.assert_array_equal(f(X), X)


@pytest.mark.parametrize("count", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_threads_that_fail_at_once_find_their_own_exceptions(count):
    all_failed = threading.Barrier(count)
    found = {}

    def fail_and_ask(k):
        body, f = failing_program(make=lambda: KeyError(k))

        def fail():
            try:
                finish(f, -X)
            finally:
                all_failed.wait(30)

        found[k] = raised_by(run, fail) is body.raised[0]

    threads = [threading.Thread(target=fail_and_ask, args=(k,)) for k in range(count)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert found == dict.fromkeys(range(count), True)


class Large(np.ndarray):
    """An array that can be referred to weakly."""


@pytest.mark.parametrize("chained", [False, True], ids=["alone", "with a cause"])
def test_variables_of_functions_that_failed_are_freed(chained):
    """Only the newest error keeps the variables of its frames; the others keep their lines."""
    refs = []

    def body(x):
        large = np.zeros(1000).view(Large)
        refs.append(weakref.ref(large))
        if not chained:
            raise KeyError(float(x))
        try:
            return large[2000]
        except IndexError as error:
            raise KeyError(float(x)) from error

    f = jax.jit(lambda x: numpy_function(body, [x], F))
    errors = [str(raised_by(finish, f, jnp.float32(i))) for i in range(8)]
    assert eventually(lambda: sum(ref() is not None for ref in refs) <= 1)
    with pytest.raises(KeyError, match="3") as found, jaxpyop.reraise():
        raise jax.errors.JaxRuntimeError(errors[3])
    lines = "".join(traceback.format_exception(found.value))
    assert "raise KeyError(float(x))" in lines
    assert f"line {body.__code__.co_firstlineno + 4 + 4 * chained}, in " in lines
    assert ("return large[2000]" in lines) == chained
