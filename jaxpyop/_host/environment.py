"""What a body sees of the code that called the op: context variables, x64, and JAX's default device."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator

import jax

from jaxpyop import _jaxcore


@functools.cache
def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


# By these variables ipykernel 7 knows which notebook cell gets an output or answers `input()`. A program outlives the
# cell that traced it. Without them ipykernel takes the cell that runs.
_CELL_VARIABLES = frozenset({"parent_header", "shell_parent", "shell_parent_ident"})


def _without_cell(context: contextvars.Context) -> contextvars.Context:
    if all(variable.name not in _CELL_VARIABLES for variable in context):
        return context
    kept = contextvars.Context()
    for variable, value in context.items():
        if variable.name not in _CELL_VARIABLES:
            kept.run(variable.set, value)
    return kept


class Environment:
    """What a body sees of the code that called the op: its context variables, and whether x64 is on."""

    __slots__ = ("context", "x64")

    def __init__(self) -> None:
        self.context = _without_cell(contextvars.copy_context())
        self.x64: bool = _jaxcore.x64_enabled()

    def is_current(self) -> bool:
        """Tell whether a body may be called here and now, without `entered`."""
        return _jaxcore.x64_enabled() == self.x64 and _jaxcore.at_top_level() and _on_cpu()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Apply JAX's thread-local settings for a block: eager evaluation, no axis names, x64, the CPU."""
        with contextlib.ExitStack() as stack:
            # A program can run while another one is traced.
            if not _jaxcore.is_eager():
                stack.enter_context(_jaxcore.eval_context())
            stack.enter_context(_jaxcore.without_axes())
            if _jaxcore.x64_enabled() != self.x64:
                stack.enter_context(jax.enable_x64(self.x64))
            # A body's own JAX operations stay on the CPU, where the body runs.
            if not _on_cpu():
                stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
            yield
