"""Derivatives of ops against JAX's own of the same bodies."""

from __future__ import annotations

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from util import APIS, contrib, numpy_function, py_func, py_function

import jaxpyop

F = jnp.float32
X = jnp.array([0.5, -1.25, 2.0])
close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-5)


def trees_close(got, wanted):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    jax.tree.map(close, got, wanted)


# ------------------------------------------------- bodies, and the same for JAX


def log_huber(x, m):
    if abs(x) <= m:
        return x**2
    return m**2 * (1 - 2 * jnp.log(m) + jnp.log(x**2))


def log_huber_jax(x, m):
    return jnp.where(jnp.abs(x) <= m, x**2, m**2 * (1 - 2 * jnp.log(m) + jnp.log(x**2)))


@pytest.mark.parametrize(("x", "m", "value", "slope"), [(1.0, 2.0, 1.0, 2.0), (3.0, 2.0, 7.243721, 2.6666667)])
@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_the_guides_log_huber(x, m, value, slope, jit, transport):
    f = jax.value_and_grad(lambda x, m: py_function(log_huber, [x, m], F))
    got = (jax.jit(f) if jit else f)(x, m)
    np.testing.assert_allclose(got[0], value, rtol=1e-6)
    np.testing.assert_allclose(got[1], slope, rtol=1e-6)


def by_float(x):
    return x**2 if float(jnp.sum(x)) > 0 else x**3


def by_int(x):
    y = x
    for _ in range(int(jnp.sum(x)) + 1):
        y = y * x
    return y


def by_bool(x):
    if bool(x[0] > 0) and x[1] < 0:
        return jnp.sin(x)
    return x


def by_item(x):
    return x * 2 if x[0].item() > 10 else x * jnp.cos(x)


def by_asarray(x):
    order = np.argsort(np.asarray(x))
    return x[order] ** 2


def by_while(x):
    while jnp.sum(x**2) > 1:
        x = x / 2
    return jnp.exp(x)


def with_constant(x):
    return x * float(x[0])  # a value taken out is a constant


# Each body, and what it is on the path that X takes.
BODIES = {
    "elementwise": (lambda x: jnp.sin(x) * x, None),
    "reduction": (lambda x: jnp.sum(x**3), None),
    "matrix": (lambda x: jnp.outer(x, x) @ jnp.tanh(x), None),
    "control flow inside": (lambda x: lax.fori_loop(0, 3, lambda i, y: y * x + i, x), None),
    "scan inside": (lambda x: lax.scan(lambda c, v: (c * v, c + v), 1.0, x)[1], None),
    "cond inside": (lambda x: lax.cond(x[0] > 0, lambda x: x**2, lambda x: x**3, x), None),
    "jit inside": (jax.jit(lambda x: jnp.sin(x) ** 2), None),
    "vmap inside": (lambda x: jax.vmap(lambda y: y**2 * jnp.ones(2))(x), None),
    "grad inside": (lambda x: jax.grad(lambda x: jnp.sum(x**4))(x), None),
    "relu": (lambda x: jax.nn.relu(x) + jax.nn.softplus(x), None),
    "linear algebra": (lambda x: jnp.linalg.solve(jnp.eye(3) * 3 + jnp.outer(x, x), x), None),
    "indexing": (lambda x: x[jnp.array([2, 0])] * x[1], None),
    "in place": (lambda x: x.at[1].mul(x[0]), None),
    "float(x)": (by_float, lambda x: x**2),
    "int(x)": (by_int, lambda x: x**3),
    "bool(x)": (by_bool, jnp.sin),
    "x.item()": (by_item, lambda x: x * jnp.cos(x)),
    "np.asarray(x)": (by_asarray, lambda x: x[jnp.array([1, 0, 2])] ** 2),
    "while": (by_while, lambda x: jnp.exp(x / 4)),
    "constant": (with_constant, lambda x: x * 0.5),
    "an op inside": (
        lambda x: py_function(lambda x: jnp.sin(x), [x], F, output_shapes=(3,)) * x,
        lambda x: jnp.sin(x) * x,
    ),
}
every_body = pytest.mark.parametrize(("body", "same"), [(b, s or b) for b, s in BODIES.values()], ids=BODIES)


