"""Plain calls: small ones, stateful, ordered, direct, and large ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

import jaxpyop
from jaxpyop._cli.cases.case import ONE, Case, Group, negative, negative_buffer


def small_calls() -> Group:
    x = jnp.ones(1)
    ours = jax.jit(lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32))
    lent = jax.jit(lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32, copy=False))
    pure = jax.jit(lambda x: jax.pure_callback(negative, ONE, x))
    bare = jax.jit(lambda x: buffer_callback(negative_buffer, ONE)(x))
    none = jax.jit(jnp.negative)
    return Group(
        "float32[1] under jit",
        [
            Case("numpy_function", lambda: ours(x)),
            Case("the same, copy=False", lambda: lent(x)),
            Case("jax.pure_callback", lambda: pure(x)),
            Case("bare buffer_callback", lambda: bare(x)),
            Case("jit without a callback", lambda: none(x)),
        ],
    )


def stateful_calls() -> Group:
    x = jnp.ones(1)
    ours = jax.jit(lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32, stateful=True))
    theirs = jax.jit(lambda x: io_callback(negative, ONE, x))
    bare = jax.jit(lambda x: buffer_callback(negative_buffer, ONE, has_side_effect=True)(x))
    return Group(
        "the same, stateful",
        [
            Case("numpy_function", lambda: ours(x)),
            Case("io_callback", lambda: theirs(x)),
            Case("bare buffer_callback", lambda: bare(x)),
        ],
    )


def ordered_calls() -> Group:
    x = jnp.ones(1)
    ours = jax.jit(lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32, ordered=True))
    theirs = jax.jit(lambda x: io_callback(negative, ONE, x, ordered=True))
    return Group(
        "the same, ordered",
        [Case("numpy_function", lambda: ours(x)), Case("io_callback", lambda: theirs(x))],
    )


def ordered_loops() -> Group:
    def loop(op: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return jax.jit(lambda x: jax.lax.scan(lambda c, _: (op(c), None), x, None, length=200)[0])

    x = jnp.ones(1)
    ours = loop(lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32, ordered=True))
    theirs = loop(lambda x: io_callback(negative, ONE, x, ordered=True))
    return Group(
        "ordered, 200 times in a scan",
        [Case("numpy_function", lambda: ours(x), 1), Case("io_callback", lambda: theirs(x), 1)],
        samples=15,
    )


def direct_calls() -> Group:
    x = jnp.ones(1)
    return Group(
        "direct call",
        [
            Case("numpy_function", lambda: jaxpyop.numpy_function(negative, [x], jnp.float32)),
            Case("jax.pure_callback", lambda: jax.pure_callback(negative, ONE, x)),
        ],
    )


def fresh_calls() -> Group:
    x = jnp.ones(1)
    return Group(
        "direct call, a fresh lambda each time",
        [
            Case("numpy_function", lambda: jaxpyop.numpy_function(lambda v: -v, [x], jnp.float32), 5),
            Case("jax.pure_callback", lambda: jax.pure_callback(lambda v: -v, ONE, x), 2),
        ],
        samples=10,
    )


def many_inputs() -> Group:
    xs = [jnp.full(3, k, jnp.float32) for k in range(20)]
    like = jax.ShapeDtypeStruct((3,), jnp.float32)
    identity = jax.jit(lambda values: values)

    def bare(ctx: Any, out: Any, *xs: Any) -> None:
        np.asarray(out)[...] = identity([np.asarray(x).copy() for x in xs])[0]

    ours = jax.jit(lambda *xs: jaxpyop.py_function(lambda *xs: xs[0], xs, jnp.float32))
    theirs = jax.jit(lambda *xs: buffer_callback(bare, like)(*xs))
    return Group(
        "20 small inputs as jax.Arrays",
        [Case("py_function", lambda: ours(*xs), 10), Case("buffer_callback and jit", lambda: theirs(*xs), 10)],
        samples=15,
    )


def large_calls() -> Group:
    x = jnp.ones(10_000_000)
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    ours = jax.jit(lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32))
    theirs = jax.jit(lambda x: jax.pure_callback(negative, like, x))
    return Group(
        "40 MB np.negative under jit",
        [Case("numpy_function", lambda: ours(x), 1), Case("jax.pure_callback", lambda: theirs(x), 1)],
        samples=15,
    )


def filled_calls() -> Group:
    x = jnp.ones(10_000_000)
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)

    def negative_in_place(x: Any, out: Any) -> None:
        np.negative(x, out=out)

    def bare_in_place(ctx: Any, out: Any, x: Any) -> None:
        np.negative(np.asarray(x), out=np.asarray(out))

    ours = jax.jit(lambda x: jaxpyop.numpy_function(negative_in_place, [x], jnp.float32, out=True, copy=False))
    bare = jax.jit(lambda x: buffer_callback(bare_in_place, like)(x))
    pure = jax.jit(lambda x: jax.pure_callback(negative, like, x))
    return Group(
        "40 MB np.negative(x, out=out)",
        [
            Case("numpy_function(out=True)", lambda: ours(x), 1),
            Case("bare buffer_callback", lambda: bare(x), 1),
            Case("jax.pure_callback", lambda: pure(x), 1),
        ],
        samples=15,
    )
