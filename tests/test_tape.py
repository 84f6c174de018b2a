"""The tape against `jax.vjp` and `jax.jvp` of the same body.

Where JAX refuses a body (`float(x)` of a differentiated value), the reference
is the same path written without looking at values.
"""

import functools
import gc
import operator
import pickle
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import _jaxcore, _tape, _tapekeys, _tapelines, _taperules

F = jnp.float32
X3 = np.array([0.5, -1.25, 2.0], np.float32)
X3_ON_DEVICE = jnp.asarray(X3)
M3 = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]], np.float32)
Z3 = np.array([0.5 + 1j, -1.25 - 0.5j, 2.0j], np.complex64)


@pytest.fixture(autouse=True)
def _strict():
    with jax.numpy_dtype_promotion("strict"):
        yield


def listed(body):
    """`body` with its result as a list, as `record` wants it."""

    @functools.wraps(body)
    def flat(*args):
        out = body(*args)
        return list(out) if isinstance(out, (list, tuple)) else [out]

    return flat


# --- bodies that jax.vjp can differentiate ---------------------------------


@jax.custom_jvp
def custom_sin(x, y):
    return jnp.sin(x) * y


@custom_sin.defjvp
def _custom_sin_jvp(primals, tangents):
    x, y = primals
    # On purpose not the derivative: tells who computed it.
    return custom_sin(x, y), 3.0 * jnp.cos(x) * y * tangents[0] + jnp.sin(x) * tangents[1]


@jax.custom_vjp
def custom_square(x, y):
    return x * x * y


custom_square.defvjp(lambda x, y: (custom_square(x, y), (x, y)), lambda res, ct: (5.0 * res[0] * res[1] * ct, None))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def clip_gradient(bound, x):
    return x


clip_gradient.defvjp(lambda bound, x: (x, None), lambda bound, _, ct: (jnp.clip(ct, -bound, bound),))

static_power = jax.jit(lambda n, x: x**n, static_argnums=0)


def scan_body(x):
    def step(carry, row):
        carry = jnp.tanh(carry * row + x)
        return carry, carry.sum()

    return jax.lax.scan(step, x, jnp.asarray(M3))


def while_body(x):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]


def nested_closure(x):
    y = x * 2.0

    @jax.jit
    def inner(z):
        return z * y + jnp.sum(y)

    return inner(jnp.ones(3)) + inner(x)


def inner_grad(x):
    y = jnp.sum(x) * 2.0
    return jax.grad(lambda z: jnp.sum(jnp.sin(z) * y * x))(x) + y


def inner_vjp(x):
    out, pull = jax.vjp(lambda z: z * jnp.exp(x), x * 2.0)
    return out + pull(x)[0]


def newton(x):
    y = x
    for _ in range(3):
        y = y - (y * y - jnp.abs(x)) / (2.0 * y)
    return y


def mlp(x, w):
    h = jax.nn.relu(w @ x)
    h = jax.nn.softplus(w.T @ h) + jax.nn.gelu(h) + jax.nn.silu(h)
    return jax.nn.log_softmax(h), jnp.mean(h**2)


def key_body(x):
    key = jax.random.key(3)
    raw = jax.random.PRNGKey(4)
    noise = jax.random.normal(key, x.shape) + jax.random.uniform(raw, x.shape)
    return x * noise


