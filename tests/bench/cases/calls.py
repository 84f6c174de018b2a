"""Single calls: small, stateful, ordered, direct, with large arrays, and of TensorFlow if it is installed."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

import jaxpyop
from tests.bench.cases import case
from tests.bench.cases.case import ONE, callback_negative, compare, compare_compiled, numpy_negative

LARGE = jax.ShapeDtypeStruct((10_000_000,), jnp.float32)


def small_calls():
    programs = {
        "numpy_function": numpy_negative(),
        "the same, copy=False": numpy_negative(copy=False),
        "jax.pure_callback": callback_negative(jax.pure_callback),
        "bare buffer_callback": buffer_callback(case.negative_buffer, ONE),
        "jit without a callback": jnp.negative,
    }
    return compare_compiled("float32[1] under jit", programs, jnp.ones(1))


def stateful_calls():
    programs = {
        "numpy_function": numpy_negative(stateful=True),
        "io_callback": callback_negative(io_callback),
        "bare buffer_callback": buffer_callback(case.negative_buffer, ONE, has_side_effect=True),
    }
    return compare_compiled("the same, stateful", programs, jnp.ones(1))


ORDERED = {"numpy_function": numpy_negative(ordered=True), "io_callback": callback_negative(io_callback, ordered=True)}


def ordered_calls():
    return compare_compiled("the same, ordered", ORDERED, jnp.ones(1))


def ordered_loops():
    loop = lambda op: lambda x: jax.lax.scan(lambda c, _: (op(c), None), x, None, length=200)[0]
    programs = {name: loop(op) for name, op in ORDERED.items()}
    return compare_compiled("ordered, 200 times in a scan", programs, jnp.ones(1), calls=1, samples=15)


def skipped_calls():
    """Steps that `when=` skips, beside the branch that one writes without it."""
    by_hand = lambda x, w: jax.lax.cond(w, callback_negative(jax.pure_callback), jnp.zeros_like, x)
    ops = {"numpy_function": lambda x, w: numpy_negative(when=w)(x), "jax.lax.cond by hand": by_hand}
    loop = lambda op: lambda x, ws: jax.lax.scan(lambda c, w: (c + op(c, w), None), x, ws)[0]
    programs = {name: loop(op) for name, op in ops.items()}
    inputs = jnp.ones(1), jnp.zeros(10_000, bool)
    return compare_compiled("when= is false, 10000 times in a scan", programs, *inputs, calls=5, samples=15)


def direct_calls():
    programs = {"numpy_function": numpy_negative(), "jax.pure_callback": callback_negative(jax.pure_callback)}
    return compare("direct call", programs, jnp.ones(1))


def fresh_calls():
    programs = {
        "numpy_function": lambda x: jaxpyop.numpy_function(lambda v: -v, [x], jnp.float32),
        "jax.pure_callback": lambda x: jax.pure_callback(lambda v: -v, ONE, x),
    }
    return compare("direct call, a fresh lambda each time", programs, jnp.ones(1), calls=3, samples=10)


def large_calls():
    programs = {"numpy_function": numpy_negative(), "jax.pure_callback": callback_negative(jax.pure_callback, LARGE)}
    return compare_compiled("40 MB np.negative under jit", programs, jnp.ones(LARGE.shape), calls=1, samples=15)


def out_calls():
    into = lambda x, out: np.negative(x, out=out)
    programs = {
        "numpy_function(out=True)": lambda x: jaxpyop.numpy_function(into, [x], jnp.float32, out=True, copy=False),
        "bare buffer_callback": buffer_callback(case.negative_buffer, LARGE),
        "jax.pure_callback": callback_negative(jax.pure_callback, LARGE),
    }
    return compare_compiled("40 MB np.negative(x, out=out)", programs, jnp.ones(LARGE.shape), calls=1, samples=15)


def calls_of_tensorflow():
    ours, x = jax.jit(numpy_negative()), jnp.ones(1)
    programs = {"numpy_function": lambda: ours(x)}
    if tf := case.optional("tensorflow"):
        a = tf.ones(1)
        theirs = tf.function(lambda a: tf.numpy_function(case.negative, [a], tf.float32))
        programs["tf.numpy_function"] = lambda: np.asarray(theirs(a))
    return compare("TensorFlow, float32[1]", programs)


GROUPS = [small_calls, stateful_calls, ordered_calls, ordered_loops, skipped_calls]
GROUPS += [direct_calls, fresh_calls, large_calls, out_calls]
