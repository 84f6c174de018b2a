"""Operators, comparisons and truth, for each kind of value."""

from __future__ import annotations

import ast
import contextlib
import enum
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpyop import _dtypes
from jaxpyop import _jaxcore as core
from jaxpyop._traced.machine import Machine
from jaxpyop._traced.values import *

_UNARY: dict[type, Callable[..., Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}

OUTSIDE = (
    "pass in what it gives as an input, write it with jax.numpy or jax.lax, or "
    'write mode="eager" to call the body at run time instead'
)
RECURSION = "a function calls itself, or too many tests lie in each other, and when this ends depends on values"


class Operators(Machine):
    """The operators. What they need of later parts of the language is declared here."""

    call: Callable[..., Any]
    items: Callable[..., tuple[Any, ...]]
    opened: Callable[[Any], Obj]
    outside: Callable[[Any], Any]
    iterate: Callable[..., tuple[Any, ...]]
    length: Callable[..., Any]
    array_index: Callable[[Any], Any]

    def python(self, f: Callable[..., Any], /, *vs: Any, **kw: Any) -> Any:
        """An allowed function of Python or JAX on constants and arrays."""
        leaves = jax.tree.leaves((vs, kw))
        traced = any(isinstance(x, core.Tracer) or (callable(x) and not isinstance(x, type)) for x in leaves)
        known = not traced and any(map(is_array, leaves))
        try:
            # Arrays that depend on no argument have values, as in plain Python, so that loops on them end.
            with np.errstate(all="ignore"), jax.ensure_compile_time_eval() if known else contextlib.nullcontext():
                return f(*vs, **kw)
        except (Refused, RecursionError):
            raise
        except Exception as e:
            raise PyRaise(e, sure=not traced) from e

    # ------------------------------------------------------------ two values to one

    def binary(self, op: type, a: Any, b: Any) -> Any:
        return self.lifted(lambda x, y: self._binary(op, x, y), a, b)

    def _binary(self, op: type, a: Any, b: Any) -> Any:
        if type(a) is list or type(b) is list:
            a, b = (self.opened(v) if type(v) is list else v for v in (a, b))
        if isinstance(a, Obj) or isinstance(b, Obj):
            return self._objects(op, a, b)
        if is_array(a) or is_array(b):
            return self._arrays(op, a, b)
        if isinstance(a, Num) or isinstance(b, Num):
            if is_scalar(a) and is_scalar(b):
                return num_binary(op, a, b)
            raise Refused(f"{op.__name__} of a {name_of_type(a)} and a {name_of_type(b)}")
        if isinstance(a, tuple) and isinstance(b, tuple) and op is ast.Add:
            return tuple(a) + tuple(b)
        if isinstance(a, tuple) and type(b) is int and op is ast.Mult:
            return tuple(a) * b
        self.need_constant(a, b)
        return self.python(PYTHON_OPS[op], a, b)

    def _objects(self, op: type, a: Any, b: Any) -> Any:
        if isinstance(a, Obj) and a.cls is list and op is ast.Add and isinstance(b, Obj) and b.cls is list:
            return Obj(list, {"items": self.items(a) + self.items(b)})
        if isinstance(a, Obj) and a.cls is list and op is ast.Mult and type(b) is int:
            return Obj(list, {"items": self.items(a) * b})
        raise Refused(f"{op.__name__} of a {name_of_type(a)} and a {name_of_type(b)}", "call a method by its name")

    def _arrays(self, op: type, a: Any, b: Any) -> Any:
        x, y = self.beside(a, b)
        if op is ast.Pow:
            self.check_power(a, b)
            # An integer stays one: the derivative of x ** 0.0 is NaN at zero.
            y = self.array_index(b) if isinstance(b, Num) and b.kind == "i" else y
        if op in (ast.Add, ast.Sub):
            x, y = _kept_zero(x, y), _kept_zero(y, x)
        out = self.python(PYTHON_OPS[op], x, y)
        is_real = isinstance(out, core.Tracer) and jnp.issubdtype(out.dtype, jnp.floating)
        return without_negative_zeros(out) if is_real and gives_no_negative_zero(op, a, b) else out

    def check_power(self, a: Any, b: Any) -> None:
        """JAX knows the exponent in a direct call: it raises if that is negative, and takes all of its bits."""
        is_scalar_array = isinstance(b, core.Tracer) and b.ndim == 0 and b.dtype != np.bool_
        is_exponent = isinstance(b, Num) or (is_scalar_array and "JAX calls" not in self.unable)
        types_ = (getattr(v, "dtype", None) or type_of(v) for v in (a, b))
        if is_exponent and not any(jnp.issubdtype(t, np.inexact) for t in types_):
            if getattr(a, "dtype", None) == np.bool_:
                raise Refused("a power of bools, which has another dtype in a direct call", "make them integers")
            lo, hi = bounds(b) if isinstance(b, Num) else (-1, 64)
            power = raw(b, "i") if isinstance(b, Num) else b
            if lo < 0:
                raise_if(wide(lambda: power < 0), TypeError, "Integers cannot be raised to negative powers")
            if hi > 63:
                beyond_if(wide(lambda: power > 63), "an integer to a power beyond 63, of which a program takes 6 bits")

    def beside(self, *vs: Any) -> list[Any]:
        """Two values, of which one is an array, as JAX takes them beside each other."""
        for v in vs:
            if not (is_array(v) or is_scalar(v) or isinstance(v, (complex, np.ndarray, np.generic))):
                raise Refused(f"an array meets a {name_of_type(v)}", "give the variable a number from the start")
        return [num_to_array(v, other if is_array(other) else None) for v, other in zip(vs, vs[::-1])]

    def need_constant(self, *vs: Any) -> None:
        """Refuses what is not known while JAX traces, or may do anything when Python operates on it."""
        for v in vs:
            if isinstance(v, tuple) or type(v) in (set, frozenset):
                self.need_constant(*v)
            elif not is_constant(v) and type(v) is not np.ndarray:
                raise Refused(f"an operation on a {name_of_type(v)} that needs its value")

    def unary(self, op: type, v: Any) -> Any:
        if op is ast.Not:
            return self.not_(v)
        return self.lifted(lambda a: self._unary(op, a), v)

    def _unary(self, op: type, v: Any) -> Any:
        if isinstance(v, Num):
            return num_unary(op, v)
        if not is_array(v):
            self.need_constant(v)
        return self.python(_UNARY[op], v)

    # ----------------------------------------------------------------------- truth

    def not_(self, v: Any) -> Any:
        t = self.truth(v)
        return (not t) if isinstance(t, bool) else Num("b", lax.bitwise_not(t))

    def truth(self, v: Any) -> Any:
        """`bool(v)`: a bool, or a traced one."""
        out = self.lifted(self._truth, v)
        return out.val if isinstance(out, Num) else out

    def any_of(self, values: Iterator[Any], end: bool) -> Any:
        """`any`, if `end` is True, or `all`: no further value is asked for after one whose truth is `end`."""
        result, has_more = not end, True

        def ask() -> Any:
            nonlocal has_more
            has_more = (v := next(values, UNDEF)) is not UNDEF
            return self.truth_value(v) if has_more else not end

        while has_more and result is not end:
            result = self.branch(self.truth(result), *((lambda: end, ask) if end else (ask, lambda: end)))
        return result

    def truth_value(self, v: Any) -> Any:
        """`bool(v)`, as a value of the program."""
        t = self.truth(v)
        return t if isinstance(t, bool) else Num("b", t)

    def _truth(self, v: Any) -> Any:
        if isinstance(v, Num):
            return v if v.kind == "b" else True if nonzero(v) else num_compare(operator.ne, v, 0)
        if is_array(v):
            if v.size != 1:
                raise PyRaise(ValueError("the truth value of an array of several elements; use jnp.any or jnp.all"))
            if not isinstance(v, core.Tracer):
                return bool(v)
            return Num("b", (v if v.dtype == np.bool_ else v != 0).reshape(()))
        if isinstance(v, Obj):
            if v.cls in (list, dict):
                return self.compare(ast.Gt, self.length(v), 0)
            raise Refused("the truth of an object", "compare it with None, or an attribute of it")
        if isinstance(v, (tuple, list, dict, range)):
            return len(v) > 0
        if isinstance(v, (Closure, Method, Partial, Transformed, Foreign, types.FunctionType, type)):
            return True
        self.need_constant(v)
        return self.python(bool, v)

    # ----------------------------------------------------------------- comparisons

    def compare(self, op: type, a: Any, b: Any) -> Any:
        if op in (ast.Is, ast.IsNot, ast.In, ast.NotIn):
            out = self.lifted(self._same if op in (ast.Is, ast.IsNot) else self._contains, a, b)
            return out if op in (ast.Is, ast.In) else self.not_(out)
        return self.lifted(lambda x, y: self._compare_values(op, x, y), a, b)

    def _same(self, x: Any, y: Any) -> Any:
        if isinstance(x, Num) or isinstance(y, Num):
            if is_scalar(x) and is_scalar(y):
                raise Refused("`is` of numbers", "write ==")
            return False
        one_type = type(x) is type(y) or (is_array(x) and is_array(y))
        # Numbers and texts that are equal are one value here, whether they are one object or two. Whether a function of
        # JAX returns the array that it is given is not the same here as in a direct call.
        is_known = x is y and not (isinstance(x, (int, float, complex, str, bytes, tuple, np.generic)) or is_array(x))
        if one_type and not (is_known or isinstance(x, (Obj, enum.Enum, bool, type(None)))):
            raise Refused(f"`is` of two values of the type {name_of_type(x)}", "write ==")
        return x is y

    def _compare_values(self, op: type, a: Any, b: Any) -> Any:
        if any(isinstance(v, Obj) and v.cls not in (list, dict) for v in (a, b)):
            raise Refused("a comparison of objects", "compare their attributes")
        if any(isinstance(v, enum.Enum) and isinstance(v, (int, str, float, enum.Flag)) for v in (a, b)):
            raise Refused("a comparison of an enum that is a number or a text, too", "compare its value, or write `is`")
        if is_array(a) or is_array(b):
            x, y = self.beside(a, b)
            return self.python(COMPARE[op], _kept_zero(x, y), _kept_zero(y, x))
        if (isinstance(a, Num) or isinstance(b, Num)) and is_scalar(a) and is_scalar(b):
            return num_compare(COMPARE[op], a, b)
        if not (isinstance(a, (type, np.dtype)) and isinstance(b, (type, np.dtype))):
            self.need_constant(a, b)
        return self.python(COMPARE[op], a, b)

    def _contains(self, x: Any, box: Any) -> Any:
        if isinstance(box, str):
            self.need_constant(x)
            return self.python(operator.contains, box, x)
        if issubclass(type(box), type) and type(x) is not box:
            what = f"`in` of a {name_of_type(x)} and an enum, which newer Pythons look up by its value"
            raise Refused(what, "compare it with the value of each member")
        is_hashed = is_dict(box) or type(box) in (dict, set, frozenset)
        if is_hashed and is_array(x):
            raise PyRaise(TypeError("unhashable type: 'jax.Array'"))
        items = tuple(map(self.outside, box)) if type(box) in (set, frozenset) else self.iterate(box)
        if is_hashed and not isinstance(x, Num):
            return self.place_of_key(x, items) is not None
        return self.any_of((self.same_item(item, x) for item in items), True)

    def place_of_key(self, key: Any, keys: Any) -> int | None:
        """Where a dict or a set has a key, or None. Python compares hashes, too: a dtype is no key for its name."""
        self.need_constant(key, *keys)
        return self.python(lambda: {k: i for i, k in enumerate(keys)}.get(key))

    def same_item(self, a: Any, b: Any) -> Any:
        """Whether Python takes two items for the same. It first asks whether they are one object, which a NaN is, too.

        Raises:
            Refused: whether they are one object decides, and is not known: of what may be NaN, and was in a branch or a
                loop, and of an array, which a function of JAX may return as it is here, and not in a direct call.
        """
        if a is b and not is_array(a):
            return True
        if (a is b and a.size != 1) or (may_be_nan(a) and may_be_nan(b)):
            raise Refused("Python asks whether two values are one object, which is not known", "compare them by ==")
        return self.truth(self.compare(ast.Eq, a, b))


def _kept_zero(v: Any, other: Any) -> Any:
    """Hides a zero beside an array. XLA thinks that x + 0.0 is x, which it is not for -0.0, and abs(x) >= 0 for NaN."""
    if not isinstance(other, core.Tracer):
        return v
    if is_array(v) and not isinstance(v, core.Tracer) and _dtypes.is_inexact(v):
        return lax.optimization_barrier(v)
    if isinstance(v, np.number) and v == 0:
        return lax.optimization_barrier(jnp.asarray(v))
    if type(v) in (int, float) and v == 0 and not other.weak_type and jnp.issubdtype(other.dtype, jnp.floating):
        return lax.optimization_barrier(jnp.full((), v, other.dtype))
    return v


def type_of(v: Any) -> type:
    """The class that a value has in Python."""
    if isinstance(v, Num):
        return {"b": bool, "i": int, "f": float}[v.kind]
    return v.cls if isinstance(v, Obj) else jax.Array if is_array(v) else type(v)


def name_of_type(v: Any) -> str:
    if is_array(v):
        return f"jax.Array ({v.dtype}{list(v.shape)})"
    if isinstance(v, Union):
        return "value of one of several kinds, which depends on values"
    return type_of(v).__name__ + (" that is not known" if isinstance(v, Num) else "")


def name_of_function(f: Any) -> str:
    if not isinstance(f, (type, types.FunctionType, types.BuiltinFunctionType)) and module_of(type(f)) not in LIBRARIES:
        return type(f).__name__
    module, name = (str(getattr(f, key, "")) for key in ("__module__", "__qualname__"))
    short = {"numpy": "np", "jax.numpy": "jnp", "builtins": "", "None": ""}.get(module, module)
    return f"{short}.{name or type(f).__name__}".lstrip(".")
