"""What a failing body looks like from outside a compiled program.

XLA carries an error across as text. So the text says all there is to say (the
op, the function, its inputs, the user's own frames), and carries a number by
which :func:`reraise` finds the exception object again.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import inspect
import itertools
import logging
import os
import re
import secrets
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jaxlib
import numpy as np

from jaxpyop import _jaxcore

KEPT = 64  # originals that reraise() can still find; a device runs 32 programs at once

_LIBRARY_DIRS = (
    _jaxcore.PACKAGE,
    *(
        os.path.join(os.path.dirname(os.path.abspath(module)), "")
        for module in (str(jax.__file__), str(jaxlib.__file__), concurrent.futures.__file__)
    ),
)


class PythonBodyError(RuntimeError):
    """A body failed inside a compiled program; the text tells of it."""


def is_library_file(filename: str) -> bool:
    """True for files of jaxpyop, jax, jaxlib, and of the pools that call bodies."""
    return os.path.abspath(filename).startswith(_LIBRARY_DIRS)


def stacklevel_of_user() -> int:
    """The `stacklevel` with which our caller's warning points at the user's line."""
    frame, level = sys._getframe(1), 1
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def plain_function(func: Callable[..., Any]) -> Callable[..., Any]:
    """What is at the bottom of partials and wrappers."""
    while isinstance(func, functools.partial):
        func = func.func
    try:
        return inspect.unwrap(func)
    except ValueError:  # wrapped in a circle
        return func


def where(func: Callable[..., Any]) -> str:
    """`name, file:line` of a callable, as far as it can be known."""
    inner = plain_function(func)
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    if not isinstance(code, types.CodeType):
        return str(name)
    return f"{name}, {shown_file(code.co_filename)}:{code.co_firstlineno}"


def shown_file(filename: str) -> str:
    """A file's name, or `Cell In[7]` for the temporary file of a notebook's cell."""
    with contextlib.suppress(Exception):  # IPython 8 and 9 have this; none of it is needed
        found = sys.modules["IPython"].get_ipython().compile.format_code_name(filename)
        return " ".join(found) if found else filename
    return filename


def show_types(values: Iterable[Any]) -> str:
    """`float32[3], int32[]` for things with a shape and a dtype."""
    shown = [f"{np.dtype(v.dtype).name}[{','.join(map(str, v.shape))}]" for v in values]
    return ", ".join(shown) or "none"


def _drop_library_frames(shown: traceback.TracebackException) -> set[str]:
    kept = [frame for frame in shown.stack if not is_library_file(frame.filename)]
    shown.stack = traceback.StackSummary.from_list(kept)
    files = {frame.filename for frame in kept}
    for link in (shown.__cause__, shown.__context__):
        if link is not None:
            files |= _drop_library_frames(link)
    return files


def format_user_traceback(error: BaseException) -> str:
    """The traceback of `error`, and of what caused it, in user code alone."""
    shown = traceback.TracebackException.from_exception(error)
    files = _drop_library_frames(shown)
    text = "".join(shown.format()).rstrip()
    for filename in files:
        text = text.replace(f'File "{filename}"', f'File "{shown_file(filename)}"')
    return text


def strip_library_frames(error: BaseException, title: str) -> BaseException:
    """Drop our frames above the user's from a traceback, or, in an error of our own, all."""
    tb = error.__traceback__
    while tb is not None and is_library_file(tb.tb_frame.f_code.co_filename):
        tb = tb.tb_next
    return error.with_traceback(tb) if tb is not None or str(error).startswith(title) else error


def add_note(error: BaseException, note: str) -> None:
    """Add a note, once; not where an exception of the user's takes none."""
    with contextlib.suppress(Exception):
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


def note_index(error: BaseException, number: int, batch: Any, last: int | None = None) -> None:
    """Add a note of the element of a batch that failed, or of the first and last of those that may have."""
    numbers = dict.fromkeys((number, number if last is None else last))
    found = [tuple(int(i) for i in np.unravel_index(k, batch.sizes)) for k in numbers]
    add_note(error, f"at {batch.of} " + " to ".join(str(k[0] if len(k) == 1 else k) for k in found))


