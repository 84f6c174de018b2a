"""How fast this is, measured here and now, beside what else there is.

All cases of a group take turns in one run, so that a busy machine slows them
alike; the figures to trust are the ratios of the medians.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
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


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table; times in microseconds per call."""

    group: str
    case: str
    median: float
    low: float
    high: float
    ratio: float | None  # ours to this one


def _wait(result: Any) -> None:
    jax.block_until_ready(result)


def _sample(case: Case) -> float:
    start = time.perf_counter()
    for _ in range(case.calls - 1):
        case.run()
    _wait(case.run())
    return (time.perf_counter() - start) / case.calls * 1e6


def measure(group: Group) -> list[Row]:
    """Time the cases of a group in turn."""
    for case in group.cases:
        _wait(case.run())
        _wait(case.run())  # the first run can leave the compiling to the second
    times: dict[str, list[float]] = {case.name: [] for case in group.cases}
    for _ in range(group.samples):
        for case in group.cases:
            times[case.name].append(_sample(case))
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    ours = medians[group.cases[0].name]
    rows = []
    for name, taken in times.items():
        low, _, high = statistics.quantiles(taken, n=4)
        ratio = None if name == group.cases[0].name else ours / medians[name]
        rows.append(Row(group.title, name, medians[name], low, high, ratio))
    return rows


# ------------------------------------------------------------------------ cases


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
    return Group(
        "float32[1] under jit",
        [
            Case("numpy_function", lambda: ours(x)),
            Case("jax.pure_callback", lambda: pure(x)),
            Case("bare buffer_callback", lambda: bare(x)),
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


# --------------------------------------------------- what else may be installed


def _tensorflow() -> Any:
    if importlib.util.find_spec("tensorflow") is None:
        return None
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
    if importlib.util.find_spec("torch") is not None:
        cases.append(_torch_case())
    return Group("other frameworks, float32[1]", cases)


def _torch_case() -> Case:
    torch: Any = importlib.import_module("torch")  # no part of any extra

    class Negative(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return torch.from_numpy(_negative(x.detach().numpy()))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return -grads[0]

    t = torch.ones(1)
    return Case("torch.autograd.Function", lambda: Negative.apply(t).numpy())


# ------------------------------------------------------------------------ report


def _groups() -> list[Callable[[], Group]]:
    return [
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
        _other_frameworks,
    ]


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        bar = "#" * (40 * done // total)
        sys.stderr.write(f"\r[{bar:<40}] {done}/{total}" + ("\n" if done == total else ""))
        sys.stderr.flush()


def run() -> Iterator[list[Row]]:
    """Measure one group after the other."""
    makers = _groups()
    for done, make in enumerate(makers):
        _progress(done, len(makers))
        group = make()
        if len(group.cases) > 1:
            yield measure(group)
    _progress(len(makers), len(makers))


def _about() -> str:
    return (
        f"jaxpyop {jaxpyop.__version__}, jax {jax.__version__}, Python {sys.version.split()[0]}, "
        f"{jax.default_backend()}"
    )


def _table(rows: list[Row]) -> Iterator[str]:
    yield _about()
    yield "time per call; ratio: our time to that of this line, so below 1 ours is the faster"
    yield ""
    yield f"{'':<39}{'':<25}{'median':>10}{'middle half':>19}{'ratio':>7}"
    for title, group in itertools.groupby(rows, lambda row: row.group):
        for i, row in enumerate(group):
            ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
            scale, unit = (1, "us") if row.median < 1000 else (1000, "ms")
            median, low, high = (f"{t / scale:.1f}" for t in (row.median, row.low, row.high))
            median, spread = f"{median} {unit}", f"{low} to {high} {unit}"
            yield f"{title if i == 0 else '':<39}{row.case:<25}{median:>10}{spread:>19}{ratio:>7}"


def main(as_json: bool) -> int:
    """Print the table, or the same as JSON."""
    rows = [row for group in run() for row in group]
    if as_json:
        print(json.dumps({"about": _about(), "rows": [dataclasses.asdict(row) for row in rows]}, indent=2))
    else:
        print("\n".join(_table(rows)))
    return 0
