"""How the error of a body leaves a compiled program, and how `reraise` finds it again.

XLA carries an error across as text. So the text says everything: the op, the function, its inputs, and the user's own
frames. It also carries a number, by which `reraise` finds the exception object again.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import re
import secrets
import textwrap
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host.show import plain_function, show_types, shown_file, where
from jaxpyop._refusal import is_refusal

KEPT = 64  # A device runs 32 programs at once, so that as many can fail before the first error is asked for.


class PythonBodyError(RuntimeError):
    """The error that a compiled program raises when a body failed.

    Attributes:
        number: the number by which it and what the body raised are found. It fits into 32 bits and is not 0.
    """

    number = 0

    def again(self) -> PythonBodyError:
        """The same error for another device to raise, which holds none of the frames that this one went through."""
        return PythonBodyError(*self.args).with_traceback(_jaxcore.steps_of(self)[-1])


# ---------------------------------------------------------------- tracebacks and notes


def _drop_library_frames(shown: traceback.TracebackException) -> set[str]:
    kept = [frame for frame in shown.stack if not _jaxcore.is_library_file(frame.filename)]
    shown.stack = traceback.StackSummary.from_list(kept)
    files = {frame.filename for frame in kept}
    for link in (shown.__cause__, shown.__context__):
        if link is not None:
            files |= _drop_library_frames(link)
    return files


def format_user_traceback(error: BaseException) -> str:
    """The traceback of an error and of its causes, without the frames of libraries."""
    shown = traceback.TracebackException.from_exception(error)
    files = _drop_library_frames(shown)
    text = "".join(shown.format()).rstrip()
    for filename in files:
        text = text.replace(f'File "{filename}"', f'File "{shown_file(filename)}"')
    return text


def strip_library_frames(error: BaseException, title: str) -> BaseException:
    """Drop the library's frames above the user's from a traceback.

    An error without a user's frame keeps its traceback, unless its text begins with `title`: then it is ours, and its
    own frames would say nothing.
    """
    tb = _jaxcore.without_outer_library_frames(error)
    return error.with_traceback(tb) if tb is not None or str(error).startswith(title) else error


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, once. Some exceptions of users take no notes."""
    with contextlib.suppress(Exception):
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


_CALLED_WITH = " was called with\n"
# The attribute of an exception that holds its last index note of each op.
_INDEX_NOTES = "_jaxpyop_index_notes"


def note_arguments(error: BaseException, what: str, groups: Mapping[str, str]) -> None:
    """Note what a function or a rule was called with.

    Args:
        error: what it raised.
        what: the op's title, or that with the name of a rule.
        groups: the name of each group of arguments, and its text.
    """
    first = what + _CALLED_WITH
    with contextlib.suppress(Exception):
        # A function may raise one exception object again and again.
        notes = getattr(error, "__notes__", [])
        notes[:] = [note for note in notes if not note.startswith(first)]
    add_note(error, first + "\n".join(f"  {name}: {shown}" for name, shown in groups.items()))


def _arguments_note(error: BaseException, title: str) -> str:
    """The note of `note_arguments` that belongs to an op; empty if there is none."""
    with contextlib.suppress(Exception):
        for note in getattr(error, "__notes__", ()):
            if note.startswith(title) and _CALLED_WITH in note:
                return note
    return ""


def failure_text(error: BaseException, title: str) -> str:
    """What a function raised, where, and what it was called with, for a warning."""
    raised = _summary(error)
    users = [step for step in _jaxcore.steps_of(error) if _jaxcore.is_users_file(step.tb_frame.f_code.co_filename)]
    if users:
        # The program may run on a thread on which no line of the user's is under way.
        raised += f" ({shown_file(users[-1].tb_frame.f_code.co_filename)}:{users[-1].tb_lineno})"
    arguments = _arguments_note(error, title).partition(_CALLED_WITH)[2]
    return f"{raised}\n{arguments}" if arguments else raised