def op_of(body, same, **options):
    shape = jax.eval_shape(same, X).shape
    return lambda x: py_function(body, [x], F, output_shapes=shape, **options)


def weigh(y):
    return jnp.sum(y * jnp.cos(jnp.arange(1.0, 1 + y.size).reshape(y.shape)))


@every_body
def test_gradient(body, same, route):
    derive = lambda f: jax.value_and_grad(lambda x: weigh(f(x)))
    trees_close(route(derive(op_of(body, same)), X), derive(same)(X))


@pytest.mark.parametrize("derive", [jax.jacrev, lambda f: lambda x: jax.vjp(f, x)[1](f(x))], ids=["jacrev", "vjp"])
@every_body
def test_other_first_derivatives(body, same, derive):
    trees_close(jax.jit(derive(op_of(body, same)))(X), derive(same)(X))


@every_body
def test_strict_promotion_and_leak_checks(body, same, checked):
    f = op_of(body, same)
    close(jax.jit(jax.grad(lambda x: weigh(f(x))))(X), jax.grad(lambda x: weigh(same(x)))(X))


SECOND = {
    "grad of grad": lambda f: jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(lambda x: weigh(f(x)))(x)))),
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(lambda x: weigh(f(x)))),
    "third": lambda f: jax.grad(lambda x: jax.grad(lambda x: jax.grad(lambda x: weigh(f(x)))(x).sum())(x).sum()),
}


@pytest.mark.parametrize("derive", SECOND.values(), ids=SECOND)
@pytest.mark.parametrize("name", ["matrix", "relu", "float(x)", "while"])
def test_higher_derivatives(name, derive, route):
    body, same = BODIES[name]
    f = op_of(body, same or body)
    trees_close(route(derive(f), X), derive(same or body)(X))


# --------------------------------------------------------------- transformations

