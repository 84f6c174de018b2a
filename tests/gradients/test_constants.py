"""A differentiated value that leaves JAX in a function loses its derivative: the warnings and errors about it."""

import inspect
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numpy_function, py_function
from tests.gradients.bodies import X3, F
from tests.shared.checks import close
from tests.shared.tables import rows

X = jnp.asarray(X3)
name_of_op = iter(f"op number {k}" for k in range(1000))


@pytest.fixture(autouse=True)
def setting():
    with jaxpyop.config.override(constants="warn"):
        yield


def derive(body, name=None):
    return jax.grad(lambda x: py_function(body, [x], F, output_shapes=(3,), name=name).sum())(X)


def said(body, name=None):
    """What a gradient warns of: once for each op, so that a new name has its own warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        derive(body, name or next(name_of_op))
    return caught


def warns_once(body, name, *parts):
    (warning,) = said(body, name)
    for part in parts:
        assert part in str(warning.message)
    assert said(body, name) == []
    with jaxpyop.config.override(constants="allow"):
        assert said(body) == []
    return warning


# Functions that take their array away, and what the warning calls it.
TAKING = {
    "ufunc": (lambda x: x * np.exp(x), "NumPy takes a differentiated float32[3]"),
    "asarray": (lambda x: x * np.asarray(x), "NumPy"),
    "tolist": (lambda x: x * sum(x.tolist()), "x.tolist()"),
    "tobytes": (lambda x: x * len(x.tobytes()), "x.tobytes()"),
    "dlpack": (lambda x: x * np.from_dlpack(x), "DLPack"),
    "result": (lambda x: np.sin(x), "NumPy"),
}
# Functions that decide by a value, come to jnp by themselves, or say what they mean.
SILENT = {
    "float": lambda x: x * float(x[0]),
    "item": lambda x: x * x[0].item(),
    "bool and int": lambda x: x * int(x[2]) if x[0] > 0 and bool(x[1]) else x,
    "format": lambda x: x * len(f"{x[0]:.2f} {x}"),
    "iteration": lambda x: sum(v * v for v in x) * x,
    "stop_gradient": lambda x: x * np.asarray(jax.lax.stop_gradient(x)),
    "a comparison": lambda x: x * np.asarray(x > 0),
    "an op inside": lambda x: numpy_function(np.sin, [x], F, vjp=lambda i, o, c: c * np.cos(i[0])),
    # Whole results that are meant as constants.
    "a constant by bool": lambda x: jnp.ones(3) if x[0] > 0 and bool(x[1]) else x,
    "a constant by int": lambda x: jnp.full(3, float(int(x[2]))),
    "a constant by stop_gradient": lambda x: jnp.full(3, float(jax.lax.stop_gradient(x[0]))),
}


@pytest.mark.parametrize(("body", "how"), TAKING.values(), ids=TAKING)
def test_it_warns_once(body, how):
    name = next(name_of_op)
    warns_once(body, name, f"py_function '{name}': {how}", "derivative is zero", "vjp=", "np.asarray(jax.lax.stop_grad")


def test_a_warning_that_is_an_error_comes_in_each_call():
    for _ in range(2):
        with pytest.raises(RuntimeWarning, match="NumPy takes a differentiated"):
            derive(TAKING["ufunc"][0], "an op with errors")


def test_each_line_has_its_own_warning():
    def body(x):
        return x * np.exp(x) + helper(x)

    def helper(x):
        y = np.abs(x)
        return x * y

    lines = [inspect.getsourcelines(body)[1] + 1, inspect.getsourcelines(helper)[1] + 1]
    assert [(w.filename, w.lineno, w.category) for w in said(body)] == [(__file__, n, RuntimeWarning) for n in lines]


@pytest.mark.parametrize("name", SILENT)
def test_it_is_silent(name):
    assert said(SILENT[name]) == []
    if name not in REFUSED:
        with jaxpyop.config.override(constants="error"):
            derive(SILENT[name])


# Functions whose result depends on no differentiated input, though the values of one may be in it.
WHOLE = {
    "float": lambda x: jnp.full(3, float(x[0]) ** 2),
    "item": lambda x: jnp.full(3, x[0].item() ** 2),
    "math": lambda x: np.full(3, math.sin(x[0]), np.float32),
    "one of two branches": lambda x: jnp.full(3, float(x[0])) if x[0] > 0 else x,
}


@pytest.mark.parametrize("body", WHOLE.values(), ids=WHOLE)
def test_a_result_without_a_derivative_warns_once(body):
    name = next(name_of_op)
    what = "took the value of a differentiated float32[]"
    warning = warns_once(body, name, f"py_function '{name}': ", what, "array 0", "stop_gradient")
    assert (warning.filename, warning.lineno) == (__file__, inspect.getsourcelines(body)[1])


NUMBERED = {"float": ("jnp.full(3, {} * float(x[0]))", "float(x) took"), "ufunc": ("x + {} * np.sin(x)", "NumPy takes")}


@pytest.mark.parametrize(("text", "how"), NUMBERED.values(), ids=NUMBERED)
def test_another_function_of_the_same_name_warns_too(text, how):
    for number in (2, 3):
        exec(f"f = lambda x: {text.format(number)}", space := {"jnp": jnp, "np": np})
        assert how in str(said(space["f"], "one name")[0].message)
        assert said(space["f"], "one name") == []


def quadratic(w, b):
    return (3 * float(w) + b) ** 2


def through_jnp(w, b):
    return jnp.exp(jnp.full(3, float(jnp.sin(w) ** 2))) * b


def beside_a_test(w, b):
    if float(b) > 0:
        return w.item() * b
    return b


# Functions of two inputs, the first of which is in the result as a Python number alone.
LOST = {"a number": quadratic, "of what was computed": through_jnp, "beside a test": beside_a_test}


def converged(w, b):
    y = b
    while abs(float(y * y - b)) > 1e-3:
        y = (y + b / y) / 2
    return y + w


# Functions that take numbers of inputs only to decide, or that use the input as well.
STEERING = {
    "the larger of two": lambda w, b: w if float(w) > float(b) else b,
    "a convergence test": converged,
    "a constant before the number": lambda w, b: [2 * b, b][int(float(w) > 9)],
    "a scale beside the input": lambda w, b: float(w) * b + w,
    "stop_gradient": lambda w, b: float(jax.lax.stop_gradient(w)) * b,
}


def derive_both(body, name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        slopes = jax.grad(lambda w, b: py_function(body, [w, b], F, name=name).sum(), (0, 1))(2.0, 3.0)
    return slopes, caught


@pytest.mark.parametrize("body", LOST.values(), ids=LOST)
def test_an_input_that_is_only_a_number_in_the_result_warns_once(body):
    name = next(name_of_op)
    (slope, _), (warning,) = derive_both(body, name)
    assert slope == 0
    assert f"'{name}': " in str(warning.message)
    assert "no result depends on array 0 of the inputs otherwise" in str(warning.message)
    assert derive_both(body, name)[1] == []


def test_the_warning_is_at_the_line_that_took_the_number():
    _, (warning,) = derive_both(beside_a_test, next(name_of_op))
    assert (warning.filename, warning.lineno) == (__file__, inspect.getsourcelines(beside_a_test)[1] + 2)


@pytest.mark.parametrize("body", STEERING.values(), ids=STEERING)
def test_a_number_that_only_steers_is_silent(body):
    assert derive_both(body, next(name_of_op))[1] == []


def test_a_result_of_integers_has_no_derivative_to_lose():
    body = lambda x: (x * x, jnp.int32(float(x[0])))
    loss = lambda x: py_function(body, [x], (F, jnp.int32), output_shapes=((3,), ()))[0].sum()
    close(jax.grad(loss)(X), 2 * X)


# With "error", what makes a Python number of a value is an error as well, where a derivative is lost.
REFUSED = {name: body for name, (body, _) in TAKING.items()} | {f"whole, {name}": body for name, body in WHOLE.items()}
REFUSED |= {"float": SILENT["float"], "item": SILENT["item"], "complex": lambda x: x * complex(x[0]).real}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_an_error(body):
    text = r"py_function 'mine': .* differentiated .* derivative is zero"
    with jaxpyop.config.override(constants="error"), pytest.raises(TypeError, match=text):
        derive(body, name="mine")


def test_an_error_in_forward_mode_and_under_jit():
    f = lambda x: py_function(lambda x: x * np.exp(x), [x], F, output_shapes=(3,), name="mine")
    along = lambda x: jax.jvp(f, (x,), (x,))[1]
    with jaxpyop.config.override(constants="error"):
        for program in (along, jax.jit(along), jax.jit(jax.jacrev(f))):
            with pytest.raises(TypeError, match="'mine': NumPy takes a differentiated"), jaxpyop.reraise():
                jax.block_until_ready(program(X))


def halved(x):
    while float(x) > 0.3:
        x = x / 2
    return x


def squared(x):
    return float(x) ** 2


NUMBERS = {"float": squared, "in a while": halved}
DERIVATIVES = {"grad": jax.grad, "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))}
TRACED = [(body, derivative) for body in NUMBERS for derivative in DERIVATIVES]


@pytest.mark.parametrize(("body", "derivative"), rows(TRACED, []))
def test_an_error_in_a_function_that_is_traced(body, derivative):
    f = lambda x: py_function(NUMBERS[body], [x], F, output_shapes=(), mode="traced", max_steps=4)
    with jaxpyop.config.override(constants="error"):
        # A derivative in another variable does not need that of the number.
        assert jax.grad(lambda y: y * jax.jit(f)(F(0.5)))(1.0) == NUMBERS[body](F(0.5))
        with pytest.raises(TypeError, match=r"test_constants.py:\d+: float\(x\) makes a constant of a differentiated"):
            DERIVATIVES[derivative](f)(F(0.5))


# ------------------------------------------------------------------- buffers that are filled again


@jax.custom_jvp
def scale_forward(x, y):
    return x * y


scale_forward.defjvp(lambda p, t: (p[0] * p[1], t[0] * p[1]))


@jax.custom_vjp
def scale_backward(x, y):
    return x * y


scale_backward.defvjp(lambda x, y: (x * y, (x, y)), lambda res, ct: (ct * res[1], ct * res[0]))


@jax.jit
def scale_with_effects(x, y):
    jax.debug.callback(lambda: None)
    return x * y


def scale_by_rule(x, y):
    return numpy_function(
        lambda x, y: x * y, [x, y], F, output_shapes=(2,), vjp=lambda i, o, ct: (ct[0] * i[1], ct[0] * i[0])
    )


SCALES = {
    "custom_jvp": scale_forward,
    "custom_vjp": scale_backward,
    "jit with effects": scale_with_effects,
    "a rule": scale_by_rule,
    "plain": jnp.multiply,
}


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("compiled", [False, True], ids=["direct", "compiled"])
def test_a_buffer_that_the_function_fills_again(scale, compiled):
    def total(x):
        buffer, found = np.zeros(2, F), 0.0
        for k in (1, 2):
            buffer[:] = k
            found = found + scale(x, buffer)
        return found

    gradient = jax.grad(lambda x: jnp.sum(py_function(total, [x], jax.ShapeDtypeStruct((2,), F))))
    close((jax.jit(gradient) if compiled else gradient)(jnp.ones(2)), [3.0, 3.0])