TRACEABLE = {
    "square": (lambda x: x * x, [F(3)]),
    "identity": (lambda x: x, [F(3)]),
    "constant_output": (lambda x: (x * 2.0, jnp.float32(7)), [F(3)]),
    "input_twice_as_output": (lambda x, y: (x, y, x), [X3, X3]),
    "reflected_operators": (lambda x: 2.0 - 3.0 / (1.0 + 2.0**x), [X3]),
    "mixed_inputs": (lambda x, n: x * n.astype(jnp.float32), [X3, np.arange(3)]),
    "integer_output": (lambda x: (x * 2.0, jnp.argmax(x), x > 0), [X3]),
    "unused_input": (lambda x, y: jnp.sin(x), [X3, X3]),
    "unused_work": (lambda x: (jnp.cos(x), x * 3.0)[1], [X3]),
    "broadcast": (lambda x, y: x[:, None] * y + 1.0, [X3, X3]),
    "numpy_constant": (lambda x: x * X3 + jnp.asarray(np.ones(3, np.float32)), [X3]),
    "indexing": (lambda x: x[1] * x[-1] + x[::2].sum() + x[np.array([0, 0])].sum(), [X3]),
    "boolean_where": (lambda x: jnp.where(x > 0, jnp.sqrt(jnp.abs(x)), x * x), [X3]),
    "at_set": (lambda x: x.at[0].set(x[1] * 2.0).at[1].add(x[2]), [X3]),
    "matmul": (lambda m, x: m @ jnp.tanh(m @ x), [M3, X3]),
    "solve": (lambda m, x: jnp.linalg.solve(m, x), [M3, X3]),
    "random": (key_body, [X3]),
    "relu_at_zero": (jax.nn.relu, [np.array([-1, 0, 2], np.float32)]),
    "mlp": (mlp, [X3, M3]),
    "custom_jvp": (lambda x, y: custom_sin(x, y) * x, [X3, X3]),
    "custom_jvp_under_jit": (jax.jit(custom_sin), [X3, X3]),
    "custom_vjp_under_jit": (jax.jit(lambda x: custom_square(x, x)), [X3]),
    "custom_vjp": (lambda x, y: custom_square(x * 2.0, y), [X3, X3]),
    "custom_vjp_nondiff": (lambda x: clip_gradient(0.25, x) * x, [X3]),
    "jit": (jax.jit(lambda x: jnp.sin(x) * 2.0), [X3]),
    "jit_static": (lambda x: static_power(3, x) + static_power(2, x), [X3]),
    "jit_many_inputs": (lambda *x: jax.jit(lambda *y: sum(a * a for a in y))(*x), [X3] * 11),
    "jit_over_tape_values": (nested_closure, [X3]),
    "scan": (scan_body, [X3]),
    "fori_loop": (lambda x: jax.lax.fori_loop(0, 4, lambda i, c: jnp.sin(c) * x, x), [X3]),
    "cond": (lambda x: jax.lax.cond(x[0] > 0, lambda: x * 2.0, lambda: x * x), [X3]),
    "vmap": (lambda x: jax.vmap(lambda a, b: jnp.sin(a) * b.sum(), (0, None))(x, x), [X3]),
    "grad_inside": (inner_grad, [X3]),
    "vjp_inside": (inner_vjp, [X3]),
    "jvp_inside": (lambda x: jax.jvp(lambda z: z * x, (x,), (x * 3.0,)), [X3]),
    "checkpoint": (lambda x: jax.checkpoint(lambda a: jnp.sin(a * x))(x * 2.0), [X3]),
    "stop_gradient": (lambda x: x * jax.lax.stop_gradient(x), [X3]),
    "stopped_infinity": (lambda x: x + jnp.sign(jnp.sqrt(x)) + jnp.floor(jnp.log(x + 1.0)), [np.zeros(2, np.float32)]),
    "stopped_in_jit": (
        lambda x: jax.jit(lambda a, b: a * jax.lax.stop_gradient(b))(x, jnp.sqrt(x)),
        [np.zeros(2, np.float32)],
    ),
    "complex": (lambda z: z * z + jnp.exp(z), [Z3]),
    "complex_conjugate": (lambda z: (jnp.conj(z) * z).real + jnp.abs(z) * z.imag, [Z3]),
    "real_to_complex": (lambda x: jnp.exp(1j * x.astype(jnp.complex64)), [X3]),
    "zero_size": (lambda x: (x * 2.0, jnp.sum(x)), [np.zeros((0, 3), np.float32)]),
    "weak_types": (lambda x: x * 2 + 1, [F(3)]),
    "python_loop": (newton, [np.array([0.5, 1.5], np.float32)]),
    "top_k": (lambda x: jax.lax.top_k(x * x, 2), [X3]),
    "custom_root": (
        lambda x: jax.lax.custom_root(
            lambda y: y**3 - x,
            x,
            lambda f, y: jax.lax.fori_loop(0, 20, lambda _, z: z - f(z) / (3.0 * z * z), y),
            lambda g, y: y / g(jnp.ones_like(y)),
        ),
        [F(2)],
    ),
}
FORWARD_ONLY = {"while_loop": (while_body, [X3])}


