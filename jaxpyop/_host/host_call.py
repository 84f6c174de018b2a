"""The protocol of the calls that the host runs, declared where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jaxpyop._host.environment import Environment


class HostCall(Protocol):
    """The members of a call that the host reads. `_op.primitive.Call` says what each of them means."""

    title: str
    label: str
    op: Any
    func: Any
    body: Any
    environment: Environment
    on_jax: bool
    copy: bool
    effects: Any
    batching: Any
    operands: Any
    seconds_per_element: float | None

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]: ...

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None: ...

    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]: ...

    def groups(self, values: Sequence[Any]) -> dict[str, Sequence[Any]]: ...

    def check(self, index: int, shape: tuple[int, ...], expected: tuple[int, ...]) -> None: ...
