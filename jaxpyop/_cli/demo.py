"""Shows what the ops do, on four short programs, and checks what they print.

Each example yields its results as triples of a label, the value that came, and the value that is right. The demo
marks a wrong value, and then fails.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop

F32 = jnp.float32
Shown: TypeAlias = Iterator[tuple[str, Any, Any]]


def _loop_on_values() -> Shown:
    """py_function: Newton's square root, a loop on values, with its gradient under jit."""

    def newton(a: Any) -> Any:
        x = (1 + a) / 2
        while abs(x * x - a) > 1e-5 * a:
            x = (x + a / x) / 2
        return x

    root = lambda a: jaxpyop.py_function(newton, [a], F32)
    value, slope = jax.jit(jax.value_and_grad(root))(9.0)
    yield "root of 9", value, 3.0
    yield "gradient", slope, 1 / 6
    slopes = jax.jit(jax.vmap(jax.grad(root)))(jnp.array([1.0, 4.0, 16.0], F32))
    yield "gradients at 1, 4 and 16", slopes, np.array([0.5, 0.25, 0.125])


def _rule_in_numpy() -> Shown:
    """numpy_function: NumPy's log-determinant under jit, with a gradient in NumPy."""

    def gradient(inputs: Any, outputs: Any, cotangents: Any) -> Any:
        return cotangents * np.linalg.inv(inputs[0]).T

    @jaxpyop.numpy_function(Tout=F32(0), vjp=gradient)
    def logdet(a: Any) -> Any:
        return np.linalg.slogdet(a)[1]

    value, slope = jax.jit(jax.value_and_grad(logdet))(jnp.array([[2.0, 1.0], [1.0, 3.0]], F32))
    yield "log-determinant of [[2, 1], [1, 3]]", value, np.log(5.0)
    yield "gradient", slope, np.array([[0.6, -0.2], [-0.2, 0.4]])


def _whole_batch() -> Shown:
    """numpy_function under vmap: one call for a batch of 1000 scalars."""
    shapes: list[tuple[int, ...]] = []

    def double(x: Any) -> Any:
        shapes.append(x.shape)
        return 2 * x

    op = lambda x: jaxpyop.numpy_function(double, [x], F32(0), vmap_method="expand_dims")
    doubled = jax.jit(jax.vmap(op))(jnp.arange(1000, dtype=F32))
    yield "sum of the results", doubled.sum(), 999000.0
    yield "shapes that the function saw", shapes, [(1000,)]


def _error() -> Shown:
    """An error under jit says which op failed. Inside reraise() it is the function's own."""

    def load(k: Any) -> Any:
        raise KeyError(f"no sample {int(k)}")

    program = jax.jit(lambda k: jaxpyop.numpy_function(load, [k], F32(0)))
    try:
        jax.block_until_ready(program(7))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        line = next(line for line in str(error).splitlines() if " failed: " in line)
        yield "JAX's error has", line[line.index("numpy_function") :].partition(" [")[0], _FAILED
    try:
        with jaxpyop.reraise():
            jax.block_until_ready(program(7))
    except KeyError as error:
        yield "inside reraise()", repr(error), "KeyError('no sample 7')"


_FAILED = "numpy_function 'load' failed: KeyError: 'no sample 7'"
EXAMPLES = (_loop_on_values, _rule_in_numpy, _whole_batch, _error)


def _is_right(got: Any, want: Any) -> bool:
    if isinstance(want, (float, np.ndarray)):
        return np.shape(got) == np.shape(want) and bool(np.allclose(got, want, rtol=1e-4))
    return got == want


def _show(x: Any) -> str:
    return str(np.asarray(x)).replace("\n", "") if isinstance(x, jax.Array) else str(x)


def main() -> int:
    """Run all examples, and return 1 if a value is wrong."""
    folder = pathlib.Path(jaxpyop.__file__).parent
    print(f"jaxpyop {jaxpyop.__version__} in {folder}, JAX {jax.__version__}, backend {jax.default_backend()}")
    results: list[bool] = []
    for example in EXAMPLES:
        print(f"\n{example.__doc__}")
        for label, got, want in example():
            results.append(_is_right(got, want))
            mark = "" if results[-1] else f"    WRONG, {want} is right"
            print(f"    {label:<37}{_show(got)}{mark}")
    print(f"\n{results.count(True)} of {len(results)} values are right")
    return 0 if all(results) else 1