# --- bodies that look at values: (body, the same path without looking) -----


def looks_float(x):
    return x * float(jnp.sum(x)) if float(jnp.sum(x)) > 0 else -x


def looks_everywhere(x):
    total = x.sum()
    assert ["1.25" in text for text in (f"{total:.2f}", str(total), repr(total))] == [True] * 3
    assert [total.item(), float(total), complex(total), np.float32(total), int(total)] == [1.25] * 4 + [1]
    assert bool(total) is True
    assert [float(v) for v in x] == x.tolist() == np.asarray(x).tolist() == [0.5, -1.25, 2.0]
    assert (operator.index(jnp.argmax(x)), X3[jnp.argmax(x)]) == (2, 2.0)
    assert isinstance(x, jax.Array)
    assert (len(x), x.shape, x.ndim, x.size, x.nbytes, x.dtype) == (3, (3,), 1, 3, 12, jnp.float32)
    assert x.devices() == X3_ON_DEVICE.devices()
    assert (x.device, x.sharding) == (X3_ON_DEVICE.device, X3_ON_DEVICE.sharding)
    assert np.sum(x) == 1.25
    assert (np.add(x, x) == 2 * X3).all()
    assert np.from_dlpack(x).tolist() == pickle.loads(pickle.dumps(x)).tolist() == x.tolist()
    assert x.tobytes() == X3.tobytes()
    assert x.block_until_ready() is x
    x.copy_to_host_async()
    return x * 3.0


def loops_until(x):
    n = 0
    while jnp.sum(x * x) > 0.1:
        x, n = x * 0.5, n + 1
    return x, n


LOOKING = {
    "float_of_sum": (looks_float, lambda x: x * 1.25, [X3]),
    "every_way_to_look": (looks_everywhere, lambda x: x * 3.0, [X3]),
    "iteration": (lambda x: sum(v * v for v in x if v > 0), lambda x: x[0] ** 2 + x[2] ** 2, [X3]),
    "loop_until": (loops_until, lambda x: (x * 0.5**3, 3), [X3]),
    "if_comparison": (
        lambda x, m: x * x if abs(x) <= m else m * m * (1 + jnp.log(x)),
        lambda x, m: m * m * (1 + jnp.log(x)),
        [F(3), F(2)],
    ),
    "item_index": (lambda x: x[int(x[2])] * x, lambda x: x[2] * x, [X3]),
    "numpy_detour": (lambda x: x * np.sort(np.asarray(x)), lambda x: x * np.sort(X3), [X3]),
    "numpy_output": (lambda x: (x * 2.0, np.asarray(x), 3.0), lambda x: (x * 2.0, X3, 3.0), [X3]),
    "static_argument": (lambda x: static_power(int(x[2]), x), lambda x: x**2, [X3]),
    "float_range": (lambda x: x * jnp.arange(x[0], x[2], 0.5).sum(), lambda x: x * 3.0, [X3]),
    "fori_bound": (lambda x: jax.lax.fori_loop(0, int(x[2]), lambda i, c: c * x, x), lambda x: x**3, [X3]),
}

CASES = {name: (body, body, inputs) for name, (body, inputs) in TRACEABLE.items()} | LOOKING
# Every third body, for time; custom_vjp functions have no forward mode in JAX.
BOTH_MODES = [n for n in CASES if not n.startswith("custom_vjp")][::3] + ["custom_jvp", "scan"]


def arrays(inputs):
    return [jnp.asarray(x) for x in inputs]


def is_float(x):
    return _taperules.is_differentiable(jnp.result_type(x))


def directions(values, seed=0):
    """One random cotangent or tangent per value, None for integers."""
    rng = np.random.default_rng(seed)

    def one(v):
        if not is_float(v):
            return None
        noise = rng.normal(size=(2, *v.shape))
        noise = noise[0] + 1j * noise[1] if jnp.iscomplexobj(v) else noise[0]
        return jnp.asarray(noise.astype(v.dtype))

    return [one(v) for v in values]