TRANSFORMS = {
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(lambda y: f(y * x).sum()))(x),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])).sum()),
    "grad of scan": lambda f: jax.grad(lambda x: lax.scan(lambda c, _: (f(c), c), x, None, length=2)[0].sum()),
    "scan of grad": lambda f: (
        lambda x: lax.scan(lambda c, _: (jax.grad(lambda c: f(c).sum())(c) * 0.1, c), x, None, length=2)
    ),
    "grad of fori_loop": lambda f: jax.grad(lambda x: lax.fori_loop(0, 2, lambda i, c: f(c) * 0.5, x).sum()),
    "grad of cond": lambda f: jax.grad(lambda x: lax.cond(x[0] > 0, f, lambda x: x, x).sum()),
    "grad of cond, other": lambda f: jax.grad(lambda x: lax.cond(x[0] < 0, f, lambda x: x, x).sum()),
    "grad of switch": lambda f: jax.grad(lambda x: lax.switch(1, [lambda x: x, f], x).sum()),
    "grad of map": lambda f: jax.grad(lambda x: lax.map(f, jnp.stack([x, -x])).sum()),
    "grad of checkpoint": lambda f: jax.grad(lambda x: jax.checkpoint(f)(x).sum()),
    "grad of checkpoint of chain": lambda f: jax.grad(lambda x: jax.checkpoint(lambda x: f(f(x)) * 0.1)(x).sum()),
    "grad of jit": lambda f: jax.grad(lambda x: jax.jit(f)(x).sum()),
    "grad of chain": lambda f: jax.grad(lambda x: f(f(x)).sum()),
    "grad of sum of two": lambda f: jax.grad(lambda x: (f(x) + f(2 * x)).sum()),
    "vmap of grad of cond": lambda f: (
        lambda x: jax.vmap(jax.grad(lambda s: lax.cond(s > 0, lambda s: f(s * x).sum(), lambda s: s, s)))(x)
    ),
    "vmap of grad of scan": lambda f: (
        lambda x: jax.vmap(
            jax.grad(lambda s: lax.scan(lambda c, v: (c + f(v * s * x).sum(), None), 0.0, jnp.arange(2.0))[0])
        )(x)
    ),
    "jacrev of vmap": lambda f: jax.jacrev(lambda x: jax.vmap(f)(jnp.stack([x, -x]))),
    "grad of vmap of vmap": lambda f: jax.grad(lambda x: jax.vmap(jax.vmap(f))(jnp.stack([x, -x])[None]).sum()),
    "grad, stopped": lambda f: jax.grad(lambda x: (f(lax.stop_gradient(x)) * x).sum()),
    "grad with aux": lambda f: jax.grad(lambda x: (x.sum(), f(x)), has_aux=True),
    "unused": lambda f: jax.grad(lambda x: (f(x), x.sum())[1]),
    "grad of while_loop in the body's caller": lambda f: jax.grad(
        lambda x: f(lax.stop_gradient(lax.while_loop(lambda s: s[0] < 3, lambda s: s + 1, x)) * x).sum()
    ),
    "second order in vmap": lambda f: lambda x: jax.vmap(jax.grad(lambda s: jax.grad(lambda s: f(s * x).sum())(s)))(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_derivatives_under_every_transformation(transform, route):
    """Of a body that looks at its values."""
    same = BODIES["elementwise"][0]
    op = lambda x: py_function(lambda x: same(x) if float(x[0]) < 1e9 else -x, [x], F, output_shapes=(3,))
    trees_close(route(transform(op), X), transform(same)(X))


@pytest.mark.parametrize(
    "transform",
    [t for n, t in TRANSFORMS.items() if n != "second order in vmap"],
    ids=[n for n in TRANSFORMS if n != "second order in vmap"],
)
def test_the_same_for_a_numpy_function_with_vjp(transform, transport):
    op = lambda x: numpy_function(
        lambda x: np.sin(x) * x, [x], F, vjp=lambda i, o, c: ((np.cos(i[0]) * i[0] + np.sin(i[0])) * c[0],)
    )
    trees_close(jax.jit(transform(op))(X), transform(BODIES["elementwise"][0])(X))


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_derivatives_with_block_methods(method, route):
    op = lambda x, w: py_function(lambda x, w: jnp.sin(x) * w, [x, w], F, vmap_method=method, output_shapes=())
    f = jax.grad(lambda x, w: jax.vmap(op, (0, None))(x, w).sum(), (0, 1))
    same = jax.grad(lambda x, w: (jnp.sin(x) * w).sum(), (0, 1))
    trees_close(route(f, X, 2.0), same(X, 2.0))
    g = lambda x, w: jax.vmap(jax.grad(op, (0, 1)), (0, None))(x, w)
    trees_close(route(g, X, 2.0), jax.vmap(jax.grad(lambda x, w: jnp.sin(x) * w, (0, 1)), (0, None))(X, 2.0))


@given(x=st.lists(st.floats(-3, 3, width=32), min_size=0, max_size=4), jit=st.booleans())
def test_random_inputs(x, jit):
    x = jnp.asarray(np.asarray(x, np.float32))

    def body(x):
        y = x
        for v in np.asarray(x):
            y = jnp.sin(y) if v > 0 else y * x
        return y

    def same(x):
        y = x
        for v in values:
            y = jnp.sin(y) if v > 0 else y * x
        return y

    values = np.asarray(x)
    f = jax.grad(lambda x: py_function(body, [x], F, output_shapes=x.shape).sum())
    close((jax.jit(f) if jit else f)(x), jax.grad(lambda x: same(x).sum())(x))


# ------------------------------------------------------- inputs and outputs of all kinds


def test_pytrees(route):
    def body(params, batch, scale=1.0):
        y = jnp.tanh(batch["x"] @ params["w"] + params["b"])
        return {"loss": jnp.sum(y**2) * scale, "y": y}

    params = {"w": jnp.ones((3, 2)) * 0.3, "b": jnp.array([0.1, -0.2])}
    batch = {"x": X[None] * jnp.ones((4, 1)), "name": "train"}
    op = lambda p: py_function(body, [p, batch], {"loss": F, "y": F}, output_shapes={"loss": (), "y": (4, 2)})
    loss = lambda f: lambda p: f(p)["loss"] + f(p)["y"].sum()
    trees_close(route(jax.grad(loss(op)), params), jax.grad(loss(lambda p: body(p, batch)))(params))


def test_kwargs_of_a_decorated_function(route):
    @jaxpyop.py_function(Tout=F, output_shapes=())
    def f(x, *, by):
        return jnp.sum(x * by)

    trees_close(route(jax.grad(lambda x, by: f(x, by=by), (0, 1)), X, 2.0), (jnp.full(3, 2.0), X.sum()))


def test_integer_and_boolean_inputs(route):
    body = lambda x, n, flag: x**n * jnp.where(flag, 2.0, 1.0)
    op = lambda x, n, flag: py_function(body, [x, n, flag], F, output_shapes=(3,)).sum()
    got = route(jax.grad(op), X, jnp.int32(3), jnp.array([True, False, True]))
    close(got, 3 * X**2 * jnp.array([2.0, 1.0, 2.0]))
    got = jax.grad(op, (0, 1), allow_int=True)(X, jnp.int32(3), jnp.array(True))
    assert got[1].dtype == jax.dtypes.float0


def test_integer_outputs_have_no_gradient(route):
    body = lambda x: (x**2, jnp.argmax(x), x > 0)
    op = lambda x: py_function(body, [x], [F, jnp.int32, jnp.bool_], output_shapes=[(3,), (), (3,)])

    def loss(x):
        y, n, flag = op(x)
        return jnp.sum(y * flag) + n

    close(route(jax.grad(loss), X), 2 * X * (X > 0))


@pytest.mark.parametrize("used", [(0,), (1,), (0, 2), ()], ids=str)
def test_unused_outputs(used, route):
    body = lambda x: (x**2, jnp.sin(x), jnp.sum(x**3))
    op = lambda x: py_function(body, [x], [F, F, F], output_shapes=[(3,), (3,), ()])
    loss = lambda f: lambda x: sum(jnp.sum(f(x)[k]) for k in used) + x.sum()
    close(route(jax.grad(loss(op)), X), jax.grad(loss(body))(X))


def test_inputs_that_the_body_ignores(route):
    op = lambda x, y: py_function(lambda x, y: x * 2, [x, y], F, output_shapes=(3,)).sum()
    trees_close(route(jax.grad(op, (0, 1)), X, X), (jnp.full(3, 2.0), jnp.zeros(3)))


def test_one_of_several_arguments(route):
    op = lambda x, y: py_function(lambda x, y: x * y**2, [x, y], F, output_shapes=(3,)).sum()
    close(route(jax.grad(op, 1), X, X + 1), 2 * X * (X + 1))


Z = jnp.array([0.5 + 1j, -1.25 - 0.5j, 2.0j], jnp.complex64)
COMPLEX = {
    "holomorphic": (lambda z: z**2 * (1 + 2j), jnp.complex64),
    "conjugate": (lambda z: jnp.conj(z) * z, jnp.complex64),
    "absolute": (lambda z: jnp.abs(z) ** 2, F),
    "real part": (lambda z: jnp.real(z) * jnp.imag(z), F),
}


@pytest.mark.parametrize(("body", "dtype"), COMPLEX.values(), ids=COMPLEX)
def test_complex_numbers_as_jax_vjp(body, dtype, route):
    op = lambda z: py_function(body, [z], dtype, output_shapes=(3,))
    ct = jnp.asarray(np.array([1.0, 2.0, -1.0]), dtype) * (1 if dtype == F else 1 - 1j)
    pull = lambda f: lambda z: jax.vjp(f, z)[1](ct)[0]
    close(route(pull(op), Z), pull(body)(Z))
    loss = lambda f: lambda z: jnp.sum(jnp.abs(f(z)) ** 2)
    close(route(jax.grad(loss(op)), Z), jax.grad(loss(body))(Z))


def test_real_inputs_complex_results(route):
    body = lambda x: jnp.exp(1j * x)
    op = lambda x: py_function(body, [x], jnp.complex64, output_shapes=(3,))
    loss = lambda f: lambda x: jnp.sum(jnp.real(f(x) * (2 + 1j)))
    close(route(jax.grad(loss(op)), X), jax.grad(loss(body))(X))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16], ids=["float16", "bfloat16"])
