"""What a body sees of the code that called it: context variables, x64, and JAX's default device."""

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


# By these ipykernel 7 knows which notebook cell gets an output or answers `input()`. A program outlives
# the cell that traced it; without them ipykernel takes the cell that runs.
_OF_A_CELL = frozenset({"parent_header", "shell_parent", "shell_parent_ident"})


def _without_cell(context: contextvars.Context) -> contextvars.Context:
    if all(variable.name not in _OF_A_CELL for variable in context):
        return context
    kept = contextvars.Context()
    for variable, value in context.items():
        if variable.name not in _OF_A_CELL:
            kept.run(variable.set, value)
    return kept


class Environment:
    """What a body sees of its caller: context variables and x64."""

    __slots__ = ("context", "x64")

    def __init__(self) -> None:
        self.context = _without_cell(contextvars.copy_context())
        self.x64: bool = _jaxcore.x64_enabled()

    def is_current(self) -> bool:
        """Whether a body may simply be called, here and now."""
        return _jaxcore.x64_enabled() == self.x64 and _jaxcore.at_top_level() and _on_cpu()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Set what is set by thread in JAX."""
        with contextlib.ExitStack() as stack:
            if not _jaxcore.is_eager():  # a program can run while another is traced
                stack.enter_context(_jaxcore.eval_context())
            stack.enter_context(_jaxcore.without_axes())
            if _jaxcore.x64_enabled() != self.x64:
                stack.enter_context(jax.enable_x64(self.x64))
            if not _on_cpu():  # a body's own JAX operations stay where it runs
                stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
            yield