def check(actual, expected, rtol=2e-5):
    """Fails unless values, shapes and dtypes agree; None is zero."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        if a is None:
            assert e is None or not np.any(e)
            continue
        e = np.asarray(e)
        assert not isinstance(a, jax.core.Tracer)
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        if e.dtype == np.float16:
            rtol = 2e-3
        scale = np.max(np.abs(e), initial=1e-3, where=np.isfinite(e))
        np.testing.assert_allclose(np.asarray(a), e, rtol=rtol, atol=rtol * scale)


def float0(v, direction):
    return np.zeros(v.shape, jax.dtypes.float0) if direction is None else direction


@functools.cache
def reference(name):
    """Outputs, cotangents and the pullback's results, from JAX itself."""
    _, plain, inputs = CASES[name]
    body = listed(lambda *a: jax.tree.map(jnp.asarray, plain(*a)))

    @jax.jit  # one compilation, not one per operation
    def both(*inputs):
        outputs, pull = jax.vjp(body, *inputs)
        cotangents = directions(outputs)
        found = pull([float0(o, c) for o, c in zip(outputs, cotangents)])
        return outputs, cotangents, [None if f.dtype == jax.dtypes.float0 else f for f in found]

    return both(*arrays(inputs))


@pytest.mark.parametrize("name", CASES)
def test_pullback(name):
    body, _, inputs = CASES[name]
    outputs, cotangents, expected = reference(name)
    for _ in range(3):  # plain, compiled, cached
        actual, record = _tape.record(listed(body), arrays(inputs))
        check(actual, outputs)
        check(record.pullback(cotangents), expected)


@pytest.mark.parametrize("name", [*BOTH_MODES, *FORWARD_ONLY])
def test_pushforward(name):
    body, plain, inputs = CASES[name] if name in CASES else (*FORWARD_ONLY[name][:1] * 2, FORWARD_ONLY[name][1])
    inputs = arrays(inputs)
    tangents = directions(inputs, 1)

    @jax.jit
    def both(*inputs):
        body = listed(lambda *a: jax.tree.map(jnp.asarray, plain(*a)))
        outputs, found = jax.jvp(body, inputs, tuple(map(float0, inputs, tangents)))
        return outputs, [None if f.dtype == jax.dtypes.float0 else f for f in found]

    outputs, expected = both(*inputs)
    for _ in range(3 if name in ("mlp", "scan", "custom_jvp", "while_loop") else 1):
        actual, pushed = _tape.jvp(listed(body), inputs, tangents)
        check(actual, outputs)
        check(pushed, expected)


def test_pullback_with_missing_cotangents():
    def body(x):
        u, s, v = jnp.linalg.svd(x)
        return [s, x * 2.0, jnp.sum(u) + jnp.sum(v)]

    equal = jnp.eye(3) * 2.0  # equal singular values: U and V have no derivative
    for cotangents in ([jnp.ones(3), None, None], [None, jnp.ones((3, 3)), None]):
        given = [k for k, c in enumerate(cotangents) if c is not None]
        _, pull = jax.vjp(lambda x, given=given: [body(x)[k] for k in given], equal)
        expected = pull([cotangents[k] for k in given])
        for _ in range(3):
            check(_tape.vjp(body, [equal], cotangents), expected)
    assert _tape.vjp(body, [equal], [None] * 3) == [None]


def test_pushforward_with_missing_tangents():
    _, tangents = _tape.jvp(lambda x, y: [x * 2.0, y * y, x * y], arrays([X3, X3]), [None, jnp.ones(3)])
    assert tangents[0] is None
    check(tangents[1:], [2 * X3, X3])


# --- the checker itself ------------------------------------------------------


@pytest.mark.parametrize("name", ["square", "mlp", "complex", "every_way_to_look"])
def test_checker_fails_on_a_gradient_that_is_off(name):
    body, _, inputs = CASES[name]
    _, cotangents, expected = reference(name)
    actual = _tape.vjp(listed(body), arrays(inputs), cotangents)
    check(actual, expected)
    for wrong in (
        [a * np.asarray(1.001, a.dtype) for a in actual],
        [a.T[None] for a in actual],
        [None for a in actual],
    ):
        with pytest.raises(AssertionError):
            check(wrong, expected)


