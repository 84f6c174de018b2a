"""What a variable of the interpreted program may hold.

A `jax.Array` stands for itself. A number of Python whose value is traced is a `Num`. Everything that can change (a
list, a dict, an instance, the variables of a call) is an `Obj`. Tuples and namedtuples hold values. Functions of the
program are `Closure`s. Constants of Python (`3`, `"a"`, `None`, enums, dtypes, modules, objects from outside) stand
for themselves. A variable that holds an int on one path and an array on another is a `Union`.
"""

from __future__ import annotations

import ast
import contextvars
import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpyop import _dtypes
from jaxpyop import _jaxcore as core


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: " + str(error).partition("\n")[0]


class Refused(Exception):  # noqa: N818
    """The function is not in the language.

    Attributes:
        reason: what is not in it.
        remedy: what to write instead.
        expression: the innermost one that is refused, if it is one.
        where: the user's file and line, once they are known.
    """

    def __init__(self, reason: str, remedy: str = "", where: tuple[str, int] | None = None) -> None:
        super().__init__(reason)
        self.reason, self.remedy, self.expression, self.where = reason, remedy, "", where


class PyRaise(Refused):
    """The interpreted program raises `error` here, as plain Python would.

    On one side of a branch, the program notes it (see `Machine.check`). Anywhere else the function is refused.

    Attributes:
        error: the error.
        sure: whether Python raises it, too, and not JAX alone, which is asked for the value of a tracer.
        on_a_path: whether it passed a branch or a loop, so that it is not sure that the program comes there.
    """

    def __init__(self, error: Exception, sure: bool = True) -> None:
        who, remedy = ("Python", RAISING) if sure else ("JAX", "")
        super().__init__(f"{who} raises {first_line(error)}", remedy)
        self.error, self.sure, self.on_a_path, self.__cause__ = error, sure, False, error

    def can_be_noted(self) -> bool:
        """Whether the program may raise it at run time. What looks like a mistake is refused while JAX traces."""
        mistake = isinstance(self.error, (TypeError, AttributeError, NameError))
        return self.sure and not self.on_a_path and (isinstance(self.error, UnboundLocalError) or not mistake)


RAISING = 'return jnp.nan there, or write mode="eager" to call the body at run time instead'

# `Machine.check` of the interpretation that is going on, for the operations on numbers.
noting: contextvars.ContextVar[Callable[..., None]] = contextvars.ContextVar("noting")


def beyond_if(wrong: Any, text: str) -> None:
    """The program has no such number as Python has here if a bool holds, which may be traced, and raises an error."""
    noting.get()(wrong, OverflowError(text), of_python=False)


def raise_if(wrong: Any, error: type[Exception], text: str) -> None:
    """Python raises this error here if a bool holds, which may be traced."""
    noting.get()(wrong, error(text))


def copied(error: Exception) -> Exception:
    """The same error without its traceback, which holds frames. Its `__init__` may take other arguments than `args`."""
    new = type(error).__new__(type(error), *error.args)
    vars(new).update(vars(error))
    return new


# Values that no program has.
UNDEF: Any = object()  # a variable without a value, which must not be used
UNSEEN: Any = object()  # nobody looks at it on this path, so it takes the form that it has on the other one
UNKNOWN: Any = object()  # any value, where only the shapes of the results are asked for


class Kind:
    """A value of the language that is none of Python's. `forms.form_of` must know it, or it is refused in a branch."""

    __slots__ = ()


class Num(Kind):
    """A number of Python with a traced value.

    Attributes:
        kind: "b", "i" or "f".
        val: a scalar of bool, int64 or float64.
        lo: an integer that it is not below, if it is an integer.
        hi: an integer that it is not above, if it is an integer.
        flushed: a traced bool: whether it is no zero in Python even if it is one in the program, because XLA takes what
            is below 2.2e-308 for zero. None if that cannot be.
    """

    __slots__ = ("flushed", "hi", "kind", "lo", "val")

    def __init__(self, kind: str, val: Any, lo: Any = None, hi: Any = None, flushed: Any = None) -> None:
        self.kind, self.val, self.lo, self.hi, self.flushed = kind, val, lo, hi, flushed


