"""Exceptions in bodies come out, directly and under `jit`."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.shared.error_cases import (
    EXCEPTIONS,
    SEVERAL,
    F,
    Failing,
    X,
    raised_by,
    reraised_by,
    run,
)
from tests.shared.util import both_sides, every_api, py_function, run_python


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