# --- higher orders -------------------------------------------------------------

SCALAR = {
    "trigonometric": lambda x: jnp.sum(jnp.sin(x) * jnp.exp(x)),
    "jit_and_scan": lambda x: jax.jit(lambda y: jnp.sum(scan_body(y)[0] * y))(x),
    "relu": lambda x: jnp.sum(jax.nn.relu(x) * x),
    "cond": lambda x: jnp.sum(jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x) * x),
}


def tape_grad(body):
    return lambda x: _tape.vjp(lambda y: [body(y)], [x], [jnp.float32(1)])[0]


def tape_hessian(body, x):
    grad = tape_grad(body)
    rows = [_tape.vjp(lambda y: [grad(y)], [x], [row])[0] for row in jnp.eye(x.size)]
    return jnp.stack([jnp.zeros_like(x) if r is None else r for r in rows])


@pytest.mark.parametrize("name", SCALAR)
def test_second_order(name):
    body, x = SCALAR[name], jnp.asarray(X3)
    expected = jax.jit(jax.hessian(body))(x)
    check([tape_hessian(body, x)], [expected], rtol=2e-4)


def test_second_order_looking_at_values():
    body = lambda x: jnp.sum(x**3) if float(x[0]) > 0 else jnp.sum(x)
    check([tape_hessian(body, jnp.asarray(X3))], [np.diag(6 * X3)])


def test_third_order():
    third = tape_grad(tape_grad(tape_grad(lambda x: x**4 + jnp.sin(x))))
    for _ in range(3):
        check([third(F(0.5))], [24 * 0.5 - np.cos(F(0.5))])


def test_second_order_of_custom_rules():
    for body in (lambda x: custom_sin(x, x), lambda x: custom_square(x, F(2))):
        expected = jax.grad(jax.grad(body))(F(0.7))
        for _ in range(2):
            check([tape_grad(tape_grad(body))(F(0.7))], [expected])


def test_forward_over_reverse():
    x, t = jnp.asarray(X3), jnp.ones(3)
    _, tangents = _tape.jvp(lambda y: [tape_grad(SCALAR["trigonometric"])(y)], [x], [t])
    check(tangents, [jax.jit(jax.hessian(SCALAR["trigonometric"]))(x) @ t])


def test_pullback_under_transformations():
    x = jnp.asarray(X3)
    expected = jax.jacobian(lambda y: jnp.sin(y) * y[0])(x)
    _, record = _tape.record(lambda y: [jnp.sin(y) * y[0]], [x])
    for _ in range(2):
        check([jax.vmap(lambda c: record.pullback([c])[0])(jnp.eye(3))], [expected])
        check([jax.jit(lambda c: record.pullback([c])[0])(jnp.eye(3)[0])], [expected[0]])
        check([jax.vmap(lambda t: record.pushforward([t])[0])(jnp.eye(3))], [expected.T])
        linear = jax.jacobian(lambda c: record.pullback([c])[0])(jnp.ones(3))
        check([linear], [expected.T])


def test_record_inside_transformations():
    x = jnp.asarray(X3)
    expected = np.cos(X3)
    grad = tape_grad(jnp.sin)
    check([jax.vmap(grad)(x), jax.jit(jax.vmap(grad))(x)], [expected] * 2)
    check([jax.vmap(jax.grad(grad))(x)], [-np.sin(X3)])


# --- compilation ----------------------------------------------------------------


@pytest.fixture
def compilations():
    """Counts XLA compilations, as a list that grows."""
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def chain(n, rate=0.5):
    def body(x):
        for _ in range(n):
            x = jnp.sin(x * rate) + x
        return [x]

    return body


class Lines(_tapekeys.Cache):
    """Notes which looks found a compiled line."""

    def __init__(self):
        super().__init__(256)
        self.found = []

    def compiled(self, key, make):
        function = super().compiled(key, make)
        self.found.append(function is not None)
        return function