class Union(Kind):
    """One of several values that no single value can stand for. `tag` is the traced index of the one that it is."""

    def __init__(self, tag: Any, alts: list[Any]) -> None:
        self.tag, self.alts = tag, alts


def may_be_undefined(v: Any) -> bool:
    """Whether a variable has no value, on some path."""
    return v is UNDEF or (isinstance(v, Union) and any(a is UNDEF for a in v.alts))


class Obj(Kind):
    """An object that was made by the program and can change. Only `Machine.write` changes the slots.

    Attributes:
        cls: list, dict, a class of the user, or "frame" for the variables of a call.
        slots: the attributes or variables. The items of a list or a dict are a tuple in the slot "items".
        birth: a number that grows from object to object, which tells what was there before a branch began.
    """

    __slots__ = ("birth", "cls", "slots")
    births = itertools.count(1)

    def __init__(self, cls: Any, slots: dict[str, Any]) -> None:
        self.cls, self.slots, self.birth = cls, slots, next(Obj.births)


class Pairs(tuple[Any, ...]):
    """The (key, value) pairs of a dict. Two dicts with different keys have no common form."""


@dataclasses.dataclass(eq=False)
class Closure(Kind):
    """A function that the program made, in the frame `env`. `outer` is the real function with its globals and cells."""

    node: ast.FunctionDef | ast.Lambda
    env: Any
    outer: Any
    defaults: tuple[Any, ...]
    kw_defaults: dict[str, Any]


@dataclasses.dataclass(eq=False)
class Method(Kind):
    """A method of a list, a dict, an array or a constant."""

    self: Any
    name: str


@dataclasses.dataclass(eq=False)
class Foreign:
    """A function that a function of JAX returned, such as the second result of `jax.vjp`."""

    func: Any


@dataclasses.dataclass(eq=False)
class Transformed(Kind):
    """`jax.grad(f)` and the like. JAX makes it anew for each call, because what `f` reads may have changed by then."""

    transform: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclasses.dataclass(eq=False)
class At(Kind):
    """`array.at`, or `array.at[index]`."""

    array: Any
    index: Any = None


@dataclasses.dataclass(eq=False)
class Partial(Kind):
    """A `functools.partial` that the program made, or a method of the user, which is one of its object."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class Iter(Kind):
    """An iterator over values. It is used up at once, and not kept.

    Attributes:
        values: the iterator.
        by_index: how many of its values there are, and a function of an index that gives one, if there is such a
            function.
    """

    values: Any
    by_index: tuple[int, Any] = (0, None)


@dataclasses.dataclass(eq=False)
class TracedRange(Kind):
    """A `range` with a traced bound."""

    start: Any
    stop: Any
    step: int


# An integer that begins within MOST_START, and that a loop changes by at most MOST_STEP in each turn, stays within FAR,
# because no loop takes 2**47 turns. FAR is a number that no other bound is likely to be, so that a counter is told from
# a number with a wide range. No integer that is computed is beyond MOST: the program raises where it would be.
FAR, MOST_START, MOST_STEP, MOST = 2**52 + 24_181, 2**51, 16, 2**62 - 1


def is_array(v: Any) -> bool:
    return isinstance(v, jax.Array)


def is_dict(v: Any) -> bool:
    return isinstance(v, Obj) and v.cls is dict


def is_scalar(v: Any) -> bool:
    return isinstance(v, Num) or type(v) in _KINDS


def kind_of(v: Any) -> str:
    return v.kind if isinstance(v, Num) else _KINDS[type(v)]


_KINDS: dict[type, str] = {bool: "b", int: "i", float: "f"}
DTYPES = {"b": np.dtype(bool), "i": np.dtype(np.int64), "f": np.dtype(np.float64)}


def wide(f: Callable[..., Any], *xs: Any) -> Any:
    """Does an operation with 64 bits, whatever `jax_enable_x64` says, because Python's numbers have them."""
    with jax.enable_x64(True):
        return f(*xs)


