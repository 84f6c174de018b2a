"""A body that reaches an object whose contents cannot be compared is refused in traced mode, and called in "auto"."""

from __future__ import annotations

import array
import contextvars
import ctypes
import datetime
import decimal
import hashlib
import io
import logging
import operator
import os
import pathlib
import queue
import re
import sys
import tempfile
import threading
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.traced.test_reads_outside import check_traced

F = jnp.float32
_count = [0]


def _counted(v):
    _count[0] += 1
    return v * _count[0]


_by_vectorize, _by_frompyfunc = np.vectorize(_counted), np.frompyfunc(_counted, 1, 1)
_masked, _records = np.ma.array([0.0]), np.rec.array([(0.0,)], dtype=[("a", "f8")])
_array, _view, _ctypes = array.array("d"), memoryview(bytearray(8)), ctypes.c_int(0)
_queue, _simple_queue, _text, _bytes = queue.Queue(), queue.SimpleQueue(), io.StringIO(), io.BytesIO()
_local, _event, _variable = threading.local(), threading.Event(), contextvars.ContextVar("_variable", default=0)
os.environ["A_NUMBER_OF_A_USER"] = "0"
_local.n = 0


def _masked_array(x):
    _masked[0] = _masked[0] + 1
    return x * float(_masked[0])


def _record_array(x):
    _records.a[0] = _records.a[0] + 1
    return x * float(_records.a[0])


def _compact_array(x):
    _array.append(1.0)
    return x * len(_array)


def _memory_view(x):
    _view[0] = _view[0] + 1
    return x * _view[0]


def _number_of_c(x):
    _ctypes.value += 1
    return x * _ctypes.value


def _put(x):
    _queue.put(1)
    return x * _queue.qsize()


def _put_simply(x):
    _simple_queue.put(1)
    return x * _simple_queue.qsize()


def _write(x):
    _text.write("a")
    return x * len(_text.getvalue())


def _print(x):
    print("a", file=_text)
    return x * len(_text.getvalue())


def _write_bytes(x):
    _bytes.write(b"a")
    return x * len(_bytes.getvalue())


def _set_variable(x):
    _variable.set(_variable.get() + 1)
    return x * _variable.get()


def _of_a_thread(x):
    _local.n += 1
    return x * _local.n


_path = pathlib.Path(tempfile.gettempdir(), f"a_number_of_a_user_{os.getpid()}")
_context = decimal.Context(prec=1)


def _file_at_a_path(x):
    _path.write_text(str(int(_path.read_text()) + 1 if _path.exists() else 1))
    return x * float(_path.read_text())


def _decimal_context(x):
    _context.prec += 1
    return x * _context.prec


def _environment(x):
    os.environ["A_NUMBER_OF_A_USER"] = str(int(os.environ["A_NUMBER_OF_A_USER"]) + 1)
    return x * float(os.environ["A_NUMBER_OF_A_USER"])


HIDDEN = {
    "np.vectorize": lambda x: x * float(_by_vectorize(1.0)),
    "np.frompyfunc": lambda x: x * float(_by_frompyfunc(1.0)),
    "a masked array": _masked_array,
    "an array of records": _record_array,
    "an array of the standard library": _compact_array,
    "a memoryview": _memory_view,
    "ctypes": _number_of_c,
    "a queue": _put,
    "a queue written in C": _put_simply,
    "a text in memory": _write,
    "a text that is printed to": _print,
    "bytes in memory": _write_bytes,
    "a context variable": _set_variable,
    "a thread's variable": _of_a_thread,
    "a file at a path": _file_at_a_path,
    "a context of decimals": _decimal_context,
    "the environment": _environment,
}


@pytest.mark.parametrize("body", HIDDEN.values(), ids=HIDDEN)
def test_it_is_refused(body):
    f = jax.jit(lambda x: jaxpyop.py_function(body, [x], F, mode="traced"))
    with pytest.raises(TypeError, match=r"test_hidden_contents.py:\d+: .* once, while JAX traces|.* changed"):
        f(1.0)


@pytest.mark.parametrize("body", HIDDEN.values(), ids=HIDDEN)
def test_auto_calls_it(body):
    f = jax.jit(lambda x: jaxpyop.py_function(body, [x], F, mode="auto", output_shapes=()))
    assert len({float(f(1.0)) for _ in range(3)}) == 3


def _in_a_branch(x):
    found = hashlib.sha256()
    if x > 0:
        found.update(b"a")
    return x * found.digest()[0]


def _in_a_loop(x):
    found = hashlib.sha256()
    while x > 1:
        x = x / 2
        found.update(b"a")
    return x * found.digest()[0]


def _in_an_operand(x):
    found = hashlib.sha256()
    y = (x > 0) and (found.update(b"a") or x)
    return x * found.digest()[0] + y


def _array_in_a_branch(x):
    found = array.array("i")
    if x > 0:
        found.append(1)
    return x * len(found)


def _masked_array_in_a_loop(x):
    found = np.ma.array([0.0, 1.0])
    while x > 1:
        x = x / 2
        found[0] = found[0] + 1
    return x * float(found.sum())


# Each with what the error says, or nothing if it is traced.
OWN = {
    _in_a_branch: "`HASH.update` is called only where a traced value decides so",
    _in_a_loop: "`found` is a _hashlib.HASH",
    _in_an_operand: "`HASH.update` is called only",
    _array_in_a_branch: "",
    _masked_array_in_a_loop: r"float\(x\) asks",
}


@pytest.mark.parametrize(("body", "refused"), OWN.items(), ids=lambda body: getattr(body, "__name__", ""))
def test_an_object_of_the_body_itself(body, refused):
    op = lambda mode: jax.jit(lambda x: jaxpyop.py_function(body, [x], F, mode=mode, output_shapes=()))
    for x in (-1.0, 5.0):
        np.testing.assert_allclose(op("auto")(x), body(F(x)))
        if refused:
            with pytest.raises(TypeError, match=rf"test_hidden_contents.py:\d+: .*{refused}"):
                op("traced")(x)
        else:
            np.testing.assert_allclose(op("traced")(x), body(F(x)))


_pattern, _decimal, _fraction, _parts = (
    re.compile("a+"),
    decimal.Decimal("0.5"),
    Fraction(1, 2),
    pathlib.PurePath("a/b"),
)
_data = np.arange(3.0)
_first, _logger, _day = operator.itemgetter(0), logging.getLogger("a.user"), datetime.date(2020, 1, 1)


def _logs(x):
    _logger.debug("a message")
    return x


def _prints(x):
    print("traced", file=sys.stderr)
    return x


SEEN = {
    "a pattern": lambda x: x * len(_pattern.match("aaab").group()),
    "a decimal": lambda x: x * float(_decimal),
    "a fraction": lambda x: x * float(_fraction),
    "a path": lambda x: x * len(_parts.parts),
    "a getter": lambda x: _first([x, 2 * x]),
    "a date": lambda x: x * _day.day,
    "a logger": _logs,
    "the error stream": _prints,
    "a ufunc": lambda x: x * float(np.hypot(3, 4)),
    "an array": lambda x: x * float(_data.sum()),
}


@pytest.mark.parametrize("body", SEEN.values(), ids=SEEN)
def test_what_does_not_change_is_traced(body):
    check_traced(body)
