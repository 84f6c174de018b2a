"""Settings, each an attribute of one object and an environment variable.

``jaxpyop.config.mode = "traced"`` changes a setting for the process;
``with jaxpyop.config.override(mode="traced"):`` for a block. Compiled
programs keep the settings that they were compiled with.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, get_args

Mode: TypeAlias = Literal["eager", "traced", "auto"]
Transport: TypeAlias = Literal["auto", "callback"]
Constants: TypeAlias = Literal["warn", "allow", "error"]


def _one_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"expected one of {choices}, got {value!r}")
        return str(value)

    return parse


def _at_least_one(value: Any) -> int:
    if isinstance(value, (bool, float)):
        raise ValueError(f"expected a whole number, got {value!r}")
    try:
        number = int(value)
    except TypeError:
        raise ValueError(f"expected a whole number, got {value!r}") from None
    if number < 1:
        raise ValueError(f"expected at least 1, got {number}")
    return number


_SETTINGS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "mode": ("eager", _one_of(get_args(Mode))),
    "transport": ("auto", _one_of(get_args(Transport))),
    "constants": ("warn", _one_of(get_args(Constants))),
    "max_records": (8192, _at_least_one),
    "max_record_bytes": (256 * 2**20, _at_least_one),
    "max_scratch_bytes": (128 * 2**20, _at_least_one),
}


class Settings(TypedDict, total=False):
    """What :meth:`Config.override` takes."""

    mode: Mode
    transport: Transport
    constants: Constants
    max_records: int
    max_record_bytes: int
    max_scratch_bytes: int


class Config:
    """The settings of jaxpyop, for the whole process.

    Each is an attribute, and an environment variable that is read when jaxpyop
    is imported. Compiled programs keep the settings that they were compiled
    with. They are as JAX's ``jax.config``; TensorFlow's ``tf.py_function`` has
    none, and is always eager.

    Attributes:
        mode: default of ``py_function(mode=...)``: ``"eager"`` (the body is
            called at run time), ``"traced"`` (traced into XLA, or an error;
            stateful ops and those with ``vjp=`` or ``jvp=`` stay eager) or
            ``"auto"`` (traced where that can be done).
            Environment variable ``JAXPYOP_MODE``.
        transport: how a compiled program reaches the host. ``"auto"`` takes
            the zero-copy ``jax.experimental.buffer_callback`` where it
            applies, ``"callback"`` always ``jax.pure_callback`` and
            ``jax.experimental.io_callback``. Read when a program is compiled.
            ``JAXPYOP_TRANSPORT``.
        constants: what happens when a differentiated value goes into NumPy
            inside a ``py_function`` and so becomes a constant to the
            derivative: ``"warn"`` once per op and line, ``"allow"``, or
            ``"error"``, a :class:`TypeError`, which ``float(x)`` and
            ``x.item()`` then are, too. ``JAXPYOP_CONSTANTS``.
        max_records: how many gradient records of ``py_function`` are kept for
            backward passes to come. Of those that a pass has read a
            thirty-second part stays, for passes that ask again; of a stateful
            op, which cannot run again, all of them. Outside ``jax.jit`` a
            record lives as long as the pullback. ``JAXPYOP_MAX_RECORDS``.
        max_record_bytes: how many bytes of memory they may take, likewise.
            ``JAXPYOP_MAX_RECORD_BYTES``.
        max_scratch_bytes: how many bytes of arrays, into which inputs were
            copied for functions that have returned, are kept for the next
            calls, of all programs together. ``JAXPYOP_MAX_SCRATCH_BYTES``.

    Raises:
        AttributeError: setting what is no setting.
        ValueError: not a value of that setting; the text names the setting, or
            the environment variable.

    Example:
        >>> import jaxpyop
        >>> jaxpyop.config.max_records
        8192
        >>> jaxpyop.config.max_records = 10_000
        >>> jaxpyop.config.max_records = 8192
    """

    mode: Mode
    transport: Transport
    constants: Constants
    max_records: int
    max_record_bytes: int
    max_scratch_bytes: int

    def __init__(self) -> None:
        for name, (default, _) in _SETTINGS.items():
            variable = f"JAXPYOP_{name.upper()}"
            value = os.environ.get(variable, default)
            try:
                setattr(self, name, value)
            except ValueError as error:
                raise ValueError(f"environment variable {variable}: {error}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _SETTINGS:
            raise AttributeError(f"jaxpyop.config has no setting {name!r}; it has {', '.join(_SETTINGS)}")
        try:
            parsed = _SETTINGS[name][1](value)
        except ValueError as error:
            raise ValueError(f"jaxpyop.config.{name}: {error}") from None
        object.__setattr__(self, name, parsed)
        for followed in _followers:
            followed()

    @contextlib.contextmanager
    def override(self, **settings: Unpack[Settings]) -> Iterator[None]:
        """Change settings for a block; for the whole process, not one thread.

        As JAX's context managers do, such as :func:`jax.enable_x64`, but those
        are for one thread.

        Args:
            **settings: new values by name.

        Returns:
            A context manager, which gives ``None``, and restores the settings
            that it found.

        Raises:
            AttributeError: no such setting.
            ValueError: not a value of that setting; then none has changed.

        Example:
            >>> import jaxpyop
            >>> with jaxpyop.config.override(transport="callback", max_records=100):
            ...     jaxpyop.config.transport
            'callback'
            >>> jaxpyop.config.transport
            'auto'
        """
        before = {name: getattr(self, name, None) for name in settings}
        try:
            for name, value in settings.items():
                setattr(self, name, value)
            yield
        finally:
            for name in before.keys() & _SETTINGS.keys():
                setattr(self, name, before[name])

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in _SETTINGS)})"


_followers: list[Callable[[], None]] = []
config: Config = Config()


def follow(function: Callable[[], None]) -> None:
    """Call a function after each change of a setting."""
    _followers.append(function)