@pytest.fixture
def lines(monkeypatch):
    fresh = Lines()
    monkeypatch.setattr(_tapelines, "lines", fresh)
    return fresh


def test_compiled_on_second_sight(lines, compilations):
    one = [jnp.ones(3)]
    for _ in range(4):
        before = len(compilations)
        _tape.vjp(chain(3), arrays([X3]), one)
    assert lines.found == [False, True, True, True]
    assert len(compilations) == before


def test_fresh_lengths_do_not_compile(compilations):
    one = [jnp.ones(3)]
    for n in (1, 2, 3):  # the operations themselves
        _tape.vjp(chain(n), arrays([X3]), one)
    before = len(compilations)
    for n in range(10, 30):
        _tape.vjp(chain(n), arrays([X3]), one)
    assert len(compilations) == before


def test_constants_are_inputs(lines):
    x, results = F(0.3), []
    for i in range(4):
        body = chain(2, jnp.float32(0.1 * i))
        results += _tape.vjp(body, [x], [F(1)])
        check(results[-1:], [jax.grad(lambda y, body=body: body(y)[0])(x)])
    assert len({float(r) for r in results}) == 4
    assert lines.found == [False, True, True, True]


def test_types_are_part_of_the_key(lines):
    for x in (F(2), jnp.asarray(X3), jnp.float16(2), jnp.asarray(Z3)):
        for _ in range(3):
            check(_tape.vjp(lambda y: [y * y], [x], [jnp.ones_like(x)]), [2 * x])
    assert len(lines) == 4


def test_fresh_lambdas_in_scan_share_one_function(compilations):
    def body(x):
        return [jax.lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=4)[0]]

    for _ in range(3):
        _tape.vjp(body, [F(0.5)], [F(1)])
    before = len(compilations)
    for _ in range(3):
        _tape.vjp(body, [F(0.5)], [F(1)])
    assert len(compilations) == before


def test_scans_that_differ_in_a_number_do_not_share():
    for rate in (0.5, 0.25, -0.0, 0.0):

        def body(x, rate=rate):
            return [jax.lax.scan(lambda c, _: (c * rate, None), x, None, length=2)[0]]

        for _ in range(3):
            check(_tape.vjp(body, [F(3)], [F(1)]), [F(rate * rate)])


def test_cache_is_bounded():
    cache = _tapekeys.Cache(3)
    for i in range(3):
        assert cache.compiled(i, lambda: "made") is None
    assert cache.compiled(0, lambda: "made") == "made"
    for i in range(10, 12):
        cache.compiled(i, lambda: "made")
    assert len(cache) == 3
    assert cache.get(0) == "made"  # was used after 1 and 2
    assert cache.get(1) is None


def test_lines_beyond_the_bound_are_walked(lines, monkeypatch):
    monkeypatch.setattr(_tape, "MAX_LINE", 5)
    for _ in range(3):
        actual = _tape.vjp(chain(4), arrays([X3]), [jnp.ones(3)])
        check(actual, [jax.grad(lambda y: jnp.sum(chain(4)(y)[0]))(jnp.asarray(X3))])
    assert len(lines) == 0


# --- effects, exceptions, threads, memory ---------------------------------------


@pytest.mark.parametrize("where", ["body", "jit", "scan", "cond"])
def test_effects_run_once(where, capsys):
    def noisy(x):
        jax.debug.print("saw {}", x[0])
        return x * x

    bodies = {
        "body": noisy,
        "jit": jax.jit(noisy),
        "scan": lambda x: jax.lax.scan(lambda c, _: (noisy(c), None), x, None, length=1)[0],
        "cond": lambda x: jax.lax.cond(x[0] > 0, noisy, lambda y: y, x),
    }
    for _ in range(2):
        _, record = _tape.record(listed(bodies[where]), arrays([X3]))
        jax.effects_barrier()
        assert capsys.readouterr().out.count("saw 0.5") == 1
        for _ in range(2):
            check(record.pullback([jnp.ones(3)]), [2 * X3])
            check(record.pushforward([jnp.ones(3)]), [2 * X3])
        jax.effects_barrier()
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize("where", ["body", "jit", "scan", "cond"])
def test_nested_python_functions_run_once(where):
    runs = []

    def cube(x):
        runs.append(float(x))
        return x**3

    def nested(x):
        return jaxpyop.py_function(cube, [x], jnp.float32) * x

    body = {
        "body": nested,
        "jit": jax.jit(nested),
        "scan": lambda x: jax.lax.scan(lambda c, _: (nested(c), None), x, None, length=1)[0],
        "cond": lambda x: jax.lax.cond(x > 0, nested, lambda y: y, x),
    }[where]
    outputs, record = _tape.record(listed(body), [F(2)])
    check(outputs, [F(16)])
    for _ in range(3):
        check(record.pullback([F(1)]), [F(32)])
        check(record.pushforward([F(1)]), [F(32)])
    assert runs == [2.0]
    check([tape_grad(tape_grad(body))(F(2))], [F(48)])


