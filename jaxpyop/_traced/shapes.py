"""The shapes of what a function returns, which is not run: the interpreter, where values do not matter.

A program must have the values of Python, so the interpreter refuses what it does not know. For a shape it is enough
that all paths give the same one, because each call compares it with that of its result. So here one value stands for
all of its type, nothing is computed, and what would be refused is `UNKNOWN`, which stands for any value at all. What is
done to it is unknown, too. The search ends where a result is unknown, or where an operation is refused that might have
changed a list or an object of the program.

JAX finds the types of what its own functions give, NumPy's, and those of libraries that are made for JAX. Generators of
random numbers are copied before they are asked. Nothing else from outside is called.
"""

from __future__ import annotations

import ast
import copy
import functools
import math
import operator
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from jaxpyop import _dtypes
from jaxpyop import _jaxcore as core
from jaxpyop._traced.allowed import OF_JAX
from jaxpyop._traced.interpreter import Either, Interpreter, interpret
from jaxpyop._traced.libraries import (
    broadcast_of,
    call_with_arrays,
    counterpart_of,
    is_made_for_jax,
    is_without_jax,
    owner_of,
)
from jaxpyop._traced.values import *

# How deep calls are looked at.
_MOST_CALLS = 20
# The length of an axis that depends on values.
LENGTH: Any = export.symbolic_shape("n")[0]
_GENERATORS = np.random.Generator, np.random.RandomState, random.Random
# What has one result type for each of the types of the arguments.
_PURE = OF_JAX.keys() | set(map(id, (*PYTHON_OPS.values(), *COMPARE.values(), operator.neg, operator.getitem)))
# What some functions give, whatever they are given.
_GIVES = {id(f): kind for kind, fs in (("f", (float, math.fsum, math.prod)), ("i", (int, len))) for f in fs}
_OF_MATH = {"floor": "i", "ceil": "i", "trunc": "i", "isnan": "b", "isinf": "b", "isfinite": "b"}

# A value of this type that nobody computes.
_unknown_p = core.Primitive("unknown")
_unknown_p.def_abstract_eval(lambda *, shape, dtype: core.ShapedArray(shape, dtype))


class _Outside(Foreign):
    """A callable from outside that is not in the language."""


