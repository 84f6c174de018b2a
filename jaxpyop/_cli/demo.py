"""Runs every function on real input, prints what goes in and what comes out, and checks it.

Each example is a short function that prints its values through a `Sheet`. The sheet compares them with values that
are known beforehand. It marks a wrong value, and the demo then fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop

F32 = jnp.float32
_WIDTH = 90


class Sheet:
    """Prints values beside their labels, and counts the wrong ones."""

    def __init__(self) -> None:
        self.shown = 0
        self.wrong = 0

    def title(self, text: str) -> None:
        """Start an example."""
        print(f"\n{text}")

    def note(self, text: str) -> None:
        """Print an input, or an event."""
        print(f"    {text}")

    def value(self, label: str, got: Any, want: Any) -> None:
        """Print a result and compare it with the right one."""
        self.shown += 1
        right = _equal(got, want)
        self.wrong += not right
        line = f"    {label:<36}{_show(got)}"
        print(f"{line:<{_WIDTH - 4}}  ok" if right else f"{line}\n    WRONG, the right value is {_show(want)}")

    def close(self) -> int:
        """Print the summary and return the exit code."""
        wrong = f"{self.wrong} of {self.shown} values are wrong"
        print(f"\n{wrong if self.wrong else f'all {self.shown} values are correct'}")
        return 1 if self.wrong else 0


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, np.ndarray, np.generic, jax.Array))


def _equal(got: Any, want: Any) -> bool:
    if isinstance(want, (list, tuple)):
        return isinstance(got, (list, tuple)) and len(got) == len(want) and all(map(_equal, got, want))
    if not _is_number(want):
        return bool(got == want)
    return _is_number(got) and np.shape(got) == np.shape(want) and bool(np.allclose(got, want, rtol=1e-5, atol=1e-6))


def _show(x: Any) -> str:
    if isinstance(x, (list, tuple)):
        inside = ", ".join(map(_show, x))
        return f"({inside})" if isinstance(x, tuple) else f"[{inside}]"
    if not _is_number(x):
        return str(x)
    if np.ndim(x):
        return np.array2string(np.asarray(x), separator=", ", floatmode="maxprec").replace("\n", "")
    number = np.asarray(x).item()
    return repr(float(f"{number:.8g}")) if isinstance(number, float) else str(number)


# --------------------------------------------------------------------- examples


def log_huber(x: Any, m: Any) -> Any:
    """A loss that is quadratic near zero and logarithmic elsewhere."""
    if abs(x) <= m:
        return x**2
    return m**2 * (1 - 2 * jnp.log(m) + jnp.log(x**2))


def _py_function(sheet: Sheet) -> None:
    sheet.title("py_function: a log-Huber loss with a Python `if`, under jax.jit, no shapes given")

    loss = lambda x, m: jaxpyop.py_function(log_huber, [x, m], F32)
    step = jax.jit(jax.value_and_grad(loss))
    for x, m, value, slope in ((1.0, 2.0, 1.0, 2.0), (3.0, 2.0, 7.243721, 2.6666667)):
        sheet.note(f"x = {x}, m = {m}")
        got = step(x, m)
        sheet.value("  value", got[0], value)
        sheet.value("  gradient in x", got[1], slope)
    sheet.value("second derivative at x = 3", jax.jit(jax.grad(jax.grad(loss)))(3.0, 2.0), -8 / 9)
    xs = jnp.array([1.0, 3.0], F32)
    slopes = jax.jit(jax.vmap(jax.grad(loss), (0, None)))(xs, 2.0)
    sheet.value("vmap of the gradient over [1, 3]", slopes, np.array([2.0, 2.6666667]))


def _float_in_the_body(sheet: Sheet) -> None:
    sheet.title("py_function: float() and a while loop on values, in a differentiated body")
    seen: list[float] = []

    def halve_until_small(x: Any) -> Any:
        while float(jnp.sum(x)) > 1:
            seen.append(float(jnp.sum(x)))
            x = x / 2
        return x

    step = jax.jit(lambda x: jnp.sum(jaxpyop.py_function(halve_until_small, [x], F32, output_shapes=x.shape) ** 2))
    x = np.array([3.0, 1.0], np.float32)
    sheet.note(f"x = {_show(x)}, halved until its sum is at most 1, then squared and summed")
    sheet.value("gradient", jax.grad(step)(x), x / 8)
    sheet.value("sums that the body saw", seen, [4.0, 2.0])


def _py_func(sheet: Sheet) -> None:
    sheet.title("py_func (TensorFlow 1's): np.sinh under jax.jit")
    x = np.array([0.0, 1.0, 2.0], np.float32)
    sheet.note(f"x = {_show(x)}")
    want = np.array([0.0, 1.1752012, 3.6268604])
    sheet.value("py_func", jax.jit(lambda x: jaxpyop.py_func(np.sinh, [x], F32))(x), want)
    sheet.value("compat.v1.py_func, not under jit", jaxpyop.compat.v1.py_func(np.sinh, [x], F32), want)
    sheet.value("compat.v2.numpy_function", jaxpyop.compat.v2.numpy_function(np.sinh, [x], F32), want)


def _in_place(sheet: Sheet) -> None:
    sheet.title("numpy_function: the body writes into its input; the caller's array stays as it was")

    def clear_first(x: Any) -> Any:
        x[0] = 0.0
        return x

    x = np.array([1.0, 2.0], np.float32)
    sheet.note(f"x = {_show(x)}, and in the body: x[0] = 0.")
    sheet.value("under jit", jax.jit(lambda x: jaxpyop.numpy_function(clear_first, [x], F32))(x), np.array([0.0, 2.0]))
    sheet.value("not under jit", jaxpyop.numpy_function(clear_first, [x], F32), np.array([0.0, 2.0]))
    sheet.value("the caller's array", x, np.array([1.0, 2.0]))


def _with_vjp(sheet: Sheet) -> None:
    sheet.title("numpy_function with vjp=: the log-determinant of NumPy, with its gradient")

    def gradient(inputs: Any, outputs: Any, cotangents: Any) -> Any:
        return cotangents[0] * np.linalg.inv(inputs[0]).T

    @jaxpyop.numpy_function(Tout=F32(0), vjp=gradient)
    def logdet(a: Any) -> Any:
        return np.linalg.slogdet(a)[1]

    a = np.array([[2.0, 1.0], [1.0, 3.0]], np.float32)
    sheet.note(f"a = {_show(a)}")
    value, slope = jax.jit(jax.value_and_grad(logdet))(a)
    sheet.value("value", value, np.log(5.0))
    sheet.value("gradient", slope, np.array([[0.6, -0.2], [-0.2, 0.4]]))


def _images(sheet: Sheet) -> None:
    sheet.title("numpy_function: a scalar in, a batch of images out, resized in the same jit")

    def load(level: Any) -> Any:
        images = np.ones((20, 256, 256, 3), np.float32)
        return images * (level * np.arange(20, dtype=np.float32)[:, None, None, None])

    @jax.jit
    def batch(level: Any) -> Any:
        images = jaxpyop.numpy_function(load, [level], F32, output_shapes=(20, 256, 256, 3))
        return images, jax.image.resize(images, (20, 64, 64, 3), "linear")

    sheet.note("level = 0.05; image k is filled with k * level")
    start = time.perf_counter()
    images, small = jax.block_until_ready(batch(0.05))
    sheet.note(f"compiled and run in {time.perf_counter() - start:.2f} s")
    sheet.value("shape and dtype", f"{images.shape} {images.dtype}", "(20, 256, 256, 3) float32")
    sheet.value("shape and dtype, resized", f"{small.shape} {small.dtype}", "(20, 64, 64, 3) float32")
    sheet.value("one pixel of images 0, 1 and 19", small[jnp.array([0, 1, 19]), 10, 20, 0], np.array([0.0, 0.05, 0.95]))


def _contrib(sheet: Sheet) -> None:
    sheet.title("contrib.framework.py_func: keyword arguments and nested structures")

    def normalise(batch: Any, *, scale: Any) -> Any:
        mean = batch["x"].mean()
        return {"x": (batch["x"] - mean) * scale, "stats": (mean, len(batch["x"]))}

    @jax.jit
    def run(x: Any) -> Any:
        return jaxpyop.contrib.framework.py_func(
            normalise,
            args=[{"x": x}],
            kwargs={"scale": 10.0},
            output_types={"x": F32, "stats": (F32, jnp.int32)},
            output_shapes={"x": x.shape, "stats": ((), ())},
        )

    x = np.array([1.0, 2.0, 6.0], np.float32)
    sheet.note(f"batch = {{'x': {_show(x)}}}, scale = 10.0")
    out = run(x)
    sheet.value("out['x']", out["x"], np.array([-20.0, -10.0, 30.0]))
    sheet.value("out['stats']", out["stats"], [3.0, 3])


def _logging(sheet: Sheet) -> None:
    sheet.title("py_func, stateful: a log written from inside a jitted while_loop")
    log: list[tuple[int, float]] = []

    def step(carry: Any) -> Any:
        i, x = carry
        jaxpyop.py_func(lambda i, x: log.append((int(i), float(x))), [i, x], None)
        return i + 1, x / 2

    sheet.note("x = 10.0, halved while it is above 1")
    result = jax.jit(lambda x: jax.lax.while_loop(lambda carry: carry[1] > 1, step, (0, x)))(10.0)
    jax.effects_barrier()
    sheet.value("steps, and x at the end", result, [4, 0.625])
    sheet.value("the log", log, [(0, 10.0), (1, 5.0), (2, 2.5), (3, 1.25)])


def _vmap(sheet: Sheet) -> None:
    sheet.title("vmap: one host call for the whole batch")
    shapes: list[tuple[int, ...]] = []

    def double(x: Any) -> Any:
        shapes.append(x.shape)
        return 2 * x

    x = np.arange(1000, dtype=np.float32)
    sheet.note("x = 1000 scalars")
    for method, seen in (("sequential", [()] * 1000), ("expand_dims", [(1000,)])):

        def op(x: Any, method: Any = method) -> Any:
            return jaxpyop.numpy_function(double, [x], F32, vmap_method=method)

        program = jax.make_jaxpr(jax.vmap(op))(x)
        shapes.clear()
        got = jax.jit(jax.vmap(op))(x)
        right = bool(np.array_equal(got, 2 * x)) and shapes == seen
        counts = [len(program.eqns), len(shapes)]
        sheet.value(f"{method}: host calls, body calls", counts, [1, len(seen)])
        sheet.value("  right values, shapes in the body", right, True)


def _error(sheet: Sheet) -> None:
    sheet.title("an error under jit, and reraise()")

    def fail(x: Any) -> Any:
        raise KeyError(f"no sample {int(x)}")

    f = jax.jit(lambda x: jaxpyop.py_func(fail, [x], F32))
    sheet.note("the body raises KeyError('no sample 7')")
    text, original = "", ""
    try:
        jax.block_until_ready(f(7))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        text = str(error)
    line = next((line for line in text.splitlines() if " failed: " in line), "")
    op, _, exception = line.partition(" failed: ")
    sheet.value("JAX's error names the op", op.split(": ")[-1], "py_func 'fail'")
    sheet.value("  and the exception", exception.partition(" [")[0], "KeyError: 'no sample 7'")
    try:
        with jaxpyop.reraise():
            jax.block_until_ready(f(7))
    except KeyError as error:
        original = repr(error)
    sheet.value("with reraise(): the original", original, "KeyError('no sample 7')")


EXAMPLES: Sequence[Callable[[Sheet], None]] = (
    _py_function,
    _float_in_the_body,
    _py_func,
    _in_place,
    _with_vjp,
    _images,
    _contrib,
    _logging,
    _vmap,
    _error,
)


def main() -> int:
    """Run all examples, and return 1 if a value is wrong."""
    print(f"jaxpyop {jaxpyop.__version__} on JAX {jax.__version__}, backend {jax.default_backend()}")
    sheet = Sheet()
    for example in EXAMPLES:
        example(sheet)
    return sheet.close()