class _Originals:
    """The last exceptions raised by bodies in compiled programs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: collections.OrderedDict[str, BaseException] = collections.OrderedDict()
        self._process = secrets.token_hex(3)  # one process's text never finds another's error
        self._numbers = itertools.count(1)

    def keep(self, error: BaseException) -> str:
        with self._lock:
            key = f"{self._process}-{next(self._numbers)}"
            self._errors[key] = error
            if len(self._errors) > KEPT:
                self._errors.popitem(last=False)
        return key

    def find(self, error: BaseException) -> BaseException | None:
        if not _is_jax_error(error):
            return None
        match = re.search(r"\[jaxpyop error ([0-9a-f]+-\d+)\]", str(error))
        return self._errors.get(match.group(1)) if match else None


def _is_jax_error(error: BaseException) -> bool:
    # An exception of the user's own may well quote JAX's text.
    raised = isinstance(error, jax.errors.JaxRuntimeError) or type(error) is ValueError  # that in warm calls
    return raised and re.match(r"[A-Z_]+: ", str(error)) is not None


_originals = _Originals()


def body_error(title: str, func: Callable[..., Any], inputs: Iterable[Any], error: BaseException) -> PythonBodyError:
    """The exception that carries `error` out of a compiled program."""
    number = _originals.keep(error)
    summary, shown = _summary(error), format_user_traceback(error)
    # An error of ours begins with the op, and says what matters: nothing is put before it, or said twice.
    said = str(error).splitlines()[0] if _is_ours(error, title) else f"{title} failed: {summary}"
    text = (
        f"{said} [jaxpyop error {number}]\n"
        f"  function: {where(func)}\n"
        f"  inputs: {show_types(inputs)}\n"
        f"  `with jaxpyop.reraise():` around the call raises the original exception\n"
        f"{'' if shown.strip() == summary else _indent(shown.replace(said, '...'))}"
    )
    return PythonBodyError(_printable(text)).with_traceback(_short_traceback(title, func))


def _is_ours(error: BaseException, title: str) -> bool:
    try:
        return str(error).startswith(f"{title}: ")
    except Exception:  # an exception of the user's that cannot be shown
        return False


def _printable(text: str) -> str:
    # XLA's text is UTF-8, and ends at a NUL.
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


_put_off: collections.OrderedDict[int, PythonBodyError] = collections.OrderedDict()
_put_off_numbers = itertools.count(secrets.randbelow(2**31))  # another process's number finds nothing here


def put_off(error: PythonBodyError) -> int:
    """Keep an error that is to be raised elsewhere; its number, never 0."""
    number = next(_put_off_numbers) % 2**32 or 1
    _put_off[number] = error
    while len(_put_off) > KEPT:
        _put_off.popitem(last=False)
    return number


def taken_up(number: int, title: str) -> PythonBodyError:
    """The error of a number; several devices may raise it at the same time."""
    error = _put_off.get(number)
    if error is None:
        elsewhere = "on another process, whose error says more" if jax.process_count() > 1 else "and is no longer kept"
        return PythonBodyError(f"{title} failed {elsewhere}").with_traceback(_short_traceback(title, _empty))
    return PythonBodyError(*error.args).with_traceback(error.__traceback__)


def _summary(error: BaseException) -> str:
    shown = traceback.TracebackException.from_exception(error, limit=0)
    last = [line.rstrip() for line in shown.format_exception_only()]
    return last[0].splitlines()[0] if last else type(error).__name__


def _indent(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())


def _short_traceback(title: str, func: Callable[..., Any]) -> types.TracebackType:
    # jaxlib renders an error by walking from the innermost frame of its
    # traceback outwards through the callers: hundreds of lines of notebook and
    # JAX internals. A suspended generator's frame has no callers, so with one
    # innermost the walk ends at once, in a line that names the user's function.
    code = getattr(plain_function(func), "__code__", None)
    filename, line = "<built-in>", 1
    if isinstance(code, types.CodeType):
        filename, line = shown_file(code.co_filename), code.co_firstlineno
    frame = _frame(title, filename, line - _LINES_BELOW)
    return types.TracebackType(None, frame, frame.f_lasti, frame.f_lineno)


def _frame(name: str, filename: str, line: int) -> types.FrameType:
    named = _empty.__code__.replace(co_name=name, co_qualname=name, co_filename=filename, co_firstlineno=line)
    return types.FunctionType(named, {})().gi_frame


def _empty() -> Iterator[None]:
    yield None


_LINES_BELOW = _frame("", "", 1).f_lineno - 1  # a generator not started is at its first line; on 3.13 below it


class _NotOurs(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        info = record.exc_info
        return not (isinstance(info, tuple) and isinstance(info[1], PythonBodyError))


# pure_callback and io_callback log every exception with its full traceback
# before they hand it on; ours says the same in its text.
_jaxcore.CALLBACK_LOGGER.addFilter(_NotOurs())


class reraise(contextlib.AbstractContextManager[None]):  # noqa: N801  # reads as the statement that it is
    """Raise a failing body's own exception instead of JAX's runtime error.

    A body that fails inside a compiled program surfaces as
    ``jax.errors.JaxRuntimeError`` (``ValueError`` on some warm calls) where
    the result is waited for: call ``block_until_ready()`` inside the block.
    There that error is replaced by the original exception object, with JAX's
    error as its ``__context__``. The last 64 originals are kept. Errors of
    anything else pass unchanged. ``with reraise():`` gives ``None``.

    TensorFlow raises ``tf.errors.InvalidArgumentError`` or ``UnknownError``
    from ``py_function``, and has no way back to the original.

    Raises:
        BaseException: the exception that the body raised.

    Example:
        >>> import jax, jax.numpy as jnp, jaxpyop
        >>> def body(x):
        ...     raise KeyError("missing")
        >>> f = jax.jit(lambda x: jaxpyop.numpy_function(body, [x], jnp.float32))
        >>> try:
        ...     with jaxpyop.reraise():
        ...         f(1.0).block_until_ready()
        ... except KeyError as error:
        ...     print("caught", error)
        caught 'missing'
    """

    # Not a generator: those turn a StopIteration that passes into a RuntimeError.
    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        original = None if error is None else _originals.find(error)
        while original is not None and (deeper := _originals.find(original)) is not None:
            original = deeper  # a compiled program inside the body failed
        if original is not None and error is not None:
            _jaxcore.forget_failed_programs()
            _keep_context(original, error)
            raise strip_library_frames(original, "")


def _keep_context(original: BaseException, error: BaseException) -> None:
    # Raising the original makes JAX's error its context. What the body was handling then goes behind that.
    earlier = original.__context__
    while earlier is not None and _is_jax_error(earlier):
        earlier = earlier.__context__
    if error.__context__ is None:
        error.__context__ = earlier