class Shapes(Interpreter):
    """The interpreter, where nobody asks for more than the shapes of the results."""

    only_shapes = True
    joining = JoiningTypes

    def __init__(self) -> None:
        super().__init__(None, "")
        self.known: dict[Any, Any] = {}

    def of_type(self, shape: Any, dtype: Any) -> Any:
        """The array that stands for all of a type."""
        key = core.current_trace(), tuple(shape), dtype
        if key not in self.known:
            own = jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True)
            self.known[key] = _unknown_p.bind(shape=key[1], dtype=own)
        return self.known[key]

    def unknown(self, structs: Sequence[Any]) -> list[Any]:
        return [self.of_type(s.shape, s.dtype) for s in structs]

    def number(self, kind: str, lo: Any = -MOST, hi: Any = MOST) -> Num:
        return Num(kind, self.of_type((), DTYPES[kind]), lo, hi)

    def like(self, v: Any) -> Any:
        """What stands for a value of Python or NumPy, if it is of a type that has one."""
        if is_scalar(v):
            return self.number(kind_of(v))
        if isinstance(v, tuple):
            return tuple(map(self.like, v))
        has_type = is_array(v) or isinstance(v, (np.ndarray, np.generic))
        return self.of_type(v.shape, v.dtype) if has_type else UNKNOWN

    def one_of(self, values: Sequence[Any]) -> Any:
        """Any of some values."""
        coin = self.of_type((), DTYPES["b"])
        return functools.reduce(lambda a, b: self.branch(coin, lambda: a, lambda: b), values)

    # ------------------------------------------------------- what is refused is unknown

    def unless_refused(self, run: Callable[[], Any], *given: Any) -> Any:
        """What an operation gives, or any value if it is refused and cannot have changed what it was given."""
        try:
            return run()
        except Refused as error:
            _check_begun(error)
            if any_part(lambda v: isinstance(v, Obj) and v.cls != "frame", given):
                error.where = self.line
                raise
            return UNKNOWN

    def eval(self, e: ast.expr, env: Obj) -> Any:
        return self.unless_refused(lambda: super(Shapes, self).eval(e, env))

    def get_attr(self, v: Any, name: str) -> Any:
        owner = v.func if isinstance(v, _Outside) else v
        if type(owner) in (*_GENERATORS, np.ufunc) or (owner is not v and is_made_for_jax(owner)):
            return self.outside(getattr(owner, name))
        return self.unless_refused(lambda: super(Shapes, self).get_attr(v, name), v)

    def outside(self, v: Any) -> Any:
        try:
            return super().outside(v)
        except Refused:
            return _Outside(v) if callable(v) else UNKNOWN

    def call(self, f: Any, args: Any, kwargs: Any) -> Any:
        def run() -> Any:
            try:
                return super(Shapes, self).call(f, args, kwargs)
            except Refused as error:
                _check_begun(error)
                return self._of_library(f, list(args), kwargs)

        is_method = isinstance(f, types.MethodType) and is_made_for_jax(f)
        is_known = isinstance(f, types.FunctionType) and is_without_jax(f)
        if is_method or is_known or isinstance(f, _Outside) or type(owner_of(f)) in _GENERATORS:
            run = functools.partial(self._of_library, f, list(args), kwargs)
        return UNKNOWN if f is print else self.unless_refused(run, f, *args, *kwargs.values())

    def _of_library(self, f: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What a function gives that is not in the language, if its type can be found."""
        f = f.func if isinstance(f, _Outside) else f
        if id(f) in _GIVES:
            return self.number(_GIVES[id(f)])
        if f is round:
            return args[0] if is_array(args[0]) else self.number("f")
        if any(f is g for g in (sum, max, min, sorted)):
            several = tuple(args) if f in (max, min) and len(args) > 1 else self.known_length(args[0])
            return self.lifted(lambda items: self._reduced(f, self.iterate(items), args, kwargs), several)
        if isinstance(f, np.ufunc) and not f.signature and not kwargs:
            return self.call_jax(functools.partial(broadcast_of, f.nout), args, {})
        if type(owner := owner_of(f)) in _GENERATORS:
            return self.like(self.of_constants(getattr(copy.deepcopy(owner), f.__name__), args, kwargs))
        if any(f is g for g in (np.random.default_rng, *_GENERATORS)):
            return self.of_constants(f, args, kwargs)
        if (counterpart := counterpart_of(f)) is not None:
            return wide(self.call_jax, functools.partial(call_with_arrays, counterpart), args, kwargs)
        if is_made_for_jax(f):
            return self.call_jax(f, args, kwargs)
        raise Refused("a function from outside")

    def _reduced(self, f: Any, items: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What a sum, an extreme or a sorted list of some items is."""
        if f is sum:
            start = [*args[1:], *kwargs.values(), 0][0]
            return functools.reduce(functools.partial(self.binary, ast.Add), items, start)
        if f is sorted:
            return self.new_list([self.one_of(items)] * len(items) if items else ())
        if not items and "default" not in kwargs:
            raise PyRaise(ValueError("there is no item"))
        return self.one_of([*items, *(v for k, v in kwargs.items() if k == "default")])

    # --------------------------------------------------------------- nothing is computed

    def python(self, f: Callable[..., Any], /, *vs: Any, **kw: Any) -> Any:
        leaves, tree = jax.tree.flatten((vs, kw))
        if not any(map(is_array, leaves)):
            return super().python(f, *vs, **kw)
        key: Any = None
        plain = type, types.FunctionType
        if id(f) in _PURE and all(is_array(x) or is_constant(x) or isinstance(x, plain) for x in leaves):
            key = f, tree, tuple((x.shape, x.dtype) if is_array(x) else (type(x), x) for x in leaves)
        if key not in self.known:
            try:
                outs, of_outs = jax.tree.flatten(f(*vs, **kw))
            except Refused:
                raise
            except Exception as e:
                raise PyRaise(e, sure=False) from e
            if key is None or not all(map(is_array, outs)):
                return jax.tree.unflatten(of_outs, outs)
            self.known[key] = of_outs, list(map(jax.typeof, outs))
        return jax.tree.unflatten(self.known[key][0], self.unknown(self.known[key][1]))

    def of_constants(self, f: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        # The function may change the array later, so its numbers are not known.
        out = super().of_constants(f, args, kwargs)
        return self.like(out) if type(out) is np.ndarray else out

    def _numbers_in(self, v: Any) -> Iterator[Num]:
        # What a function of JAX makes of their values does not matter.
        yield from ()

    def check(self, wrong: Any, error: Exception, of_python: bool = True) -> None:
        if wrong is True:
            raise PyRaise(error)

    def note(self, wrong: Any, error: Exception, where: tuple[str, int], expression: str) -> None:
        pass

    def _truth(self, v: Any) -> Any:
        is_one = isinstance(v, core.Tracer) and v.size == 1
        return self.number("b", 0, 1) if v is UNKNOWN or is_one else super()._truth(v)

    def compare(self, op: type, a: Any, b: Any) -> Any:
        return self.number("b", 0, 1) if a is UNKNOWN or b is UNKNOWN else super().compare(op, a, b)

    def _compare_values(self, op: type, a: Any, b: Any) -> Any:
        if not _has_number(a, b):
            return super()._compare_values(op, a, b)
        known = None if common_kind(a, b) == "f" else decided(COMPARE[op], a, b)
        return self.number("b", 0, 1) if known is None else known

    def same_item(self, a: Any, b: Any) -> Any:
        return self.truth(self.compare(ast.Eq, a, b))

    def _binary(self, op: type, a: Any, b: Any) -> Any:
        if _has_number(a, b) and common_kind(a, b) == "f":
            return self.number("f")
        return super()._binary(op, a, b)

    def _math(self, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_known = not any(isinstance(x, Num) or is_array(x) for x in args)
        return super()._math(f, args, kwargs) if is_known else self.number(_OF_MATH.get(f.__name__, "f"))

    def number_of(self, x: Any, kind: str = "") -> Num:
        is_float = isinstance(x, core.Tracer) and x.size == 1 and (kind == "f" or _dtypes.is_inexact(x))
        return self.number("f") if is_float else super().number_of(x, kind)

    # ------------------------------------------------------------------------------ items

    def items(self, obj: Obj) -> Any:
        if obj.slots["items"] is UNKNOWN:
            raise Refused("a list whose length depends on values")
        return super().items(obj)

    def with_items(self, obj: Obj, f: Callable[[Any], tuple[Any, Any]]) -> Any:
        return UNKNOWN if obj.slots["items"] is UNKNOWN else super().with_items(obj, f)

    def list_method(self, v: Obj, name: str, args: list[Any], **kwargs: Any) -> Any:
        is_place = name == "index"
        return self.number("i", 0, len(self.items(v)) - 1) if is_place else super().list_method(v, name, args, **kwargs)

    def _constants(self, v: Any) -> Any:
        is_array_of_rows = isinstance(v, core.Tracer) and v.ndim
        return (self.of_type(v.shape[1:], v.dtype),) * len(v) if is_array_of_rows else super()._constants(v)

    def new_slice(self, *ends: Any) -> Any:
        is_known = all(x is None or is_constant(x) for x in ends)
        return super().new_slice(*ends) if is_known else slice(UNKNOWN, None, None)

    def _of_tuple(self, items: Any, key: Any) -> Any:
        if items is UNKNOWN or _is_unknown_slice(key):
            raise Refused("an item of a list, or a part, that depends on values")
        return self.one_of(items) if isinstance(key, Num) or is_array(key) else super()._of_tuple(items, key)

    def _get_item(self, box: Any, key: Any) -> Any:
        keys = list(key) if isinstance(key, tuple) else [key]
        box = self.like(box) if isinstance(box, np.ndarray) and not all(map(is_constant, keys)) else box
        if not is_array(box):
            return super()._get_item(box, key)
        shape, axis = list(box.shape), 0
        for n, k in enumerate(keys):
            axes = k.ndim if is_array(k) and k.dtype == np.bool_ else 1 if _is_unknown_slice(k) else 0
            if axes:
                shape[axis : axis + axes], keys[n] = [LENGTH], slice(None)
            axis = len(shape) - len(keys) + n + 1 if k is Ellipsis else axis + (k is not None)
        return super()._get_item(self.of_type(shape, box.dtype), tuple(keys) if isinstance(key, tuple) else keys[0])

    def _set_item(self, box: Any, key: Any, value: Any) -> None:
        # Arrays keep their shapes. Those that cannot be changed raise when the function is called.
        if not (is_array(box) or box is UNKNOWN or type(box) is np.ndarray):
            super()._set_item(box, key, value)

    def call_method(self, v: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(v, At) and name != "get":
            return self.of_type(v.array.shape, v.array.dtype)
        return super().call_method(v, name, args, kwargs)

    # ------------------------------------------------------------------------- statements

    def assign(self, target: Any, value: Any, env: Obj) -> None:
        if value is UNKNOWN and isinstance(target, (ast.Tuple, ast.List)):
            for t in target.elts:
                self.assign(t.value if isinstance(t, ast.Starred) else t, UNKNOWN, env)
        else:
            super().assign(target, value, env)

    def _for(self, s: ast.For, items: Any, env: Obj) -> None:
        is_unknown = items is UNKNOWN or (isinstance(items, Obj) and items.slots["items"] is UNKNOWN)
        if not is_unknown:
            return super()._for(s, items, env)
        coin = self.of_type((), DTYPES["b"])
        self._loop_of_program(s, env, coin, lambda: coin, lambda: self.assign(s.target, UNKNOWN, env))
        return self._leave_loop(s, env)

    def call_user(self, f: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(self.frames) > _MOST_CALLS:
            raise PyRaise(RecursionError("a function calls itself"))
        return super().call_user(f, args, kwargs)

    def do_raise(self, s: ast.Raise, env: Obj) -> None:
        raise PyRaise(RuntimeError("the function raises"))

    def do_try(self, s: ast.Try, env: Obj) -> None:
        """The body, or one of the handlers, which sees the variables as they are before the body, or after it."""
        coin = self.of_type((), DTYPES["b"])
        assignments = [b for b in s.body if not isinstance(b, ast.Raise)]

        def handle(handler: ast.ExceptHandler) -> None:
            self.branch(coin, lambda: self.block(assignments, env), lambda: None)
            self.if_normal(env, functools.partial(self._handle, handler, env))

        sides: list[Callable[[], Any]] = [lambda: self.block([*s.body, *s.orelse], env)]
        sides += [functools.partial(handle, h) for h in s.handlers]
        functools.reduce(lambda rest, run: lambda: self.branch(coin, run, rest), sides)()
        self.if_normal(env, lambda: self.block(s.finalbody, env))

    def do_with(self, s: ast.With, env: Obj) -> None:
        for item in s.items:
            if "suppress" in ast.unparse(item.context_expr):
                raise Refused("what follows a `with` whose body may raise")
            if item.optional_vars:
                self.assign(item.optional_vars, UNKNOWN, env)
        self.block(s.body, env)

    def _handle(self, handler: ast.ExceptHandler, env: Obj) -> None:
        if handler.name:
            self.store(handler.name, UNKNOWN, env)
        self.block(handler.body, env)


def _is_unknown_slice(v: Any) -> bool:
    return isinstance(v, slice) and v.start is UNKNOWN


def _check_begun(error: Refused) -> None:
    """Raises an error again that Python raises, too, or that comes out of a statement, which may be half done."""
    if error.where is not None or (isinstance(error, PyRaise) and error.sure):
        raise error


def _has_number(a: Any, b: Any) -> bool:
    """Whether two values are numbers of Python, of which one is not known."""
    return (isinstance(a, Num) or isinstance(b, Num)) and is_scalar(a) and is_scalar(b)


def shapes_of(
    function: Any,
    arguments: Callable[[Sequence[Any]], tuple[Sequence[Any], Mapping[str, Any]]],
    leaves: Callable[[Any], Sequence[Any]],
    structs: Sequence[Any],
) -> list[tuple[int, ...]] | None:
    """The shapes of what a function returns, or None.

    Args:
        function: the user's.
        arguments: makes its arguments of arrays.
        leaves: takes the results out of what it returns.
        structs: the types of the arrays.
    """

    def run(*arrays: Any) -> list[Any]:
        args, kwargs = arguments(arrays)
        return interpret(function, args, kwargs, lambda v: list(map(_shaped, leaves(v))), machine=Shapes())[0]

    if core.PORTABLE:
        return None
    try:
        return [s.shape for s in jax.eval_shape(run, *structs)]
    except Exception:
        # Whatever is wrong with the function, its call will tell.
        return None


def _shaped(v: Any) -> Any:
    if isinstance(v, Either):
        return v.map(_shaped)
    shape = list[Any](() if isinstance(v, Num) else np.shape(v))
    if v is UNKNOWN or not all(isinstance(d, int) or d.scope is not LENGTH.scope for d in shape):
        raise Refused("the shape of a result is not known")
    # Of one dtype, so that two paths differ by the shape alone.
    return jnp.zeros(shape, np.bool_)