def test_narrow_floats(dtype, route):
    op = lambda x: py_function(lambda x: x * x, [x], dtype, output_shapes=(3,))
    got = route(jax.grad(lambda x: op(x).sum()), X.astype(dtype))
    assert got.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got, np.float32), 2 * X)


@pytest.mark.usefixtures("x64")
def test_wide_floats(route):
    op = lambda x: py_function(lambda x: jnp.sin(x), [x], jnp.float64, output_shapes=())
    got = route(jax.grad(op), jnp.float64(0.3))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, np.cos(0.3), rtol=1e-14)
    mixed = lambda x: py_function(lambda x: jnp.sin(x.astype(jnp.float64)), [x], F, output_shapes=())
    assert route(jax.grad(mixed), jnp.float32(0.3)).dtype == np.float32


def test_a_result_cast_to_tout_keeps_its_gradient(route):
    op = lambda x: py_function(lambda x: x.astype(jnp.float16) * 2, [x], F, output_shapes=(3,))
    close(route(jax.grad(lambda x: op(x).sum()), X), [2, 2, 2])


def test_empty_and_scalar_inputs(route):
    op = lambda x: py_function(lambda x: x**2, [x], F, output_shapes=x.shape)
    assert route(jax.grad(lambda x: op(x).sum()), jnp.zeros((0, 3))).shape == (0, 3)
    assert route(jax.grad(op), 3.0) == 6
    assert route(jax.grad(lambda x: op(x)), jnp.float32(3)) == 6