def is_own_failure(error: Exception) -> bool:
    """Tell whether a function's own exception was raised, and not a refusal of ours, or an interrupt in a program."""
    found = _original(error)
    return isinstance(found, Exception) and not is_refusal(found)


def _text_of(error: BaseException) -> str:
    with contextlib.suppress(Exception):
        return str(error)
    # Some exceptions of users cannot be shown.
    return ""


def note_index(error: BaseException, numbers: int | range, batch: Any, title: str = "") -> None:
    """Note which element of a batch failed, or the elements of a range that failed.

    Args:
        error: what was raised.
        numbers: the number of the element, or those of several.
        batch: the batch.
        title: the op's name. An older note of the same op is dropped. Without a name, it is one of a worker's.
    """
    numbers = range(numbers, numbers + 1) if isinstance(numbers, int) else numbers
    ends = dict.fromkeys((numbers[0], numbers[-1]))
    found = [tuple(int(i) for i in np.unravel_index(k, batch.sizes)) for k in ends]
    note = f"at {batch.index_name} " + " to ".join(str(k[0] if len(k) == 1 else k) for k in found)
    # Each worker of a list has every so manyth element.
    note += f" in steps of {numbers.step}" if len(numbers) > 2 and numbers.step > 1 else ""
    with contextlib.suppress(Exception):
        # A function may raise one exception object again and again. A plain dict can be pickled with it.
        older = vars(error).setdefault(_INDEX_NOTES, {})
        notes = getattr(error, "__notes__", [])
        notes[:] = [known for known in notes if known != older.get(title)]
        older[title] = note
    add_note(error, note)
    with contextlib.suppress(Exception):
        # The note of the arguments is the longest one, and comes last.
        error.__notes__.sort(key=lambda note: _CALLED_WITH in note)


# --------------------------------------------------------------- errors found by number

# The last failures by number: what a body raised, and the error that carries it out of the program. `reraise` finds the
# first by the number in the text of JAX's error, and a program over several devices raises the second on each of them.
# Another process must not find anything by these numbers, so they begin anywhere, and the text also names the process.
_LAST: collections.OrderedDict[int, tuple[BaseException, PythonBodyError]] = collections.OrderedDict()
_NUMBERS = itertools.count(secrets.randbelow(2**31))
_PROCESS = secrets.token_hex(3)
_LOCK = threading.Lock()


def forget_locals(error: BaseException) -> None:
    """Replace the tracebacks of an error, and of all that are chained to it, by copies that hold no variables."""
    errors, seen = [error], set[int]()
    while errors:
        error = errors.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        # An exception may be a frozen dataclass, which refuses an assignment.
        BaseException.with_traceback(error, _jaxcore.traceback_without_locals(error))
        if isinstance(error, BaseExceptionGroup):
            errors.extend(error.exceptions)
        errors.extend(linked for linked in (error.__cause__, error.__context__) if linked is not None)


def deferred_error(number: int, title: str) -> PythonBodyError:
    """A copy of the error with this `PythonBodyError.number`."""
    if number in _LAST:
        return _LAST[number][1].again()
    elsewhere = "on another process, whose error says more" if jax.process_count() > 1 else "and is no longer kept"
    return PythonBodyError(f"{title} failed {elsewhere}").with_traceback(_one_line(title, None))


def _original(error: BaseException) -> BaseException:
    """What a body raised, if this is the error of JAX's that tells of it; otherwise the error itself."""
    match = re.search(rf"\[jaxpyop error {_PROCESS}-(\d+)\]", str(error)) if _is_jax_error(error) else None
    if match is None or (number := int(match.group(1))) not in _LAST:
        return error
    # If a compiled program inside the body failed, the original is again an error of JAX's.
    return _original(_LAST[number][0])


def _is_jax_error(error: BaseException) -> bool:
    # JAX raises a plain ValueError on some warm calls. An exception of the user's own may well quote JAX's text.
    raised = isinstance(error, jax.errors.JaxRuntimeError) or type(error) is ValueError
    return raised and re.match(r"[A-Z_]+: ", str(error)) is not None


