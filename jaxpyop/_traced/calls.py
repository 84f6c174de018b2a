"""Calls: which way each callable is called, functions that JAX calls, and methods."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _dtypes
from jaxpyop import _jaxcore as core
from jaxpyop._config import config
from jaxpyop._functions import without_partials
from jaxpyop._traced import allowed
from jaxpyop._traced.allowed import BUILTINS, KNOWN, OF_JAX, OF_MATH, OF_NUMPY
from jaxpyop._traced.objects import Objects
from jaxpyop._traced.operators import OUTSIDE, name_of_function, name_of_type
from jaxpyop._traced.values import *


class Calls(Objects):
    """Calls of everything but functions of the user, which `Functions` interprets."""

    call_user: Callable[..., Any]
    # Whether JAX gets a function for one of `allowed.HANDS_ON`.
    hands_on = False

    def call(self, f: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(f, Union) or f is UNDEF:
            used_up = [v for v in (*args, *kwargs.values()) if isinstance(v, Iter)]
            return self.lifted(lambda g, *_: self.call(g, args, kwargs), f, *used_up)
        args = list(args)
        key = id(f)
        if key in BUILTINS:
            try:
                return BUILTINS[key](self, *args, **kwargs)
            except TypeError as e:
                if self.label and str(e).startswith(self.label):
                    raise
                raise Refused(f"arguments that are not in the language: {str(e).rpartition('() ')[2]}") from e
        if not isinstance(f, (Method, Partial)):
            check_no_iterators(*args, *kwargs.values())
        if key in allowed.TRANSFORMS:
            return self._transformed(f, args, kwargs)
        if key in OF_MATH:
            return self.lifted(lambda *xs: self._math(f, xs, kwargs), *args)
        if key in OF_JAX:
            return self.call_jax(f, args, kwargs)
        if key in OF_NUMPY:
            return self.of_constants(f, args, kwargs)
        if isinstance(f, (Closure, types.FunctionType)):
            return self.call_user(f, args, kwargs)
        if isinstance(f, types.MethodType):
            return self.call(self.outside(f.__func__), [self.outside(f.__self__), *args], kwargs)
        if isinstance(f, Method):
            return self.call_method(f.self, f.name, args, kwargs)
        if isinstance(f, Partial):
            return self.call(f.func, [*f.args, *args], {**f.kwargs, **kwargs})
        return self._call_object(f, args, kwargs)

    def _call_object(self, f: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(f, Foreign):
            return self.call_jax(f.func, args, kwargs)
        if isinstance(f, Transformed):
            return self.call(self.call_jax(f.transform, list(f.args), f.kwargs), args, kwargs)
        if isinstance(f, type):
            return self._construct(f, args, kwargs)
        if isinstance(f, functools.partial):
            given = {k: self.outside(v) for k, v in f.keywords.items()}
            return self.call(self.outside(f.func), [*map(self.outside, f.args), *args], {**given, **kwargs})
        wrapped = getattr(f, "__wrapped__", None) if core.is_jitted(f) else None
        if isinstance(wrapped, types.FunctionType):
            # As a compiled function, so that its arguments and results are what JAX makes of them.
            if any(core.static_arguments(f)):
                raise Refused(f"`{name_of_function(f)}`, which is compiled with static arguments", OUTSIDE)
            return self.call_jax(jax.jit(self.function_for_jax(wrapped)), args, kwargs)
        cls: Any = f.cls if isinstance(f, Obj) else type(f)
        found = self.class_attribute(cls, "__call__")
        if isinstance(found, types.FunctionType) and module_of(cls) not in (*LIBRARIES, "functools"):
            check_class(cls)
            return self.call(Partial(found, (f,)), args, kwargs)
        raise Refused(f"`{name_of_function(f)}` is not in the language", OUTSIDE)

    def _math(self, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not kwargs and any(isinstance(x, Num) or is_array(x) for x in args):
            if f is math.trunc and is_array(args[0]):
                raise Refused("math.trunc of an array", "use int(x) or jnp.trunc")
            return math_function(f.__name__, *(self.number_of(x, "f") if is_array(x) else x for x in args))
        return self.of_constants(f, args, kwargs)

    def of_constants(self, f: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A function of Python or NumPy of constants and lists of them."""
        args = [list(self.items(a)) if isinstance(a, Obj) and a.cls is list else a for a in args]
        if f is not print and any(type(a) is np.ndarray for a in (*args[1:], *kwargs.values())):
            raise Refused(f"a second array of `{name_of_function(f)}`, which NumPy may change", "use jax.numpy")
        for a in (*args, *kwargs.values()):
            if is_array(a) or isinstance(a, Num):
                remedy = f"write jnp.{f.__name__}" if hasattr(jnp, f.__name__) else ""
                raise Refused(f"`{name_of_function(f)}` of a traced value", remedy)
            if not isinstance(a, type):
                self.need_constant(tuple(a) if type(a) is list else a)
        return self.python(f, *args, **kwargs)

    # ------------------------------------------------------------------------- JAX

    def to_jax(self, v: Any) -> Any:
        """A value of the language as one of JAX."""
        return self.mapped(self._leaf_to_jax, v)

    def _leaf_to_jax(self, v: Any) -> Any:
        if isinstance(v, Union):
            what = "a function of JAX gets, or calls a function that returns, values of two kinds"
            raise Refused(what, "make them of one kind before, such as jnp.float32(0)")
        if isinstance(v, Num):
            return num_to_array(v)
        if is_of_jax(v) or isinstance(v, (slice, range)) or id(v) in OF_JAX:
            return v
        if isinstance(v, Foreign):
            return v.func
        is_function = isinstance(v, (Closure, Partial, Transformed, types.FunctionType, types.MethodType))
        if is_function or core.is_jitted(v) or id(v) in BUILTINS or id(v) in OF_MATH:
            return self.function_for_jax(v)
        raise Refused(f"a {name_of_type(v)} is given to a function of JAX")

    def _transformed(self, transform: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        # JAX would go on with what the function read in its first call.
        is_made_here = any_part(lambda v: isinstance(v, (Closure, Obj)), (*args, *kwargs.values()))
        if id(transform) in allowed.KEPT_BY_JAX and is_made_here:
            what = f"jax.{transform.__name__} of a function or a method that is made in the function"
            raise Refused(what, "leave it out, because all is compiled together, or write that function outside")
        return Transformed(transform, tuple(args), kwargs)

    def from_jax(self, v: Any, of_function: Callable[[Any], Any] = Foreign) -> Any:
        if is_of_jax(v):
            return Foreign(v) if _is_function_of_jax(v) else v
        inner = functools.partial(self.from_jax, of_function=of_function)
        if type(v) is list:
            return self.new_list(map(inner, v))
        if isinstance(v, tuple):
            check_tuple(type(v))
            return type(v)(*map(inner, v)) if hasattr(v, "_fields") else tuple(map(inner, v))
        if type(v) is dict:
            return self.new_dict((k, inner(x)) for k, x in v.items())
        if callable(v):
            return of_function(v)
        raise Refused(f"a function of JAX returns a {type(v).__name__}")

    def given(self, v: Any) -> Any:
        """An input of the function, as a value of the language. A function among the inputs is one of the user."""
        return self.from_jax(v, of_function=self.outside)

    def function_for_jax(self, f: Any) -> Any:
        """A function that JAX may call, in a trace of its own. It must not change what is outside of it."""
        hands_on = self.hands_on

        def called(*args: Any, **kwargs: Any) -> Any:
            what = "a function that JAX calls"
            with self.unchanged(what), self.not_raising(f"in {what}"):
                given = {k: self.from_jax(a) for k, a in kwargs.items()}
                result = self.call(f, list(map(self.from_jax, args)), given)
                if hands_on and any(self._numbers_in((result,))):
                    raise Refused("a function that JAX calls returns a number of Python that is not known", _TO_ARRAY)
                return self.to_jax(result)

        # Errors name the function of the user.
        called.__module__ = str(getattr(f, "__module__", ""))
        called.__qualname__ = getattr(f, "__qualname__", "a function")
        return called

    def call_jax(self, f: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) == 1 and not kwargs and isinstance(n := args[0], Num) and _is_dtype(f):
            dtype = jax.dtypes.canonicalize_dtype(jnp.dtype(f))
            if n.kind == "i" and jnp.issubdtype(dtype, jnp.integer):
                return num_as_dtype(n, dtype)  # in one step, as jnp.int8(3)
        self._check_casts(f, [getattr(f, "__self__", None), *args, *kwargs.values()])
        count = len(args)

        def called(*xs: Any) -> Any:
            if (id(f) in allowed.OF_TREES or id(f) not in KNOWN) and any(self._numbers_in(xs)):
                raise Refused(f"{name_of_function(f)} is given a number of Python that is not known", _TO_ARRAY)
            with self.having(hands_on=id(f) in allowed.HANDS_ON):
                given = list(map(self.to_jax, xs))
            return self.from_jax(self.python(f, *given[:count], **dict(zip(kwargs, given[count:]))))

        values = *args, *kwargs.values()
        if id(f) not in KNOWN or id(f) in allowed.OF_TREES:
            return self.lifted(called, *values)
        return self.for_each(lambda xs: called(*xs), values)

    def _check_casts(self, f: Any, values: list[Any]) -> None:
        """Refuses a number of Python that a function of JAX may cast to a dtype by way of another one."""
        if f is jnp.power:
            self.lifted(self.check_power, *values[1:])
        numbers = list(self._numbers_in(tuple(values)))
        dtypes = [jnp.dtype(v) for v in (f, *values) if _is_dtype(v)] if numbers else []
        if numbers:
            add = lambda v: dtypes.append(v.dtype) if is_array(v) and v.dtype.name not in _WIDE else None
            self.mapped(add, tuple(values))
        for dtype in dtypes:
            for n in numbers:
                fits = n.kind != "i" or not jnp.issubdtype(dtype, jnp.integer) or fits_dtype(n, dtype)
                if not fits or (n.kind == "f" and dtype.name not in _OF_FLOATS):
                    remedy = f"write jnp.{dtype}(n)" if n.kind == "i" else "make it a jnp.float32 first"
                    raise Refused(f"a number of Python becomes {dtype}", remedy)

    def _numbers_in(self, v: Any) -> Iterator[Num]:
        """The traced numbers of Python in a value. Functions of trees hand them on as they are."""
        if isinstance(v, Num):
            yield v
        parts = v.alts if isinstance(v, Union) else v if isinstance(v, tuple) else ()
        for part in self.items(v) if isinstance(v, Obj) and v.cls in (list, dict) else parts:
            yield from self._numbers_in(part)

    def number_of(self, x: Any, kind: str = "") -> Num:
        """The Python number that an array is, which has no derivative: `config.constants` may ask for an error."""
        if config.constants == "error" and _dtypes.is_inexact(x):
            x = _never_differentiated(x, f"{self.label}: {self.line[0]}:{self.line[1]}")
        return of_array(x, kind)

    # --------------------------------------------------------------------- methods

    def call_method(self, v: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if is_array(v):
            if name == "item" and args:
                raise Refused("an item by its place", "index the array")
            if name == "tolist" and v.ndim:
                return self.new_list(self.call_method(row, name, [], {}) for row in self.iterate(v))
            if name in ("item", "tolist"):
                return self.number_of(v.reshape(()) if v.size == 1 else v)
            return self.call_jax(getattr(v, name), args, kwargs)
        if isinstance(v, At):
            if name == "set" and is_array(v.index) and v.index.dtype == np.bool_:
                return self._set_where(v.array, v.index, *args)
            index = self.array_index(v.index)
            given = args if name == "power" else [self._fitting(a, v.array) for a in args]
            return self.call_jax(getattr(v.array.at[index], name), given, kwargs)
        if isinstance(v, (str, np.ndarray)):
            args = [self.iterate(a) if isinstance(a, (Obj, Iter)) else a for a in args]
            out = self.of_constants(getattr(v, name), args, kwargs)
            return self.new_list(out) if type(out) is list else out
        if isinstance(v, tuple) and name == "_replace":
            return self.python(v._replace, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(v, (tuple, list, dict)):
            if name not in ("get", "items", "keys", "values", "copy"):
                raise Refused(f"`.{name}` changes a {type(v).__name__} from outside", "make a copy in the function")
            v = self.opened(v)
        if kwargs and name not in ("sort", "update"):
            raise PyRaise(TypeError(f"{name}() takes no keyword arguments"))
        if v.cls is dict:
            return self.dict_method(v, name, args, kwargs)
        return self.list_method(v, name, args, **kwargs)

    def _fitting(self, v: Any, array: Any) -> Any:
        """A number of Python as JAX converts it for `array.at[...].set(v)`, if it does so in one step.

        Other numbers stay as they are, and the call is refused.
        """
        if not isinstance(v, Num) or array.dtype.name not in _WIDE:
            return v
        is_integer = v.kind == "i" and jnp.issubdtype(array.dtype, jnp.integer) and fits_dtype(v, array.dtype)
        return num_to_array(v, array) if is_integer or v.kind == "b" or _dtypes.is_inexact(array) else v

    def _set_where(self, array: Any, mask: Any, v: Any) -> Any:
        """`array.at[mask].set(v)`, for which JAX needs the values of the mask."""

        def of(v: Any) -> Any:
            value = num_to_array(v, array)
            fits = (
                (is_array(v) or is_scalar(v)) and not array.weak_type and jnp.result_type(array, value) == array.dtype
            )
            if not fits or jnp.shape(value) or mask.shape != array.shape:
                raise Refused("an index of bools, for what is no number or array without axes", "use jnp.where")
            return self.python(jnp.where, mask, value, array)

        return self.lifted(of, v)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _never_differentiated(x: Any, where: str) -> Any:
    """Returns `x`. Differentiating it raises an error, because the derivative would be zero without a warning."""
    return x


@_never_differentiated.defjvp
def _raise(where: str, primals: Any, tangents: Any) -> Any:
    raise TypeError(
        f"{where}: float(x) makes a constant of a differentiated {jax.typeof(primals[0]).str_short()}, whose "
        "derivative is zero. Use x itself, or jax.lax.stop_gradient(x) if you want a constant "
        "(jaxpyop.config.constants is 'error')"
    )


# The dtypes that a float of Python becomes in one step, or by way of a float32 without another rounding.
_OF_FLOATS = ("float32", "float64", "complex64", "complex128")
# An array of one of these dtypes takes a number of Python without another conversion. One of a smaller dtype may wrap
# it or round it twice.
_WIDE = (*_OF_FLOATS, "bool", "int32", "int64")


def _is_dtype(v: Any) -> bool:
    if isinstance(v, str):
        return v in np.sctypeDict or v == "bfloat16"
    return isinstance(v, (np.dtype, type(jnp.float32))) or (
        isinstance(v, type) and issubclass(v, np.generic | int | float)
    )


_TO_ARRAY = "make it an array, such as jnp.float32(n) or jnp.int32(n)"


def is_of_jax(v: Any) -> bool:
    """Whether JAX and the language have the same value. An object that is a pytree is handed on as it is."""
    types_ = (np.ndarray, type, jax.tree_util.PyTreeDef, jax.ShapeDtypeStruct)
    if is_array(v) or is_constant(v) or isinstance(v, types_):
        return True
    is_tree = not isinstance(v, (tuple, Kind)) and type(v) not in (list, dict) and not jax.tree_util.all_leaves([v])
    return is_tree and not why_not(v)


def _is_function_of_jax(v: Any) -> bool:
    """Whether a pytree is a function that `jax.vjp` or `jax.linearize` returned, and not one of the user."""
    if module_of(type(v)) != "jax" or isinstance(v, type) or not callable(v):
        return False
    f = getattr(v.func, "fun", v.func) if isinstance(v, jax.tree_util.Partial) else v
    return without_partials(f).__module__.startswith("jax.")