def test_typed_keys_and_static_inputs(route):
    body = lambda x, key, kind: x * jax.random.normal(key, (3,)) if kind == "normal" else x
    op = lambda x, key: py_function(body, [x, key, "normal"], F, output_shapes=(3,)).sum()
    key = jax.random.key(3)
    close(route(jax.grad(op), X, key), jax.random.normal(key, (3,)))


def test_a_body_that_returns_its_input_or_a_constant(route):
    close(route(jax.grad(lambda x: py_function(lambda x: x, [x], F, output_shapes=(3,)).sum()), X), [1, 1, 1])
    close(route(jax.grad(lambda x: py_function(lambda x: jnp.ones(3), [x], F, output_shapes=(3,)).sum()), X), [0, 0, 0])
    close(route(jax.grad(lambda x: py_function(lambda x: 3.0, [x], F, output_shapes=()) * x.sum()), X), [3, 3, 3])
    close(
        route(jax.grad(lambda x: py_function(lambda x: (x, x), [x], [F, F], output_shapes=[(3,), (3,)])[1].sum()), X),
        [1, 1, 1],
    )


def test_a_value_taken_out_as_a_numpy_array_is_a_constant(route):
    op = lambda x: py_function(lambda x: x * np.asarray(x), [x], F, output_shapes=(3,))
    close(route(jax.grad(lambda x: op(x).sum()), X), X)


# ----------------------------------------------------------------- how often


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_the_body_runs_once_per_differentiated_step(jit, transport):
    runs = []

    def body(x):
        runs.append(float(x[0]))
        return x**3

    f = jax.value_and_grad(lambda x: py_function(body, [x], F, output_shapes=(3,)).sum())
    f = jax.jit(f) if jit else f
    for k in range(1, 4):
        jax.block_until_ready(f(X * k))
        assert runs == [0.5 * i for i in range(1, k + 1)]


