"""What `bench` compares: groups of cases, ours first, each with what else does the same."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

import jaxpyop


@dataclasses.dataclass(frozen=True)
class Case:
    """Something to time: `run` starts it and returns what to wait for."""

    name: str
    run: Callable[[], Any]
    calls: int = 50  # per sample


@dataclasses.dataclass(frozen=True)
class Group:
    """Cases that are compared; the first is ours."""

    title: str
    cases: list[Case]
    samples: int = 30


def _negative(x: Any) -> Any:
    return np.negative(x)


def _negative_buffer(ctx: Any, out: Any, x: Any) -> None:
    np.asarray(out)[...] = np.negative(np.asarray(x))


def _log_huber(x: Any, m: Any) -> Any:
    if abs(x) <= m:
        return x * x
    return m * m * (1 - 2 * jnp.log(m) + jnp.log(x * x))


_ONE = jax.ShapeDtypeStruct((1,), jnp.float32)


def _small_calls() -> Group:
    x = jnp.ones(1)
    ours = jax.jit(lambda x: jaxpyop.numpy_function(_negative, [x], jnp.float32))
    pure = jax.jit(lambda x: jax.pure_callback(_negative, _ONE, x))
    bare = jax.jit(lambda x: buffer_callback(_negative_buffer, _ONE)(x))
    none = jax.jit(jnp.negative)
    return Group(
        "float32[1] under jit",
        [
            Case("numpy_function", lambda: ours(x)),
            Case("jax.pure_callback", lambda: pure(x)),
            Case("bare buffer_callback", lambda: bare(x)),
            Case("jit without a callback", lambda: none(x)),
        ],
    )


def _stateful_calls() -> Group:
    x = jnp.ones(1)
    ours = jax.jit(lambda x: jaxpyop.numpy_function(_negative, [x], jnp.float32, stateful=True))
    theirs = jax.jit(lambda x: io_callback(_negative, _ONE, x))
    bare = jax.jit(lambda x: buffer_callback(_negative_buffer, _ONE, has_side_effect=True)(x))
    return Group(
        "the same, stateful",
        [
            Case("numpy_function", lambda: ours(x)),
            Case("io_callback", lambda: theirs(x)),
            Case("bare buffer_callback", lambda: bare(x)),
        ],
    )


def _ordered_calls() -> Group:
    x = jnp.ones(1)
    ours = jax.jit(lambda x: jaxpyop.numpy_function(_negative, [x], jnp.float32, ordered=True))
    theirs = jax.jit(lambda x: io_callback(_negative, _ONE, x, ordered=True))
    return Group(
        "the same, ordered",
        [Case("numpy_function", lambda: ours(x)), Case("io_callback", lambda: theirs(x))],
    )


def _direct_calls() -> Group:
    x = jnp.ones(1)
    return Group(
        "direct call",
        [
            Case("numpy_function", lambda: jaxpyop.numpy_function(_negative, [x], jnp.float32)),
            Case("jax.pure_callback", lambda: jax.pure_callback(_negative, _ONE, x)),
        ],
    )


def _fresh_calls() -> Group:
    x = jnp.ones(1)
    return Group(
        "direct call, a fresh lambda each time",
        [
            Case("numpy_function", lambda: jaxpyop.numpy_function(lambda v: -v, [x], jnp.float32), 5),
            Case("jax.pure_callback", lambda: jax.pure_callback(lambda v: -v, _ONE, x), 2),
        ],
        samples=10,
    )


def _large_calls() -> Group:
    x = jnp.ones(10_000_000)
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    ours = jax.jit(lambda x: jaxpyop.numpy_function(_negative, [x], jnp.float32))
    theirs = jax.jit(lambda x: jax.pure_callback(_negative, like, x))
    return Group(
        "40 MB np.negative under jit",
        [Case("numpy_function", lambda: ours(x), 1), Case("jax.pure_callback", lambda: theirs(x), 1)],
        samples=15,
    )


def _batches() -> Group:
    x = jnp.arange(1000.0)
    like = jax.ShapeDtypeStruct((), jnp.float32)
    ours = jax.jit(jax.vmap(lambda x: jaxpyop.numpy_function(_negative, [x], jnp.float32)))
    theirs = jax.jit(jax.vmap(lambda x: jax.pure_callback(_negative, like, x, vmap_method="sequential")))
    return Group(
        "vmap over 1000 scalars, sequential",
        [Case("numpy_function", lambda: ours(x), 1), Case("jax.pure_callback", lambda: theirs(x), 1)],
        samples=15,
    )


def _waiting_batches() -> Group:
    def wait(x: Any) -> Any:
        time.sleep(0.01)
        return x

    x, pool = jnp.arange(16.0), ThreadPoolExecutor(16)
    parallel = jax.jit(
        jax.vmap(lambda x: jaxpyop.numpy_function(wait, [x], jnp.float32, vmap_method="parallel", executor=pool))
    )
    sequential = jax.jit(jax.vmap(lambda x: jaxpyop.numpy_function(wait, [x], jnp.float32)))
    return Group(
        "vmap over 16 bodies that wait 10 ms",
        [Case("parallel, 16 threads", lambda: parallel(x), 1), Case("sequential", lambda: sequential(x), 1)],
        samples=5,
    )


def _gradients(title: str, x: float, m: float) -> Group:
    shape = jax.ShapeDtypeStruct((), jnp.float32)

    def loss(x: Any, m: Any) -> Any:
        return jaxpyop.py_function(_log_huber, [x, m], jnp.float32, output_shapes=())

    def host_gradient(x: Any, m: Any) -> Any:
        value, pull = jax.vjp(_log_huber, x, m)
        return pull(jnp.ones_like(value))[0]

    ours = jax.jit(jax.grad(loss))
    theirs = jax.jit(lambda x, m: jax.pure_callback(host_gradient, shape, x, m))
    cases = [
        Case("py_function", lambda: ours(x, m), 10),
        Case("jax.vjp in pure_callback", lambda: theirs(x, m), 5),
    ]
    return Group(title, cases + _tensorflow_gradient(x, m), samples=20)


def _traced(title: str, wrap: Callable[[Any], Any]) -> Group:
    x = jnp.full(1000, 0.5)

    def body(x: Any) -> Any:
        return jnp.sin(x) if jnp.sum(x) > 0 else jnp.cos(x)

    def by_hand(x: Any) -> Any:
        return jnp.sum(jax.lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x))

    ours = jax.jit(wrap(lambda x: jnp.sum(jaxpyop.py_function(body, [x], jnp.float32, mode="traced"))))
    theirs = jax.jit(wrap(by_hand))
    return Group(
        title,
        [Case("py_function, traced", lambda: ours(x), 200), Case("jax.lax.cond by hand", lambda: theirs(x), 200)],
    )


def _fresh_lengths() -> Group:
    lengths, x = itertools.count(5), jnp.float32(0.5)

    def repeated(x: Any, n: Any) -> Any:
        for _ in range(int(n)):
            x = jnp.sin(x) * x
        return x

    def theirs() -> Any:
        n = next(lengths)
        return jax.grad(lambda x: repeated(x, n))(x)

    ours = jax.grad(lambda x, n: jaxpyop.py_function(repeated, [x, n], jnp.float32))
    return Group(
        "direct gradient, a longer loop each time",
        [Case("py_function", lambda: ours(x, next(lengths)), 2), Case("jax.grad", theirs, 2)],
        samples=8,
    )


# --------------------------------------------------- what else may be installed


def _tensorflow() -> Any:
    if importlib.util.find_spec("tensorflow") is None:
        return None
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its greetings are no part of a table
    return importlib.import_module("tensorflow")  # no part of any extra


def _tensorflow_gradient(x: float, m: float) -> list[Case]:
    if (tf := _tensorflow()) is None:
        return []

    def log_huber(x: Any, m: Any) -> Any:
        if tf.abs(x) <= m:
            return x**2
        return m**2 * (1 - 2 * tf.math.log(m) + tf.math.log(x**2))

    @tf.function
    def step(x: Any, m: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.py_function(log_huber, [x, m], tf.float32)
        return tape.gradient(y, x)

    a, b = tf.constant(x), tf.constant(m)
    return [Case("tf.py_function", lambda: np.asarray(step(a, b)), 5)]


def _other_frameworks() -> Group:
    x = jnp.ones(1)
    ours = jax.jit(lambda x: jaxpyop.numpy_function(_negative, [x], jnp.float32))
    cases = [Case("numpy_function", lambda: ours(x))]
    if (tf := _tensorflow()) is not None:
        a = tf.ones(1)
        theirs = tf.function(lambda a: tf.numpy_function(_negative, [a], tf.float32))
        cases.append(Case("tf.numpy_function", lambda: np.asarray(theirs(a))))
    return Group("other frameworks, float32[1]", cases + _torch_cases())


def _torch_cases() -> list[Case]:
    if importlib.util.find_spec("torch") is None:
        return []
    torch: Any = importlib.import_module("torch")  # no part of any extra
    library = vars(torch)["library"]

    class Negative(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return torch.from_numpy(_negative(x.detach().numpy()))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return -grads[0]

    def negative(x: Any) -> Any:
        return torch.from_numpy(_negative(x.numpy()))

    declare = library.custom_op("jaxpyop::negative", mutates_args=(), schema="(Tensor x) -> Tensor")
    custom, t = declare(negative), torch.ones(1)
    return [
        Case("torch Function, eager", lambda: Negative.apply(t).numpy()),
        Case("torch custom_op, eager", lambda: custom(t).numpy()),
    ]


GROUPS: list[Callable[[], Group]] = [
    _small_calls,
    _stateful_calls,
    _ordered_calls,
    _direct_calls,
    _fresh_calls,
    _large_calls,
    _batches,
    _waiting_batches,
    lambda: _gradients("log-Huber gradient, first branch", 1.0, 2.0),
    lambda: _gradients("log-Huber gradient, second branch", 3.0, 2.0),
    _fresh_lengths,
    lambda: _traced("mode='traced', an if on a value", lambda f: f),
    lambda: _traced("the same, gradient", jax.grad),
    _other_frameworks,
]