# ----------------------------------------------------------------------- the error's text


def body_error(
    title: str, func: Callable[..., Any], groups: Mapping[str, Sequence[Any]], error: BaseException
) -> PythonBodyError:
    """The exception that carries `error` out of a compiled program.

    Args:
        title: the op's name.
        func: the function or rule that was called.
        groups: shapes and dtypes of its inputs, by the name of each group. They are shown if the call has left no note.
        error: what it raised.
    """
    number = next(_NUMBERS) % 2**32 or 1
    summary, shown = _summary(error), format_user_traceback(error)
    # An error of ours begins with the op and says what to write. Its original says no more, so `reraise` is not named.
    ours = _text_of(error).startswith(f"{title}: ")
    said = str(error).splitlines()[0] if ours else f"{title} failed: {summary}"
    note = _arguments_note(error, title)
    arguments = note.partition(_CALLED_WITH)[2]
    if note:
        shown = shown.replace(f"\n{note}", "")
    else:
        arguments = "\n".join(f"  {name}: {show_types(values)}" for name, values in groups.items())
    hint = "" if ours else "  `with jaxpyop.reraise():` around the call raises the original exception\n"
    text = (
        f"{said} [jaxpyop error {_PROCESS}-{number}]\n"
        f"  function: {where(func)}\n"
        f"{arguments}\n"
        f"{hint}"
        f"{'' if shown.strip() == summary else textwrap.indent(shown.replace(said, '...'), '  ', lambda line: True)}"
    )
    # `pure_callback` and `io_callback` log every exception with its whole traceback, and then raise it all the same.
    _jaxcore.keep_out_of_log(PythonBodyError)
    carrier = PythonBodyError(_printable(text)).with_traceback(_one_line(title, func))
    carrier.number = number
    with _LOCK:
        # Only the newest error keeps the variables of its frames, which may be large: a debugger can show them.
        if _LAST:
            forget_locals(next(reversed(_LAST.values()))[0])
        _LAST[number] = error, carrier.again()
        if len(_LAST) > KEPT:
            _LAST.popitem(last=False)
    return carrier


def _printable(text: str) -> str:
    # XLA's text is UTF-8, and ends at a NUL.
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def _summary(error: BaseException) -> str:
    shown = traceback.TracebackException.from_exception(error, limit=0)
    last = [line.rstrip() for line in shown.format_exception_only()]
    return last[0].splitlines()[0] if last else type(error).__name__


def _one_line(title: str, func: Callable[..., Any] | None) -> types.TracebackType:
    """A traceback with one line, which names the user's function."""
    code = getattr(plain_function(func), "__code__", None) if func else None
    if isinstance(code, types.CodeType):
        return _jaxcore.traceback_of_one_line(title, shown_file(code.co_filename), code.co_firstlineno)
    return _jaxcore.traceback_of_one_line(title, "<built-in>", 1)


class reraise(contextlib.AbstractContextManager[None]):  # noqa: N801  # reads as the statement that it is
    """Raise the function's own exception instead of JAX's runtime error.

    If a function fails inside a compiled program, JAX raises
    ``jax.errors.JaxRuntimeError``, or sometimes, after the first call,
    ``ValueError``. It does so where the result is first used, so call
    ``block_until_ready()`` inside the block. The block then raises the
    original exception object, with JAX's error as its ``__context__``. The
    last 64 originals are kept. Other errors pass unchanged.

    TensorFlow raises ``tf.errors.InvalidArgumentError`` or ``UnknownError``
    from ``py_function``, and keeps no reference to the original.

    Raises:
        BaseException: the exception that the function raised.

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

    # A generator with `contextmanager` would turn a StopIteration that passes into a RuntimeError.
    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if error is not None and (original := original_of(error)) is not error:
            raise strip_library_frames(original, "")


def original_of(error: BaseException) -> BaseException:
    """What a body raised, to be raised in place of the error of JAX's that tells of it; any other error itself."""
    original = _original(error)
    if original is not error:
        _jaxcore.forget_failed_programs()
    return original