def test_the_body_runs_once_for_a_whole_jacobian(route):
    runs = []

    def body(x):
        runs.append(1)
        return x**3

    close(route(jax.jacrev(lambda x: py_function(body, [x], F, output_shapes=(3,))), X), jnp.diag(3 * X**2))
    assert len(runs) == 1


def test_the_body_runs_once_per_step_of_a_differentiated_scan(route):
    runs = []

    def body(c):
        runs.append(float(c))
        return c * 2

    f = jax.grad(
        lambda x: lax.scan(lambda c, _: (py_function(body, [c], F, output_shapes=()), None), x, None, length=4)[0]
    )
    assert route(f, 1.0) == 16
    assert runs == [1.0, 2.0, 4.0, 8.0]


def test_many_gradients_from_threads(transport):
    import threading

    f = jax.jit(jax.grad(lambda x: py_function(by_float, [x], F, output_shapes=(3,)).sum()))
    wrong = []

    def work(k):
        for i in range(20):
            x = X + k + i
            if not np.allclose(f(x), 2 * x, rtol=1e-5):
                wrong.append((k, i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


# -------------------------------------------------------- numpy_function, vjp=

NUMPY_OPS = {name: api for name, api in APIS.items() if name != "py_function"}


def numeric(f, x, step=1e-2):
    """Central differences of a NumPy function of float64."""
    x = np.asarray(x, np.float64)
    out = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        d = np.zeros_like(x)
        d[index] = step
        out[index] = (f(x + d) - f(x - d)) / (2 * step)
    return out


@pytest.mark.parametrize("api", NUMPY_OPS.values(), ids=NUMPY_OPS)
def test_vjp_against_finite_differences(api, route):
    func = lambda x, y: np.sin(x) * y
    vjp = lambda i, o, c: (np.cos(i[0]) * i[1] * c[0], np.sin(i[0]) * c[0])
    op = lambda x, y: api(func, [x, y], F, vjp=vjp)
    gx, gy = route(jax.grad(lambda x, y: (op(x, y) ** 2).sum(), (0, 1)), X, X + 1)
    y = np.asarray(X + 1, np.float64)
    np.testing.assert_allclose(gx, numeric(lambda x: (func(x, y) ** 2).sum(), X), rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(
        gy, numeric(lambda y: (func(np.asarray(X, np.float64), y) ** 2).sum(), X + 1), rtol=1e-2, atol=1e-3
    )


def test_what_vjp_is_given(route):
    got = []

    def vjp(inputs, outputs, cotangents):
        got.append((inputs, outputs, cotangents))
        return (cotangents[0] * 2, None)

    op = lambda x, n: numpy_function(lambda x, n, s: [x * 2, x * n], [x, n, "static"], [F, F], vjp=vjp)
    close(route(jax.grad(lambda x: (op(x, jnp.int32(3))[0] * X).sum()), X), 2 * X)
    inputs, outputs, cotangents = got[0]
    assert type(inputs) is type(outputs) is type(cotangents) is tuple
    assert (len(inputs), len(outputs), len(cotangents)) == (2, 2, 2)
    assert all(isinstance(a, np.ndarray) for a in (*inputs, *outputs, *cotangents))
    assert inputs[1].dtype == np.int32
    close(outputs[0], 2 * X)
    close(cotangents[0], X)
    np.testing.assert_array_equal(cotangents[1], 0)  # an unused output


def test_vjp_arrays_may_be_changed_and_kept(route):
    kept = []

    def vjp(i, o, c):
        kept.append(c[0])
        i[0][...] = 0
        c[0][...] *= 3
        return c[0]

    f = (jax.jit if route.jit else lambda f: f)(
        jax.grad(lambda x: numpy_function(lambda x: x * 3, [x], F, vjp=vjp).sum())
    )
    for k in range(5):
        close(f(X + k), [3, 3, 3])
    assert all((c == 3).all() for c in kept)


def test_vjp_in_the_decorator_with_pytrees_and_kwargs(route):
    @jaxpyop.numpy_function(
        Tout={"y": F}, output_shapes={"y": (3,)}, vjp=lambda i, o, c: [c[0] * i[1], (c[0] * i[0]).sum()]
    )
    def f(tree, *, by):
        return {"y": tree["x"] * by}

    got = route(jax.grad(lambda x, by: f({"x": x}, by=by)["y"].sum(), (0, 1)), X, 2.0)
    trees_close(got, (jnp.full(3, 2.0), X.sum()))


def test_contrib_vjp_takes_kwargs_by_sorted_name(route):
    op = lambda a, b, x: contrib(
        lambda x, b, a: x * a + b,
        [x],
        F,
        kwargs={"b": b, "a": a},
        vjp=lambda i, o, c: (c[0] * i[1], (c[0] * i[0]).sum(), c[0].sum()),
    )
    got = route(jax.grad(lambda a, b: op(a, b, X).sum(), (0, 1)), 2.0, 5.0)
    trees_close(got, (X.sum(), jnp.float32(3)))


@pytest.mark.parametrize("zero", [None, "array"], ids=["None", "zeros"])
def test_none_is_zero(zero, route):
    vjp = lambda i, o, c: (c[0], None if zero is None else np.zeros(3, np.float32))
    op = lambda x, y: numpy_function(lambda x, y: x + 0 * y, [x, y], F, vjp=vjp)
    trees_close(route(jax.grad(lambda x, y: op(x, y).sum(), (0, 1)), X, X), (jnp.ones(3), jnp.zeros(3)))


def test_complex_vjp_follows_jax(route):
    """JAX's convention: for holomorphic f the cotangent is ct * f'(z), without a conjugate."""
    op = lambda z: numpy_function(lambda z: z**2, [z], jnp.complex64, vjp=lambda i, o, c: 2 * i[0] * c[0])
    ct = jnp.array([1.0 + 1j, 2.0, -1j], jnp.complex64)
    pull = lambda f: lambda z: jax.vjp(f, z)[1](ct)[0]
    close(route(pull(op), Z), pull(lambda z: z**2)(Z))


def test_float64_cotangents_are_cast(route):
    op = lambda x: numpy_function(lambda x: x * 2, [x], F, vjp=lambda i, o, c: np.full(3, 2.0))
    got = route(jax.grad(lambda x: op(x).sum()), X)
    assert got.dtype == np.float32


def test_integer_inputs_get_none(route):
    op = lambda x, n: numpy_function(lambda x, n: x * n, [x, n], F, vjp=lambda i, o, c: (c[0] * i[1], None))
    close(route(jax.grad(lambda x: op(x, jnp.int32(3)).sum()), X), [3, 3, 3])


VJP_ERRORS = {
    "too few": (
        lambda i, o, c: (c[0],),
        r"vjp returned 1 cotangents for 2 array inputs; return one cotangent each, None for zero",
    ),
    "too many": (lambda i, o, c: (c[0], c[0], c[0]), r"vjp returned 3 cotangents for 2"),
    "no tuple": (lambda i, o, c: c[0], r"vjp returned a single value for 2 array inputs"),
    "nothing": (lambda i, o, c: None, r"vjp returned .*for 2 array inputs"),
    "shape": (
        lambda i, o, c: (c[0].sum(), None),
        r"vjp returned, for input 0, shape \(\); a cotangent has its input's shape, \(3,\)",
    ),
    "complex": (lambda i, o, c: (c[0] * 1j, None), r"vjp returned, for input 0, complex64"),
    "text": (lambda i, o, c: ("x", None), r"vjp returned, for input 0"),
}


@pytest.mark.parametrize(("vjp", "text"), VJP_ERRORS.values(), ids=VJP_ERRORS)
def test_wrong_results_of_vjp(vjp, text, route):
    op = lambda x, y: numpy_function(lambda x, y: x + y, [x, y], F, name="mine", vjp=vjp)
    with pytest.raises((ValueError, TypeError), match=f"'mine'.*({text})"), jaxpyop.reraise():
        route(jax.grad(lambda x, y: op(x, y).sum(), (0, 1)), X, X)


def test_exceptions_of_vjp_come_out(route):
    error = KeyError("mine")

    def vjp(i, o, c):
        raise error

    with pytest.raises(KeyError, match="mine") as caught, jaxpyop.reraise():
        route(jax.grad(lambda x: numpy_function(np.sin, [x], F, vjp=vjp)), 1.0)
    assert caught.value is error


BACKWARD = {
    "grad": lambda f: jax.grad(f)(1.0),
    "jit of grad": lambda f: jax.jit(jax.grad(f))(1.0),
    "grad of jit": lambda f: jax.grad(jax.jit(f))(1.0),
    "vjp": lambda f: jax.vjp(f, 1.0)[1](1.0),
    "jacrev": lambda f: jax.jacrev(f)(1.0),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum())(X),
    "grad of scan": lambda f: jax.grad(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0])(1.0),
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f))(1.0),
}


