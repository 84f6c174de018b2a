"""Runs one function as Python, traced and in "auto" mode, and says where these differ.

A function is given as a module, because the converter needs its source. What is compared: values, gradients, the
state of the module afterwards, and the same under `vmap` and `grad(vmap)`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import importlib.util
import itertools
import pathlib
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

import jaxpyop
from tests.shared.evaluate import evaluate

F = jnp.float32
SECONDS = 120  # A program that takes longer than this hangs.

_numbers = itertools.count()


@contextlib.contextmanager
def module(source: str) -> Iterator[Any]:
    """A module of this text, in a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"python_program_{next(_numbers)}"
        path = pathlib.Path(folder) / f"{name}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        made = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(made)
            yield made
        finally:
            del sys.modules[name]


@dataclasses.dataclass(frozen=True)
class Results:
    """What a function gives at a few points.

    Attributes:
        alone: the value and the gradient at the first point.
        batch: the values at all points, and the gradient of their sum.
        states: the state of the module after the first, and after the last point.
    """

    alone: Any
    batch: Any
    states: Any


@dataclasses.dataclass(frozen=True)
class Case:
    """A function and where it is looked at.

    Attributes:
        function: gives the function, which `reset` may make anew.
        points: the arguments, one tuple for each point.
        argnums: which arguments gradients are taken of.
        reset: puts the module's state back.
        state: tells the module's state.
        max_steps: how many turns a loop may take in a backward pass.
    """

    function: Callable[[], Callable[..., Any]]
    points: Sequence[tuple[Any, ...]]
    argnums: tuple[int, ...] = (0,)
    reset: Callable[[], None] = lambda: None
    state: Callable[[], Any] = lambda: None
    max_steps: int = 130

    def op(self, mode: str) -> Callable[..., Any]:
        options = {} if mode == "eager" else {"max_steps": self.max_steps}
        return lambda *args: jaxpyop.py_function(self.function(), args, F, mode=mode, output_shapes=(), **options)

    def gradient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(function, self.argnums) if self.argnums else lambda *_: ()

    @property
    def batch(self) -> list[Any]:
        return [jnp.stack(column) for column in zip(*self.points, strict=True)]

    def eager(self) -> Results:
        """The function called directly, at one point after the other."""
        op = self.op("eager")
        both = jax.value_and_grad(op, self.argnums) if self.argnums else lambda *args: (op(*args), ())
        found, states = [], []
        self.reset()
        for point in self.points:
            with jax.disable_jit():
                found.append(both(*point))
            states.append(self.state())
        values, gradients = zip(*found, strict=True)
        batch = np.stack(values), [np.stack(g) for g in zip(*gradients, strict=True)]
        return Results((values[0], gradients[0]), batch, (states[0], states[-1]))

    def staged(self, mode: str) -> Results:
        op, point = self.op(mode), self.points[0]
        self.reset()
        # JAX traces what is jitted once for all three programs. What may be called has to begin anew each time.
        once = jax.jit(op) if mode == "traced" else op
        value = as_program(once, *point)(*point)
        state = self.state()
        self.reset()
        gradient = as_program(self.gradient(once), *point)(*point)
        self.reset()
        batch = self._staged_in_batch(once)
        return Results((value, gradient), batch, (state, self.state()))

    def _staged_in_batch(self, op: Callable[..., Any]) -> Any:
        def of_batch(*args: Any) -> Any:
            values = jax.vmap(op)(*args)
            return values.sum(), values

        if not self.argnums:
            return as_program(jax.vmap(op), *self.batch)(*self.batch), []
        gradients, values = as_program(jax.grad(of_batch, self.argnums, has_aux=True), *self.batch)(*self.batch)
        return values, list(gradients)


def as_program(function: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """A function as `jax.jit` traces it, run step by step. The programs are small, so that XLA would take longer."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)

    def run(*args: Any) -> Any:
        with jax.disable_jit():
            outs = evaluate(closed.jaxpr, closed.consts, list(map(np.asarray, jax.tree.leaves(args))))
        # A result that is a constant of the program is a Python number.
        outs = [x if hasattr(x, "shape") else np.asarray(x, a.dtype) for x, a in zip(outs, closed.out_avals)]
        return jax.tree.unflatten(jax.tree.structure(shape), outs)

    return run


def is_refusal(error: BaseException) -> bool:
    """Whether the op says that it cannot be traced, with a line and what to write."""
    return (
        isinstance(error, TypeError) and ("py_function" in str(error)) and re.search(r":\d+: ", str(error)) is not None
    )


def outcome(case: Case, mode: str, wanted: Results | None = None) -> str:
    """Says "equal", "refused", or what differs."""
    wanted = wanted or case.eager()
    try:
        got = case.staged(mode)
    except Exception as error:
        if mode == "traced" and is_refusal(error):
            return "refused"
        return f"raises {type(error).__name__}: {str(error)[:300]}"
    for field in dataclasses.fields(Results):
        a, b = getattr(got, field.name), getattr(wanted, field.name)
        if field.name == "states":
            if a != b:
                return f"{field.name}: {a}, wanted {b}"
        elif problem := _difference(a, b):
            return f"{field.name}: {problem}"
    return "equal"


def _difference(got: Any, wanted: Any) -> str:
    if not np.isfinite(wanted[0]).all():
        # Whether the slope of what overflows is infinite or NaN depends on the order of the operations.
        got, wanted = (
            (values, jax.tree.map(lambda x: np.where(np.isfinite(x), x, np.nan).astype(x.dtype), slopes))
            for values, slopes in (got, wanted)
        )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        if a.dtype != b.dtype or a.shape != b.shape or not np.allclose(a, b, 2e-4, 2e-5, equal_nan=True):
            shown = ([x.tolist() for x in jax.tree.leaves(tree)] for tree in (got, wanted))
            return ", wanted ".join(map(str, shown))
    return ""


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    """Ends the process with a traceback where what is inside takes too long. XLA cannot be interrupted."""
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


POINTS = [(0.7, -1.3, (0.3, -0.6, 1.1)), (-0.4, 0.6, (-0.2, 0.9, -1.4)), (2.6, 1.7, (1.9, 0.1, 0.8))]


def random_case(made: types.ModuleType, seed: int) -> Case:
    dtype = [jnp.uint8, jnp.int8, jnp.uint32, jnp.int32, jnp.uint16][seed % 5]
    n = jnp.asarray(seed // 5 % 5, dtype)
    points = [(F(x), F(y), jnp.asarray(v, F), n) for x, y, v in POINTS[seed % 3 :] + POINTS[: seed % 3]]
    return Case(lambda: made.f, points, (0, 1, 2), made.reset, made.state)


def outcomes(source: str, seed: int) -> dict[str, str]:
    """For each mode what came of a random program; nothing where Python itself raises."""
    with no_hang(), module(source) as made:
        case = random_case(made, seed)
        try:
            wanted = case.eager()
        except Exception as error:
            return {"python": f"{type(error).__name__}: {error}"}
        found = {"traced": outcome(case, "traced", wanted)}
        if found["traced"] != "equal" or seed % 4 == 0:  # what is traced is the same in both modes
            found["auto"] = outcome(case, "auto", wanted)
        return found
