"""Gradients of `py_function`: bodies that look at values, transformations, how often they run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.interpreters import ad

import jaxpyop
from jaxpyop._op.primitive.primitive import python_call_p
from tests.shared.util import close, numpy_function, py_function, run, trees_close

F = jnp.float32
X = jnp.array([0.5, -1.25, 2.0])


# ------------------------------------------------- bodies, and the same for JAX


def log_huber(x, m):
    if abs(x) <= m:
        return x**2
    return m**2 * (1 - 2 * jnp.log(m) + jnp.log(x**2))


@pytest.mark.parametrize(("x", "m", "value", "slope"), [(1.0, 2.0, 1.0, 2.0), (3.0, 2.0, 7.243721, 2.6666667)])
@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_the_guides_log_huber(x, m, value, slope, jit, transport):
    f = jax.value_and_grad(lambda x, m: py_function(log_huber, [x, m], F))
    got = (jax.jit(f) if jit else f)(x, m)
    np.testing.assert_allclose(got[0], value, rtol=1e-6)
    np.testing.assert_allclose(got[1], slope, rtol=1e-6)


@pytest.mark.parametrize(
    ("way", "slope"),
    [
        (lambda f: jax.grad(f)(2.0), 12.0),
        (lambda f: jax.jit(jax.grad(f))(2.0), 12.0),
        (lambda f: jax.vmap(jax.grad(f))(jnp.array([1.0, 2.0]))[1], 12.0),
        (lambda f: jax.linearize(f, 2.0)[1](3.0), 36.0),
        (lambda f: jax.vjp(f, 2.0)[1](3.0)[0], 36.0),
        (lambda f: jax.grad(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0])(1.0), 9.0),
    ],
    ids=["grad", "grad in jit", "grad in vmap", "linearize", "vjp", "scan"],
)
@pytest.mark.parametrize("rule", ["tape", "rules", "linear"])
def test_reverse_mode_does_not_trace_the_jvp(way, slope, rule, monkeypatch):
    """Which JAX does for a primitive without a rule for `linearize`, in several times the time."""
    jvp = ad.primitive_jvps[python_call_p]
    monkeypatch.setitem(ad.primitive_jvps, python_call_p, lambda *_, **__: pytest.fail("traced"))
    slope_times = lambda inputs, outputs, vectors: 3 * inputs[0] ** 2 * vectors[0]
    f = {
        "tape": lambda x: py_function(lambda x: x**3, [x], F),
        "rules": lambda x: numpy_function(lambda x: x**3, [x], F, vjp=slope_times, jvp=slope_times),
        "linear": lambda x: x * x * numpy_function(lambda x: x, [x], F, transpose=lambda ct: ct),
    }[rule]
    np.testing.assert_allclose(way(f), slope)
    monkeypatch.setitem(ad.primitive_jvps, python_call_p, jvp)
    np.testing.assert_allclose(jax.jvp(f, (2.0,), (1.0,))[1], 12.0)


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


def test_what_the_body_keeps_of_the_abstract_run_is_explained(transport):
    mean = [0.0]

    def track(x):
        mean[0] = 0.9 * mean[0] + 0.1 * x.mean()
        return x * mean[0]

    with pytest.raises(Exception, match=r"kept a value of the abstract run.*output_shapes=, and stateful=True"):
        run(jax.jit(lambda x: py_function(track, [x], F)), X)
    mean[0] = 0.0
    np.testing.assert_allclose(
        run(jax.jit(lambda x: py_function(track, [x], F, output_shapes=(3,), stateful=True)), X), 0.1 * X.mean() * X
    )


@jax.custom_vjp
def clip_gradient(x):
    return x


clip_gradient.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -0.5, 0.5),))


def test_forward_mode_through_a_backward_pass_that_is_not_linear(transport):
    """JAX has no forward mode of a custom_vjp function at all."""
    op = lambda x: py_function(lambda x: jnp.sum(clip_gradient(x) ** 2), [x], F, output_shapes=())
    plain = lambda x: jnp.sum(clip_gradient(x) ** 2)
    x = jnp.array([0.1, 0.2, 2.9])
    trees_close(jax.jit(jax.hessian(op))(x), jax.hessian(plain)(x))
    trees_close(jax.jacrev(jax.jacrev(op))(x), jax.hessian(plain)(x))
    with pytest.raises(TypeError, match=r"which is not linear; put jax.jit around.*jacrev"), jaxpyop.reraise():
        run(jax.jacfwd(op), x)
