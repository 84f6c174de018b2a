"""Functions of JAX operations, which jax.vjp can differentiate as they are, with their inputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.ode import odeint

import jaxpyop

F = jnp.float32
X3 = np.array([0.5, -1.25, 2.0], np.float32)
M3 = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]], np.float32)
TRANSFORMS = {"direct": lambda f: f, "jit": jax.jit, "cut": jaxpyop.jit}
ZEROS = np.zeros(2, np.float32)
Z3 = np.array([0.5 + 1j, -1.25 - 0.5j, 2.0j], np.complex64)


# The derivatives of the next three are wrong on purpose: they tell whether the user's rule was asked.


@jax.custom_jvp
def custom_sin(x, y):
    return jnp.sin(x) * y


@custom_sin.defjvp
def _custom_sin_jvp(primals, tangents):
    x, y = primals
    return custom_sin(x, y), 3.0 * jnp.cos(x) * y * tangents[0] + jnp.sin(x) * tangents[1]


@jax.custom_vjp
def custom_square(x, y):
    return x * x * y


custom_square.defvjp(lambda x, y: (custom_square(x, y), (x, y)), lambda res, ct: (5.0 * res[0] * res[1] * ct, None))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def clip_gradient(bound, x):
    return x


clip_gradient.defvjp(lambda bound, x: (x, None), lambda bound, _, ct: (jnp.clip(ct, -bound, bound),))


def closure(x):
    # JAX looks into the tracers that the function closes over.
    return odeint(lambda y, t: -y * x, x, jnp.array([0.0, 1.0]))


def scan(x):
    def step(carry, row):
        carry = jnp.tanh(carry * row + x)
        return carry, carry.sum()

    return lax.scan(step, x, jnp.asarray(M3))


def while_loop(x):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]


def jit_over_differentiated_values(x):
    y = x * 2.0
    inner = jax.jit(lambda z: z * y + jnp.sum(y))
    return inner(jnp.ones(3)) + inner(x)


def grad_inside(x):
    y = jnp.sum(x) * 2.0
    return jax.grad(lambda z: jnp.sum(jnp.sin(z) * y * x))(x) + y


# Jitted functions that differ in a literal alone.
independent = lambda by: jax.jit(lambda a, b: (a * by, b * 3.0))


def jits_in_another_order(x):
    first, second = jax.jit(lambda x: [jnp.sin(x), x * 2.0])(x), jax.jit(lambda x: [jnp.sin(x), x * 2.0][::-1])(x)
    return first[0] + 3.0 * first[1] + 5.0 * second[0] + 7.0 * second[1]


def jit_over_an_array(wrap):
    """A jitted function that closes over an array, and is a new function in every call."""
    return lambda x: wrap(jax.jit(lambda y: jnp.sin(y) * M3[0] * M3[1]))(x)


def twice(f):
    return lambda x: lax.fori_loop(0, 2, lambda i, c: f(c), x)


def square_root(x):
    """By an iteration that JAX does not differentiate."""

    def solve(f, start):
        step = lambda c: (c[0] - f(c[0]) / (2 * c[0]), c[1] + 1)
        return lax.while_loop(lambda c: c[1] < 20, step, (start, 0))[0]

    return lax.custom_root(lambda y: y**2 - x, jnp.ones_like(x), solve, lambda g, y: y / g(jnp.ones_like(y)))


BODIES = {
    "an output twice": (lambda x, y: (x, y * 1.0, x), [X3, X3]),
    "integer output": (lambda x: (x * 2.0, jnp.argmax(x), x > 0), [X3]),
    "integer input": (lambda x, n: x * n.astype(jnp.float32), [X3, np.arange(3)]),
    "unused input": (lambda x, y: jnp.sin(x), [X3, X3]),
    "indexing": (lambda x: x[1] * x[-1] + x[::2].sum() + x[np.array([0, 0])].sum(), [X3]),
    "where": (lambda x: jnp.where(x > 0, jnp.sqrt(jnp.abs(x)), x * x), [X3]),
    "at": (lambda x: x.at[0].set(x[1] * 2.0).at[1].add(x[2]), [X3]),
    "solve": (lambda m, x: jnp.linalg.solve(m, x), [M3, X3]),
    "relu at zero": (jax.nn.relu, [np.array([-1, 0, 2], np.float32)]),
    "frexp": (lambda x: jnp.frexp(x)[0] ** 2, [X3]),
    "top_k": (lambda x: lax.top_k(x * x, 2), [X3]),
    "complex": (lambda z: (z * z + jnp.exp(z), jnp.conj(z) * z, jnp.abs(z) ** 2), [Z3]),
    "real to complex": (lambda x: x * (2 + 1j) * x, [X3]),
    "no elements": (lambda x: (x * 2.0, jnp.sum(x)), [np.zeros((0, 3), np.float32)]),
    "stop_gradient": (lambda x: x * lax.stop_gradient(x), [X3]),
    "stopped infinity": (lambda x: x + jnp.sign(jnp.sqrt(x)) + jnp.floor(jnp.log(x + 1.0)), [ZEROS]),
    "stopped in jit": (lambda x: jax.jit(lambda a, b: a * lax.stop_gradient(b))(x, jnp.sqrt(x)), [ZEROS]),
    "independent results": (lambda x: independent(2.0)(x, jnp.sqrt(x))[0] + independent(5.0)(x, x)[0], [ZEROS]),
    "custom_jvp": (lambda x, y: custom_sin(x, y) * x, [X3, X3]),
    "odeint, a custom_vjp": (closure, [X3]),
    "custom_vjp": (lambda x, y: custom_square(x * 2.0, y), [X3, X3]),
    "custom_vjp in jit": (jax.jit(lambda x: custom_square(x, x)), [X3]),
    "custom_vjp nondiff": (lambda x: clip_gradient(0.25, x) * x, [X3]),
    "jit": (jax.jit(lambda x: jnp.sin(x) * 2.0), [X3]),
    "jits in another order": (jits_in_another_order, [X3]),
    "jit over differentiated values": (jit_over_differentiated_values, [X3]),
    "jit over an array": (jit_over_an_array(lambda f: f), [X3]),
    "jit over an array, in scan": (jit_over_an_array(twice), [X3]),
    "jit over an array, in checkpoint": (jit_over_an_array(jax.checkpoint), [X3]),
    "scan": (scan, [X3]),
    "cond": (lambda x: lax.cond(x[0] > 0, lambda: x * 2.0, lambda: x * x), [X3]),
    "vmap": (lambda x: jax.vmap(lambda a, b: jnp.sin(a) * b.sum(), (0, None))(x, x), [X3]),
    "grad inside": (grad_inside, [X3]),
    "checkpoint": (lambda x: jax.checkpoint(lambda a: jnp.sin(a * x))(x * 2.0), [X3]),
    "custom_root": (square_root, [np.abs(X3)]),
}


def arrays(inputs):
    return [jnp.asarray(x) for x in inputs]


def directions(values):
    """One random cotangent or tangent for each value; that of an integer is of dtype float0, as JAX wants it."""
    rng = np.random.default_rng(0)

    def one(v):
        if not jnp.issubdtype(v.dtype, jnp.inexact):
            return np.zeros(v.shape, jax.dtypes.float0)
        noise = rng.normal(size=(2, *v.shape))
        return jnp.asarray(noise[0] + 1j * noise[1] if jnp.iscomplexobj(v) else noise[0], v.dtype)

    return jax.tree.map(one, values)
