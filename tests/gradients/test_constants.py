"""A differentiated value that leaves JAX inside a body says so, by `config.constants`."""

from __future__ import annotations

import inspect
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._tape import vjp
from tests.shared.tape_bodies import TRACEABLE, arrays
from tests.shared.util import close, numpy_function, py_function

F = jnp.float32
X = jnp.array([0.5, -1.25, 2.0])


@pytest.fixture(autouse=True)
def setting():
    with jaxpyop.config.override(constants="warn"):
        yield


def derive(body, jit=False, name="mine"):
    f = jax.grad(lambda x: py_function(body, [x], F, output_shapes=(3,), name=name).sum())
    return jax.block_until_ready((jax.jit(f) if jit else f)(X))


def said(body, **options):
    """What a gradient warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        derive(body, **options)
    return caught


# Each: a body that takes its array away, and how the warning calls that.
TAKING = {
    "ufunc": (lambda x: x * np.exp(x), "NumPy"),
    "function": (lambda x: x * np.linalg.norm(x), "NumPy"),
    "asarray": (lambda x: x * np.asarray(x), "NumPy"),
    "a list of scalars": (lambda x: x * np.array([x[0], x[1], x[2]]), "NumPy"),
    "tolist": (lambda x: x * sum(x.tolist()), "x.tolist()"),
    "tobytes": (lambda x: x * len(x.tobytes()), "x.tobytes()"),
    "dlpack": (lambda x: x * np.from_dlpack(x), "DLPack"),
    "result": (lambda x: np.sin(x), "NumPy"),
}
# Bodies that decide by a value, come to jnp by themselves, or say what they mean.
SILENT = {
    "float": lambda x: x * float(x[0]),
    "bool and int": lambda x: x * int(x[2]) if x[0] > 0 and bool(x[1]) else x,
    "item": lambda x: x * x[0].item(),
    "format": lambda x: x * len(f"{x[0]:.2f} {x}"),
    "operators of arrays": lambda x: np.ones(3, np.float32) * x + np.float32(2) * x,
    "np.sum": lambda x: x * np.sum(x),
    "np.shape": lambda x: x * np.shape(x)[0] * np.ndim(x) * np.size(x),
    "iteration": lambda x: sum(v * v for v in x) * x,
    "stop_gradient": lambda x: x * np.asarray(jax.lax.stop_gradient(x)),
    "of a comparison": lambda x: x * np.asarray(x > 0),
    "an op inside": lambda x: numpy_function(np.sin, [x], F, vjp=lambda i, o, c: c[0] * np.cos(i[0])),
    "not differentiated": lambda x: x * np.asarray(X),
}


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
@pytest.mark.parametrize(("body", "how"), TAKING.values(), ids=TAKING)
def test_it_warns_once_for_a_line(body, how, jit, transport):
    name = f"{transport}, {jit}"  # once for each op
    (warning,) = said(body, jit=jit, name=name)
    text = str(warning.message)
    assert text.startswith(f"py_function '{name}': {how}")
    for part in ("float32[", "derivative is zero", "jnp", "vjp=", "np.asarray(jax.lax.stop_gradient(x))"):
        assert part in text
    assert said(body, jit=jit, name=name) == []


def test_the_warning_is_at_the_users_line_and_each_line_has_its_own():
    def body(x):
        return x * np.exp(x) + helper(x)

    def helper(x):
        y = np.abs(x)
        return x * y

    caught = said(body)
    lines = [inspect.getsourcelines(body)[1] + 1, inspect.getsourcelines(helper)[1] + 1]
    assert [(w.filename, w.lineno, w.category) for w in caught] == [(__file__, n, RuntimeWarning) for n in lines]


def test_another_op_at_the_same_line_says_it_too():
    body = lambda x: x * np.tanh(x)
    for name in ("one", "two"):
        f = jax.grad(lambda x: py_function(body, [x], F, name=name).sum())  # noqa: B023  # called at once
        with pytest.warns(RuntimeWarning, match=f"py_function '{name}'"):
            f(X)


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
@pytest.mark.parametrize("body", SILENT.values(), ids=SILENT)
def test_it_is_silent(body, jit, transport):
    assert said(body, jit=jit) == []


def test_nothing_is_said_where_nothing_is_differentiated(route):
    kept = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for body, _ in TAKING.values():
            route(lambda x: py_function(body, [x], F, output_shapes=(3,)), X)  # noqa: B023  # called at once
        derive(lambda x: (kept.append(x), x)[1])
        close(np.asarray(kept[0]), X)  # the run is over


@pytest.mark.parametrize("body", [body for body, _ in TAKING.values()], ids=TAKING)
def test_allowed(body):
    with jaxpyop.config.override(constants="allow"):
        assert said(body, name="allowed") == []


# Each: a body whose result depends on no differentiated input, though the values of one may be in it.
WHOLE = {
    "float": lambda x: jnp.full(3, float(x[0]) ** 2),
    "item": lambda x: jnp.full(3, x[0].item() ** 2),
    "math": lambda x: np.full(3, math.sin(x[0]), np.float32),
    "one of two branches": lambda x: jnp.full(3, float(x[0])) if x[0] > 0 else x,
}
# Bodies that decide by a value, or say what they mean.
MEANT = {
    "bool": lambda x: jnp.ones(3) if x[0] > 0 and bool(x[1]) else x,
    "int": lambda x: jnp.full(3, float(int(x[2]))),
    "stop_gradient": lambda x: jnp.full(3, float(jax.lax.stop_gradient(x[0]))),
    "format": lambda x: jnp.full(3, float(f"{x[0]}")),
    "nothing taken": lambda x: jnp.ones(3),
}


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
@pytest.mark.parametrize("body", WHOLE.values(), ids=WHOLE)
def test_a_result_without_a_derivative_warns_once_for_each_op(body, jit, transport):
    name = f"whole {transport}, {jit}, {list(WHOLE.values()).index(body)}"
    (warning,) = said(body, jit=jit, name=name)
    assert (warning.filename, warning.lineno) == (__file__, inspect.getsourcelines(body)[1])
    for part in (f"py_function '{name}': ", "took the value of a differentiated float32[]", "array 0", "stop_gradient"):
        assert part in str(warning.message)
    assert said(body, jit=jit, name=name) == []
    with jaxpyop.config.override(constants="allow"):
        assert said(body, jit=jit, name="another") == []
    makes_constant = pytest.raises(TypeError, match="makes a constant")
    with jaxpyop.config.override(constants="error"), makes_constant, jaxpyop.reraise():
        derive(body, jit=jit)


@pytest.mark.parametrize("body", MEANT.values(), ids=MEANT)
def test_a_result_that_is_meant_as_a_constant_is_silent(body):
    assert said(body, name="meant") == []


def test_a_result_of_integers_has_no_derivative_to_lose():
    def loss(x):
        y, n = py_function(lambda x: (x**2, jnp.int32(float(x[0]))), [x], (F, jnp.int32), output_shapes=((3,), ()))
        return y.sum() + n

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(jax.grad(loss)(X), 2 * X)


# With "error" what makes a Python number of a value is one as well, where a derivative is lost.
REFUSED = {name: body for name, (body, _) in TAKING.items()} | {
    "float": SILENT["float"],
    "item": SILENT["item"],
    "complex": lambda x: x * complex(x[0]).real,
}


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_an_error(body, jit, transport):
    with jaxpyop.config.override(constants="error"):
        text = r"py_function 'mine': .* differentiated .* derivative is zero"
        with pytest.raises(TypeError, match=text), jaxpyop.reraise():
            derive(body, jit=jit)
        derive(lambda x: x**2)


def halved(x):
    while float(x) > 0.3:
        x = x / 2
    return x


NUMBERS = {
    "float": lambda x: float(x) ** 2,
    "item": lambda x: x.item() * x,
    "in a while": halved,
}
DERIVATIVES = {
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(x[None]),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
}


@pytest.mark.parametrize("mode", ["traced", "auto"])
@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
@pytest.mark.parametrize("body", NUMBERS.values(), ids=NUMBERS)
def test_an_error_in_a_function_that_is_traced(body, derivative, mode):
    f = lambda x: py_function(body, [x], F, output_shapes=(), mode=mode, max_steps=4)
    with jaxpyop.config.override(constants="error"):
        # Another derivative does not need the number's.
        assert jax.grad(lambda y: y * jax.jit(f)(jnp.float32(0.5)))(1.0) == body(jnp.float32(0.5))
        with pytest.raises(TypeError, match=r"test_constants.py:\d+: float\(x\) makes a constant of a differentiated"):
            derivative(f)(jnp.float32(0.5))


@pytest.mark.parametrize("name", [name for name in SILENT if name not in REFUSED])
def test_what_is_no_error_either(name, transport):
    with jaxpyop.config.override(constants="error"):
        derive(SILENT[name])


@pytest.mark.parametrize("name", TRACEABLE)
def test_jax_itself_takes_nothing_out(name):
    body, inputs = TRACEABLE[name]
    flat = lambda *args: jax.tree.leaves(body(*args))
    with jaxpyop.config.override(constants="error"):
        outs = flat(*arrays(inputs))
        vjp(flat, arrays(inputs), [jnp.ones_like(o) if jnp.issubdtype(o.dtype, jnp.inexact) else None for o in outs])