@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD)
@pytest.mark.parametrize(
    "api", [numpy_function, functools.partial(py_func, stateful=False)], ids=["numpy_function", "py_func"]
)
def test_a_backward_pass_without_vjp_names_the_op_and_both_ways_out(api, backward, transport):
    with pytest.raises(ValueError, match=r"'mine': a backward pass.*vjp=.*jax.lax.stop_gradient"):
        backward(lambda x: api(np.sin, [x], F, name="mine"))


FINE = {
    "forward of vjp": lambda f: jax.vjp(f, X)[0],
    "stopped": lambda f: jax.grad(lambda x: (f(lax.stop_gradient(x)) * x).sum())(X),
    "stopped result": lambda f: jax.grad(lambda x: (lax.stop_gradient(f(x)) * x).sum())(X),
    "auxiliary": lambda f: jax.grad(lambda x: (x.sum(), f(x)), has_aux=True)(X),
    "unused": lambda f: jax.grad(lambda x: (f(x), x.sum())[1])(X),
    "of integers": lambda f: jax.grad(lambda x: (f(jnp.arange(3)) * x).sum())(X),
    "of constants": lambda f: jax.grad(lambda x: (f(X) * x).sum())(X),
    "compared": lambda f: jax.grad(lambda x: jnp.where(f(x) > 0, x, 2 * x).sum())(X),
}


