"""Runs a function on a tape, and gives its derivatives: `record`, `vjp` and `jvp`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop import _jaxcore
from jaxpyop._config import config
from jaxpyop._tape.by_vjp import RecordOfVjp, checked, record_by_vjp
from jaxpyop._tape.comparable import comparable_program
from jaxpyop._tape.detached import warn_of_constants
from jaxpyop._tape.lazy import LazyTape, lazy_tape
from jaxpyop._tape.linear import Linear
from jaxpyop._tape.replay import Program, pull_program, push_program
from jaxpyop._tape.tape import Tape, is_array, programs, size_of, typeof

# The bytes that a record takes besides its arrays, as measured on JAX 0.10 to 0.12: in all, per call, and per call that
# was linearized, which holds a jaxpr.
_RECORD_BYTES = 600
_NODE_BYTES = 500
_LINEAR_BYTES = 20_000


class Record:
    """One recorded run of a function: its program, and the values that derivatives read."""

    __slots__ = ("__weakref__", "_in_avals", "_is_lazy", "_kept", "_nbytes", "_out_avals", "_program")

    def __init__(
        self, program: Program, kept: list[Any], in_avals: list[Any], out_avals: list[Any], is_lazy: bool
    ) -> None:
        self._is_lazy = is_lazy
        self._program = program
        self._kept = kept
        self._in_avals = in_avals
        self._out_avals = out_avals
        self._nbytes: int | None = None

    def arrays(self) -> list[Any]:
        """Returns the arrays that this record keeps alive, each once."""
        held = [v for v in self._kept if is_array(v)]
        for node in self._program.nodes:
            if isinstance(node.how, Linear):
                held += node.how.arrays()
        return list({id(v): v for v in held}.values())

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory this record takes. Its program counts only if no other record shares it."""
        if self._nbytes is None:
            program = self._program
            if programs.holds(program.key, program):
                self._nbytes = sum({id(v): n for v, n in zip(self._kept, program.sizes)}.values(), _RECORD_BYTES)
            else:
                nodes = sum([_LINEAR_BYTES if isinstance(n.how, Linear) else _NODE_BYTES for n in program.nodes])
                self._nbytes = sum(map(size_of, self.arrays()), _RECORD_BYTES + nodes)
        return self._nbytes

    def comparable(self) -> tuple[str, list[Any]] | None:
        """Returns a text and arrays that decide the derivative, to compare two runs. None if nothing can tell.

        The lazy tape puts the same calls together in different ways, so that its records cannot be compared.
        """
        return None if self._is_lazy else comparable_program(self._program, self._kept)

    def pullback(self, cotangents: Sequence[Any]) -> list[Any]:
        """Reverse mode, under whatever trace is current.

        Args:
            cotangents: one per output. None is zero, and the only choice for an output of an integer or bool dtype.

        Returns:
            One cotangent per input. None is zero; inputs without a tangent always get it.
        """
        with self._widths():
            cotangents = checked("cotangent", "output", cotangents, self._out_avals)
            return pull_program(self._program, self._kept, cotangents)

    def pushforward(self, tangents: Sequence[Any]) -> list[Any]:
        """Forward mode: one tangent per output from one per input; None is zero."""
        with self._widths():
            tangents = checked("tangent", "input", tangents, self._in_avals)
            return push_program(self._program, self._kept, tangents)

    def _widths(self) -> contextlib.AbstractContextManager[Any]:
        # The body may have turned on 64 bits for a block. Without them its values would have no derivative.
        return _jaxcore.with_wide_types(self._program.is_wide)


def _new_tape(title: str, inputs: Sequence[Any], may_wait: bool) -> Tape:
    lazy = lazy_tape(title, inputs) if may_wait and config.tape == "lazy" else None
    return lazy or Tape(_jaxcore.current_trace(), title)


def _array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else _jaxcore.with_transfers(jnp.asarray, value)


def record(
    func: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    perturbed: Sequence[bool] | None = None,
    *,
    may_wait: bool = True,
) -> tuple[list[Any], Record | RecordOfVjp]:
    """Runs `func(*inputs)` once and records it.

    Args:
        func: a Python function of arrays, which returns a flat list or tuple of arrays or of concrete values (NumPy
            arrays, Python numbers). Its `title`, if it has one, is what warnings call it.
        inputs: arrays. Those of a floating-point or complex dtype are differentiated.
        perturbed: which of them are differentiated, by default all. The others are constants, and operations
            on constants alone are not recorded.
        may_wait: whether `config.tape` counts. Otherwise each operation is evaluated at once.

    Returns:
        The outputs, as concrete as the inputs, and the record.

    Example:
        >>> import jax.numpy as jnp
        >>> outputs, taken = record(lambda x: [x * x if float(x) > 1 else x], [jnp.float32(3.0)])
        >>> float(outputs[0]), float(taken.pullback([jnp.float32(1.0)])[0])
        (9.0, 6.0)
    """
    title = getattr(func, "title", "a recorded function")
    inputs = [_array(x) for x in inputs]
    if not _jaxcore.HAS_OWN_TRACES:
        return record_by_vjp(func, inputs, perturbed, title)
    tape = _new_tape(title, inputs, may_wait)
    try:
        boxed = [
            tape.box_input(x) if p else tape.box_constant(x)
            for x, p in zip(inputs, perturbed or itertools.repeat(True))
        ]
        with _jaxcore.set_current_trace(tape):
            outs = tape.evaluated(list(func(*boxed)))
        in_slots = tuple([tape.slot_of(x) for x in boxed])
        out_slots = tuple([tape.slot_of(x) for x in outs])
        outputs = [x.value if s >= 0 else _array(x) for x, s in zip(outs, out_slots)]
        warn_of_constants(tape, outputs, out_slots)
        program, kept = tape.finish(in_slots, out_slots)
        avals = [typeof(x) for x in inputs], [typeof(x) for x in outputs]
        return outputs, Record(program, kept, *avals, isinstance(tape, LazyTape))
    finally:
        tape.close()


def vjp(
    func: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    cotangents: Sequence[Any],
    perturbed: Sequence[bool] | None = None,
) -> list[Any]:
    """Returns the cotangents of `func`'s `perturbed` inputs (by default of all) for these cotangents of its outputs."""
    return record(func, inputs, perturbed)[1].pullback(cotangents)


def jvp(
    func: Callable[..., Sequence[Any]], inputs: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Returns `func`'s outputs and their tangents; a tangent of None is zero."""
    outputs, taken = record(func, inputs, [t is not None for t in tangents])
    return outputs, taken.pushforward(tangents)