def test_nested_python_functions_are_freed():
    def body(x):
        def double(y):
            return y * 2.0

        alive.append(weakref.ref(double))
        return [jaxpyop.py_function(double, [x], jnp.float32)]

    alive = []
    _tape.vjp(body, [F(1)], [F(1)])
    gc.collect()
    assert alive[0]() is None


def test_custom_vjp_runs_forward_rule_once():
    calls = []

    @jax.custom_vjp
    def f(x):
        return x * 2.0

    def fwd(x):
        calls.append("fwd")
        return x * 2.0, None

    def bwd(_, ct):
        calls.append("bwd")
        return (ct * 7.0,)

    f.defvjp(fwd, bwd)
    _, record = _tape.record(lambda x: [f(x)], [F(1)])
    assert calls == ["fwd"]
    check(record.pullback([F(1)]), [F(7)])
    check(record.pullback([F(2)]), [F(14)])
    assert calls == ["fwd", "bwd", "bwd"]
    check(record.pushforward([F(1)]), [F(7)])  # where JAX has no forward mode


def test_exceptions_leave_no_trace():
    class OwnError(Exception):
        pass

    def body(x):
        y = x * 2.0
        raise OwnError("from the body", float(y))

    before = _jaxcore.current_trace()
    for _ in range(2):
        with pytest.raises(OwnError, match="from the body"):
            _tape.record(body, [F(1)])
        assert _jaxcore.current_trace() is before
    check(_tape.vjp(lambda x: [x * x], [F(3)], [F(1)]), [F(6)])


def test_reentrant_records_are_independent():
    def body(x):
        inner, record = _tape.record(lambda y: [y * x], [x])
        return [inner[0] + record.pullback([jnp.ones_like(x)])[0], x]

    outputs, record = _tape.record(body, [F(3)])
    check(outputs, [F(12), F(3)])
    check(record.pullback([F(1), None]), [F(7)])


def test_threads():
    errors = []
    start = threading.Barrier(6)

    def work(n):
        try:
            start.wait()
            for i in range(15):
                x = F(0.1 * n + 0.01 * i)
                actual = _tape.vjp(chain(1 + (n + i) % 3), [x], [F(1)])
                expected = 1.0
                value = np.float64(x)
                for _ in range(1 + (n + i) % 3):
                    expected *= 0.5 * np.cos(0.5 * value) + 1
                    value += np.sin(0.5 * value)
                np.testing.assert_allclose(float(actual[0]), expected, rtol=1e-5)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_tracer_that_leaks_is_a_value_only():
    leaked = []
    _tape.record(lambda x: [leaked.append(x * 2.0) or x], [F(3)])
    assert float(leaked[0]) == 6.0
    assert np.asarray(leaked[0]) == 6.0
    assert f"{leaked[0]:.1f}" == "6.0"
    with pytest.raises(jax.errors.UnexpectedTracerError, match="unexpected tracer"):
        leaked[0] + 1.0


@pytest.mark.parametrize("name", ["scan", "custom_vjp", "jit_over_tape_values", "grad_inside", "checkpoint"])
def test_no_false_leaks(name):
    body, _, inputs = CASES[name]
    _, cotangents, expected = reference(name)
    with jax.checking_leaks():
        for _ in range(2):
            check(_tape.vjp(listed(body), arrays(inputs), cotangents), expected)
        if name == "scan":
            check([tape_grad(tape_grad(jnp.sin))(F(1))], [-np.sin(F(1))])


