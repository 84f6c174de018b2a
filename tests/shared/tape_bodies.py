"""Bodies for the tape, and the comparison with JAX's own derivatives."""

import functools
import operator
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.ode import odeint

from jaxpyop import _tape
from jaxpyop._jaxcore import is_inexact

F = jnp.float32
X3 = np.array([0.5, -1.25, 2.0], np.float32)
X3_ON_DEVICE = jnp.asarray(X3)
M3 = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]], np.float32)
Z3 = np.array([0.5 + 1j, -1.25 - 0.5j, 2.0j], np.complex64)


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


def with_table(wrap):
    """A jitted function that closes over an array, which is a new function in every call."""
    return lambda x: wrap(jax.jit(lambda y: jnp.sin(y) * M3[0] * M3[1]))(x)


def ode(x):
    return odeint(lambda y, t: -y * x[0], x, jnp.array([0.0, 1.0]))[1]


def square_root(x):
    """By an iteration whose derivative JAX does not follow."""

    def solve(f, start):
        step = lambda c: (c[0] - f(c[0]) / (2 * c[0]), c[1] + 1)
        return jax.lax.while_loop(lambda c: c[1] < 20, step, (start, 0))[0]

    return jax.lax.custom_root(lambda y: y**2 - x, jnp.ones_like(x), solve, lambda g, y: y / g(jnp.ones_like(y)))


TRACEABLE = {
    "custom_root_of_vector": (square_root, [np.abs(X3)]),
    "custom_root_in_jit": (lambda x: jax.jit(square_root)(x), [np.abs(X3)]),
    "frexp": (lambda x: jnp.frexp(x)[0], [X3]),
    "frexp_in_jit": (lambda x: jax.jit(lambda x: jnp.frexp(x)[0] * x)(x), [X3]),
    "frexp_in_scan": (lambda x: jax.lax.scan(lambda c, _: (jnp.frexp(c)[0] * x, None), x, None, length=2)[0], [X3]),
    "frexp_in_vmap": (jax.vmap(lambda x: jnp.frexp(x)[0] ** 2), [X3]),
    "frexp_in_checkpoint": (jax.checkpoint(lambda x: jnp.frexp(x)[0] ** 2), [X3]),
    "frexp_in_grad": (lambda x: jax.grad(lambda x: (jnp.frexp(x)[0] ** 3).sum())(x), [X3]),
    "ldexp": (lambda x: jnp.ldexp(x, jnp.array([1, 2, 3])), [X3]),
    "relu_vmap": (jax.vmap(jax.nn.relu), [X3]),
    "relu_vmap_vmap": (jax.vmap(jax.vmap(jax.nn.relu)), [M3]),
    "xlogy_vmap": (jax.vmap(jax.scipy.special.xlogy), [M3, M3]),
    "logit_vmap": (lambda x: jax.vmap(jax.scipy.special.logit)(jnp.abs(x) / 4), [X3]),
    "jit_constant": (with_table(lambda f: f), [X3]),
    "jit_constant_in_jit": (with_table(jax.jit), [X3]),
    "jit_constant_in_vmap": (with_table(lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x]))), [X3]),
    "jit_constant_in_scan": (with_table(lambda f: lambda x: jax.lax.fori_loop(0, 2, lambda i, c: f(c), x)), [X3]),
    "jit_constant_in_checkpoint": (with_table(jax.checkpoint), [X3]),
    "custom_vjp_closure_convert": (ode, [X3]),
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
    assert bytes(x) == X3.tobytes()
    assert x.__dlpack_device__() == X3_ON_DEVICE.__dlpack_device__()
    assert jnp.from_dlpack(x).tolist() == x.tolist()
    assert (x.is_deleted(), x.is_ready(), x.is_fully_addressable, x.is_fully_replicated) == (False, True, True, True)
    assert x.addressable_data(0).tolist() == x.addressable_shards[0].data.tolist() == x.tolist()
    assert (len(x.global_shards), x.format) == (1, X3_ON_DEVICE.format)
    assert x.unsafe_buffer_pointer() > 0
    assert x.on_device_size_in_bytes() >= 12
    assert sys.version_info < (3, 12) or bytes(memoryview(x)) == X3.tobytes()
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
    return is_inexact(jnp.asarray(x))


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


def tape_grad(body):
    return lambda x: _tape.vjp(lambda y: [body(y)], [x], [jnp.float32(1)])[0]


def chain(n, rate=0.5):
    def body(x):
        for _ in range(n):
            x = jnp.sin(x * rate) + x
        return [x]

    return body
