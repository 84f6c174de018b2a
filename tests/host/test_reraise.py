"""`reraise()`, and that an error corrupts nothing that comes after."""

from __future__ import annotations

import signal
import threading
import traceback
import weakref

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._host.errors import KEPT
from tests.shared.error_cases import (
    EXCEPTIONS,
    F,
    Failing,
    NeedsArguments,
    X,
    reraised_by,
    run,
)
from tests.shared.util import eventually, every_api, numpy_function, py_func

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


@every_api
def test_an_interrupt_in_a_body(api, route):
    """Ctrl-C, which Python raises on the main thread, where small programs run."""
    presses = [True]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored

    def body(x):
        if presses and presses.pop():
            signal.raise_signal(signal.SIGINT)
        return x

    f = lambda x: api(body, [x], F, output_shapes=lambda x: x.shape)
    f = jax.jit(f) if route.jit else f
    try:
        with pytest.raises(KeyboardInterrupt), jaxpyop.reraise():
            run(f, X)
    finally:
        signal.signal(signal.SIGINT, before)
    np.testing.assert_array_equal(f(X), X)  # the next call is whole


def test_reraise_nests(transport):
    body = Failing(EXCEPTIONS["KeyError"])
    f = jax.jit(lambda x: py_func(body, [x], F))
    with pytest.raises(KeyError, match="mine") as caught, jaxpyop.reraise(), jaxpyop.reraise():
        run(f, -X)
    assert caught.value is body.raised[0]


QUOTING = {
    "RuntimeError": lambda error: RuntimeError(f"step 3 failed: {error}"),
    "ValueError": lambda error: ValueError(f"cannot read the log: {error}"),
    "own class": lambda error: NeedsArguments(str(error), 1),
}


@pytest.mark.parametrize("quote", QUOTING.values(), ids=QUOTING)
def test_an_exception_that_quotes_jaxs_is_left_alone(quote, transport):
    inner = jax.jit(lambda x: py_func(Failing(EXCEPTIONS["KeyError"]), [x], F))

    def quoting(x):
        try:
            run(inner, x)
        except Exception as error:
            raised.append(quote(error))
            raise raised[-1] from error

    raised = []
    assert reraised_by(quoting, -X) is raised[0]
    outer = jax.jit(lambda x: py_func(quoting, [x], F))
    assert reraised_by(run, outer, -X) is raised[1]


def test_reraise_keeps_what_the_body_was_handling(transport):
    def body(x):
        try:
            {}["k"]
        except KeyError:
            raise OSError("later")  # noqa: B904

    f = jax.jit(lambda x: py_func(body, [x], F))
    for _ in range(2):
        with pytest.raises(OSError, match="later") as caught, jaxpyop.reraise():
            run(f, X)
        jaxs = caught.value.__context__
        assert isinstance(jaxs, (jax.errors.JaxRuntimeError, ValueError))
        assert isinstance(jaxs.__context__, KeyError)


def test_reraise_has_the_users_traceback(transport):
    def helper(value):
        raise LookupError(f"no entry {value}")

    def user_body(x, n):
        return helper(float(np.asarray(x)[0]))

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


def test_the_last_are_kept(transport):
    body = Failing(lambda: KeyError(len(body.raised)))
    f = jax.jit(lambda x: py_func(body, [x], F))
    errors = []
    for _ in range(KEPT + 4):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="failed") as caught:
            run(f, -X)
        errors.append(caught.value)
    originals = list(body.raised)
    assert len(originals) == KEPT + 4
    for error, original in zip(errors[-KEPT:], originals[-KEPT:]):
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


def test_thirty_threads_that_fail_at_once(transport):
    """Each finds its own exception, though nobody asks before all have failed."""
    all_failed = threading.Barrier(30)
    wrong = []

    def fail_and_ask(k):
        body = Failing(lambda: KeyError(k))
        try:
            with jaxpyop.reraise():
                try:
                    jax.block_until_ready(jax.jit(lambda x: py_func(body, [x], F))(-X))
                finally:
                    all_failed.wait(30)
        except BaseException as error:
            if type(error) is not KeyError or error.args != (k,):
                wrong.append(error)

    threads = [threading.Thread(target=fail_and_ask, args=(k,)) for k in range(30)]
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


class Large(np.ndarray):
    """An array that can be referred to weakly."""


@pytest.mark.parametrize("chained", [False, True], ids=["alone", "with a cause"])
def test_variables_of_bodies_that_failed_are_freed(transport, chained):
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
    errors = []
    for i in range(8):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="jaxpyop error") as caught:
            f(jnp.float32(i)).block_until_ready()
        errors.append(str(caught.value))
        del caught
    assert eventually(lambda: sum(ref() is not None for ref in refs) <= 1)
    with pytest.raises(KeyError, match="3") as found, jaxpyop.reraise():
        raise jax.errors.JaxRuntimeError(errors[3])
    lines = "".join(traceback.format_exception(found.value))
    assert "raise KeyError(float(x))" in lines
    assert f"line {body.__code__.co_firstlineno + 4 + 4 * chained}, in {body.__qualname__.rpartition('.')[2]}" in lines
    assert ("return large[2000]" in lines) == chained