def test_record_keeps_neither_tracers_nor_the_body():
    class Held:
        pass

    held, boxes = Held(), []

    def body(x, held=held):
        y = jnp.sin(x) * jnp.cos(x)
        boxes.append(weakref.ref(y))
        return [jax.jit(lambda z: z * y)(x)]

    alive = weakref.ref(held)
    _, record = _tape.record(body, [F(1)])
    del held, body
    gc.collect()
    assert alive() is None
    assert boxes[0]() is None
    assert record.pullback([F(1)])[0] is not None


def test_nbytes_counts_arrays_once():
    x = jnp.ones(1000, jnp.float32)
    _, record = _tape.record(lambda a, b: [a * b + (a + b) * x], [x, x])
    assert record.nbytes == 4000  # x, once: sums need nothing, a product only the other factor
    _, record = _tape.record(lambda a: [custom_square(a * x, a)], [x])
    assert record.nbytes == 2 * 4000  # x and the product, which the rule saved
    _, record = _tape.record(lambda a: [a.astype(jnp.int32), a + x], [x])
    assert record.nbytes == 0
    for _ in range(3):
        check(record.pullback([None, x]), [x])
        check(record.pushforward([x])[1:], [x])


def test_numpy_constants_may_be_written_later():
    def body(x):
        scale = np.ones(3, np.float32)
        y = x * scale
        scale[:] = 5.0
        z = x * scale
        scale[:] = 9.0
        return [y + z]

    for _ in range(3):
        check(_tape.vjp(body, arrays([X3]), [jnp.ones(3)]), [np.full(3, 6, np.float32)])


def test_integers_are_not_recorded():
    _, record = _tape.record(lambda x: [jnp.argmax(x) + 1, x > 0, jnp.sign(x) * 2.0], arrays([X3]))
    assert record._program.nodes == ()
    assert record.pullback([None, None, jnp.ones(3)]) == [None]


@pytest.mark.parametrize(
    ("cotangents", "error", "match"),
    [
        ([], ValueError, "got 0 cotangents for 2 outputs"),
        ([None, jnp.int32(1)], TypeError, "output 1 is of dtype int32: its cotangent must be None"),
        ([jnp.ones(2), None], ValueError, "its cotangent is float32.2.: they must be alike"),
        ([jnp.ones(3, jnp.float16), None], ValueError, "its cotangent is float16"),
    ],
    ids=["count", "integer", "shape", "dtype"],
)
def test_cotangents_are_checked(cotangents, error, match):
    _, record = _tape.record(lambda x: [x * 2.0, jnp.argmax(x)], arrays([X3]))
    with pytest.raises(error, match=match):
        record.pullback(cotangents)


def test_what_has_no_reverse_mode_raises_in_the_backward_pass():
    _, record = _tape.record(lambda x: [while_body(x)], [F(1)])
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        record.pullback([F(1)])
    _, record = _tape.record(lambda x: [jax.pure_callback(lambda v: v, jax.typeof(x), x) * x], [F(2)])
    with pytest.raises(ValueError, match="Pure callbacks do not support JVP"):
        record.pullback([F(1)])


def test_shard_map():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    shard = functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    x = jnp.asarray(X3)
    with pytest.raises(NotImplementedError, match=r"jax\.jit"):
        _tape.record(lambda y: [shard(jnp.sin)(y)], [x])
    for _ in range(3):
        check(_tape.vjp(lambda y: [jax.jit(shard(jnp.sin))(y) + shard(jnp.sin)(x)], [x], [x]), [x * np.cos(x)])
        check([shard(lambda y: _tape.vjp(lambda z: [jnp.sin(z)], [y], [y])[0])(x)], [x * np.cos(x)])


def test_mutable_arrays_are_refused():
    def body(x):
        store = jax.new_ref(jnp.zeros(()))
        store[...] = x
        return [store[...]]

    with pytest.raises(NotImplementedError, match="mutable array"):
        _tape.record(body, [F(1)])