def raw(v: Any, kind: str = "") -> Any:
    """The 64-bit scalar of a number, perhaps as a number of another kind."""
    dtype = DTYPES[kind or kind_of(v)]
    with jax.enable_x64(True):
        if not isinstance(v, Num):
            if isinstance(v, int) and not -(2**63) <= v < 2**63:
                raise Refused(f"the integer {v} has more than 64 bits")
            return jnp.asarray(dtype.type(v))
        val = v.val
        if v.val.dtype != dtype:
            # We hide it from XLA, which makes a choice of x and 0 of a bool times x, and 0 of k * 0: NaN would be lost.
            val = lax.optimization_barrier(lax.convert_element_type(v.val, dtype))
        return _float_p.bind(val) if dtype == np.float64 else val


def _refuse_float(ctx: Any, x: Any) -> Any:
    raise NotImplementedError(
        "a function with mode='traced' computes with Python floats, which have 64 bits; TPUs compute with fewer, and "
        "the results would differ: make it an array of the program's dtype, such as jnp.float32(x), or write "
        "mode='eager'"
    )


# A float of Python where an operation reads it. It is the value itself, and refuses to be compiled for a TPU.
_float_p = core.Primitive("python_float")
_float_p.def_impl(lambda x: x)
_float_p.def_abstract_eval(lambda aval: aval)
core.ad.primitive_jvps[_float_p] = lambda primals, tangents: (_float_p.bind(*primals), tangents[0])
core.batching.primitive_batchers[_float_p] = lambda args, dims: (_float_p.bind(*args), dims[0])
core.mlir.register_lowering(_float_p, lambda ctx, x: [x])
core.mlir.register_lowering(_float_p, _refuse_float, platform="tpu")


def bounds(v: Any) -> tuple[Any, Any]:
    """The lowest and the highest that a number can be."""
    if not isinstance(v, Num):
        return (v, v) if v == v else (-math.inf, math.inf)
    return {"b": (0, 1), "i": (v.lo, v.hi), "f": (-math.inf, math.inf)}[v.kind]


def num_to_array(v: Any, like: Any = None) -> Any:
    """What JAX makes of a Python number that meets the array `like`: a weakly typed scalar of the default width."""
    if not isinstance(v, Num):
        return v
    if v.kind == "b":
        return v.val
    x64 = _dtypes.x64_enabled()
    dtype: Any = np.dtype(("int" if v.kind == "i" else "float") + ("64" if x64 else "32"))
    beside: Any = None if like is None else like.dtype
    is_float = beside is not None and jnp.issubdtype(beside, jnp.floating)
    if v.kind == "i" and not (is_float and is_counter(v)):
        raise_unless_fits(v, dtype)
    if is_float:
        dtype = beside  # in one step, because float64 by way of float32 to float16 would be rounded twice
    with jax.enable_x64(True):
        val = lax.optimization_barrier(v.val) if is_float and v.kind == "i" else v.val
        return core.converted(val, dtype, weak=True)


def num_as_dtype(v: Num, dtype: Any) -> Any:
    """A Python number as an array of this dtype."""
    if v.kind == "i" and jnp.issubdtype(dtype, jnp.integer):
        raise_unless_fits(v, dtype)
    return wide(lambda: lax.convert_element_type(v.val, dtype))


def is_counter(v: Any) -> bool:
    """Whether nothing is known of an integer but that a loop counts it. It meets a float array without loss.

    JAX would raise from 2**31 on, which a counter of small steps does not reach while somebody waits.
    """
    return FAR <= max(map(abs, bounds(v))) <= FAR + 2**16


def fits_dtype(v: Any, dtype: Any) -> bool:
    """Whether an integer is known to fit an integer dtype."""
    info, (lo, hi) = np.iinfo(dtype), bounds(v)
    return int(info.min) <= lo and hi <= int(info.max)


def raise_unless_fits(v: Num, dtype: Any) -> None:
    if not fits_dtype(v, dtype):
        info, text = np.iinfo(dtype), f"Python integer out of bounds for {np.dtype(dtype).name}"
        least, most = max(int(info.min), -MOST), min(int(info.max), MOST)
        raise_if(wide(lambda: (v.val < least) | (v.val > most)), OverflowError, text)
