"""What a function raises comes out, directly and of every program, and spoils nothing that comes after."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.errors.exceptions import EXCEPTIONS, JAX_ERRORS, F, Failing, X, finish, raised_by
from tests.shared.checks import run
from tests.shared.functions import both_sides, numpy_function, py_func, py_function
from tests.shared.processes import run_python


@pytest.mark.parametrize("make", EXCEPTIONS.values(), ids=EXCEPTIONS)
@both_sides
def test_a_direct_call_raises_the_functions_own_exception(api, make):
    body = Failing(make)
    assert raised_by(api, body, [-X], F) is body.raised[0]
    assert raised_by(run, lambda: api(body, [-X], F)) is body.raised[1]
    np.testing.assert_array_equal(api(body, [X], F), X * 2)


@functools.cache
def one_program():
    """A compiled program that all exceptions come out of, in turn."""
    body = Failing()
    return body, jax.jit(lambda x: numpy_function(body, [x], F))


@pytest.mark.parametrize("make", EXCEPTIONS.values(), ids=EXCEPTIONS)
def test_a_program_raises_jaxs_error_and_reraise_the_original(make):
    body, f = one_program()
    body.make = make
    for _ in range(2):
        body.raised.clear()
        error = raised_by(finish, f, -X)
        assert isinstance(error, JAX_ERRORS)
        assert "'failing' failed" in str(error)
        assert type(body.raised[0]).__name__ in str(error)
        original = raised_by(run, f, -X)
        assert original is body.raised[1]
        assert isinstance(original.__context__, JAX_ERRORS)
        assert "'failing' failed" in str(original.__context__)
        np.testing.assert_array_equal(run(f, X), X * 2)


PROGRAMS = {
    "scan": lambda op: jax.jit(lambda x: lax.scan(lambda c, v: (op(v), c), 0.0, x)),
    "while_loop": lambda op: jax.jit(lambda x: lax.while_loop(lambda v: v[0] < 9, op, x)),
    "cond": lambda op: jax.jit(lambda x: lax.cond(x[2] != 0, op, lambda x: x, x)),
    "vmap": jax.vmap,
    "jit of vmap": lambda op: jax.jit(jax.vmap(op)),
    "grad": lambda op: jax.grad(lambda x: op(x).sum()),
    "jit of grad": lambda op: jax.jit(jax.grad(lambda x: op(x).sum())),
    "jit in a function": lambda op: jax.jit(lambda x: py_function(jax.jit(op), [x], F, output_shapes=(3,))),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_original_comes_out_of_every_program(program):
    """Of stateless and stateful ops."""
    for name, stateful in (("own class", False), ("KeyboardInterrupt", True)):
        body = Failing(EXCEPTIONS[name])
        f = program(lambda x: py_function(body, [x], F, output_shapes=np.shape(x), stateful=stateful))  # noqa: B023
        original = raised_by(run, f, -X)
        assert any(original is error for error in body.raised)
        run(f, jnp.abs(X))


# ------------------------------------------------------------ what comes after


@pytest.mark.parametrize("options", [{}, {"stateful": True}, {"ordered": True}], ids=str)
def test_errors_and_successes_in_turn(options):
    """Of small arrays, and of large ones, whose memory is used again."""
    f = jax.jit(lambda x: numpy_function(Failing(), [x], F, **options))
    for size, times in ((3, 12), (200_000, 4)):
        for i in range(times):
            x = jnp.full(size, i + 1.0)
            if i % 3 == 1:
                with pytest.raises(KeyError, match="mine"):
                    run(f, -x)
            else:
                np.testing.assert_array_equal(run(f, x), x * 2)


def test_an_error_that_nobody_waits_for_does_not_hang_what_comes_after():
    f = jax.jit(lambda x: numpy_function(Failing(), [x], F))

    def value(x):
        try:  # Some calls report at once, others where the result is used.
            y = f(x)
            return lambda: np.asarray(y).tolist()
        except JAX_ERRORS:
            return lambda: None

    def found(result):
        try:
            return result()
        except JAX_ERRORS:
            return None

    good = (X * 2).tolist()
    assert [found(y) for y in [value(x) for x in (X, -X, X, -X, X)]] == [good, None, good, None, good]


def test_settings_of_jax_are_restored_after_an_error():
    with jax.enable_x64(True), pytest.raises(KeyError, match="mine"):
        run(jax.jit(lambda x: py_func(Failing(), [x], F)), -X)
    assert not jax.config.jax_enable_x64
    assert jnp.asarray(np.float64(1)).dtype == np.float32
    assert py_func(np.sin, [1.0], F).dtype == np.float32


@pytest.mark.slow
def test_what_utf8_cannot_encode():
    """A lone surrogate, as in the name of a file on disk; in a process of its own, for it can crash XLA."""
    run_python("""
import jaxpyop, jax, jax.numpy as jnp
def body(x, where):
    error = ValueError("\\udc80" if where == "text" else "mine")
    if where == "note":
        error.add_note("\\udc80")
    raise error from (KeyError("\\udc80") if where == "cause" else None)
for jaxpyop._config.TRANSPORT, where in ("callback", "text"), ("auto", "note"), ("auto", "cause"), ("auto", "text"):
    f = jax.jit(lambda x: jaxpyop.numpy_function(lambda x: body(x, where), [x], jnp.float32))
    for _ in range(2):
        try:
            with jaxpyop.reraise():
                f(1.0).block_until_ready()
        except ValueError as error:
            assert type(error) is ValueError and isinstance(error.__context__, (jax.errors.JaxRuntimeError, ValueError))
        else:
            raise SystemExit("no error")
""")
