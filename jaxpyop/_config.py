"""The settings. Each one is an attribute of `config` and an environment variable.

``jaxpyop.config.mode = "traced"`` changes a setting for the process, and
``with jaxpyop.config.override(mode="traced"):`` changes it for a block.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, get_args

Mode: TypeAlias = Literal["eager", "traced", "auto"]
Constants: TypeAlias = Literal["warn", "allow", "error"]
Errors: TypeAlias = Literal["raise", "refuse"]


def _one_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"expected one of {choices}, got {value!r}")
        return str(value)

    return parse


def _at_least_one(value: Any) -> int:
    # The value of an environment variable is a string. A bool or a float is a mistake, although int() accepts it.
    try:
        number = 0 if isinstance(value, (bool, float)) else int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise ValueError(f"expected a whole number, at least 1, got {value!r}")
    return number


def _limits_of_groups(root: pathlib.Path) -> Iterator[int]:
    """The limits of memory of the control groups that this process is in, of both kinds, and of the groups around them.

    In a container, a path may be that of the host. Then only the root is there, and it is the container's own group.
    """
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        folder, name = ("memory", "memory.limit_in_bytes") if kinds else ("", "memory.max")
        if not kinds or "memory" in kinds.split(","):
            inner = root / "sys/fs/cgroup" / folder / path.lstrip("/")
            for group in (inner, *inner.parents):
                with contextlib.suppress(ValueError, OSError):
                    yield int((group / name).read_text())


def _share_of_memory(root: str = "/") -> int:
    """An eighth of the memory that this process may use, in bytes, but at least 256 MB.

    A scan leaves the records of all its steps before its backward pass reads the first, so a fixed bound would make
    long scans run everything twice on a machine with memory to spare.
    """
    found = []
    with contextlib.suppress(AttributeError, ValueError, OSError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(ValueError, OSError):
        found += _limits_of_groups(pathlib.Path(root))
    return max(256 * 2**20, min(found, default=0) // 8)


_SETTINGS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "mode": ("eager", _one_of(get_args(Mode))),
    "constants": ("warn", _one_of(get_args(Constants))),
    "errors": ("raise", _one_of(get_args(Errors))),
    "max_record_bytes": (_share_of_memory(), _at_least_one),
}


class Settings(TypedDict, total=False):
    """The keyword arguments of :meth:`Config.override`."""

    mode: Mode
    constants: Constants
    errors: Errors
    max_record_bytes: int


class Config:
    """The settings of jaxpyop, for the whole process.

    Each setting is an attribute. It is also an environment variable, which is
    read when jaxpyop is imported. A compiled program keeps the `mode` that it
    was compiled with, and reads the other settings when it runs. To change a
    setting, assign to its attribute: there is no ``update``, as JAX's
    ``jax.config`` has. TensorFlow's ``tf.py_function`` has no settings, and is always eager.

    Attributes:
        mode: the default of ``py_function(mode=...)``. ``"eager"`` calls the
            function at run time. ``"traced"`` traces it into the program, and
            raises if that fails; stateful ops and ops with ``vjp=``,
            ``jvp=`` or ``on_error=`` stay eager. ``"auto"`` traces it if possible.
            Environment variable: ``JAXPYOP_MODE``.
        constants: what happens when a differentiated value goes into NumPy
            inside a ``py_function``, and therefore becomes a constant for the
            derivative. ``"warn"`` warns once per op and line. ``"allow"`` is
            silent. ``"error"`` raises a :class:`TypeError`, for ``float(x)``
            and ``x.item()`` as well.
            Environment variable: ``JAXPYOP_CONSTANTS``.
        errors: what becomes of a function of ``mode="traced"`` that may raise an
            error because of a value. With ``"raise"`` the program calls Python
            to raise it. With ``"refuse"`` the function is refused while JAX
            traces, and no traced program ever calls Python.
            Environment variable: ``JAXPYOP_ERRORS``.
        max_record_bytes: how many bytes of memory gradient records of ``py_function``,
            and residuals of ``vjp=(fwd, bwd)``, may take until a backward pass reads
            them: by default an eighth of the machine's memory, at least 256 MB.
            Records that a pass has read may fill 1/32 of this limit, or all of it for
            a stateful op, which cannot run again. Outside ``jax.jit``, a record that
            has been read is released with its pullback. A backward pass whose record
            does not fit runs the function again, warns once per op, and raises if the
            results differ. Environment variable: ``JAXPYOP_MAX_RECORD_BYTES``.

    Raises:
        AttributeError: there is no setting of that name.
        ValueError: the setting does not take that value. The text names the
            setting, or the environment variable.

    Example:
        >>> import jaxpyop
        >>> jaxpyop.config.errors
        'raise'
        >>> jaxpyop.config.errors = "refuse"
        >>> jaxpyop.config.errors = "raise"
    """

    mode: Mode
    constants: Constants
    errors: Errors
    max_record_bytes: int

    def __init__(self) -> None:
        for name, (default, _) in _SETTINGS.items():
            variable = f"JAXPYOP_{name.upper()}"
            try:
                setattr(self, name, os.environ.get(variable, default))
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
        for function in _listeners:
            function()

    @contextlib.contextmanager
    def override(self, **settings: Unpack[Settings]) -> Iterator[None]:
        """Change settings for a block, in all threads.

        JAX's own context managers, such as :func:`jax.enable_x64`, change a
        setting for one thread only.

        Args:
            **settings: the new values.

        Returns:
            A context manager. It yields ``None``, and restores the previous
            values at the end.

        Raises:
            AttributeError: there is no setting of that name.
            ValueError: a setting does not take its value. Then no setting has
                changed.

        Example:
            >>> import jaxpyop
            >>> with jaxpyop.config.override(mode="traced"):
            ...     jaxpyop.config.mode
            'traced'
            >>> jaxpyop.config.mode
            'eager'
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


# For debugging and for tests: with "callback", programs take `jax.pure_callback` and `io_callback` in place of the
# zero-copy transport. It is read when a program is compiled.
TRANSPORT = _one_of(("auto", "callback"))(os.environ.get("JAXPYOP_TRANSPORT", "auto"))

_listeners: list[Callable[[], None]] = []
config: Config = Config()


def on_change(function: Callable[[], None]) -> None:
    """Register a function that is called after each change of a setting."""
    _listeners.append(function)