@pytest.mark.parametrize("program", FINE.values(), ids=FINE)
@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_without_a_backward_pass_all_is_fine(program, jit, transport):
    op = lambda x: numpy_function(np.sin, [x], F)
    run = (lambda f: jax.jit(lambda: program(f))()) if jit else program
    trees_close(run(op), program(jnp.sin))


def test_second_derivatives_of_a_numpy_function_say_what_to_do(transport):
    f = jax.grad(lambda x: numpy_function(np.sin, [x], F, vjp=lambda i, o, c: np.cos(i[0]) * c[0]))
    with pytest.raises(Exception, match=r"'sin'.*second derivative.*py_function"):
        jax.grad(f)(1.0)


def test_errors_of_a_py_function_body_under_grad(route):
    def body(x):
        if float(x) < 0:
            raise KeyError("mine")
        return x**2

    f = jax.grad(lambda x: py_function(body, [x], F, output_shapes=()))
    with pytest.raises(KeyError, match="mine"), jaxpyop.reraise():
        route(f, -1.0)
    assert route(f, 3.0) == 6


def test_a_tracer_kept_by_the_body_is_refused_or_still_has_its_value(route):
    """A body may put what it saw into a list: later it is a value or a clear error."""
    kept = []

    def body(x):
        kept.append(x)
        return x * 2

    route(jax.grad(lambda x: py_function(body, [x], F, output_shapes=())), 3.0)
    with contextlib.suppress(jax.errors.UnexpectedTracerError):
        assert float(kept[0]) == 3.0
    assert py_function(body, [4.0], F) == 8
