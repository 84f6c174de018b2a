"""The functions that rewritten code calls, one for each kind of statement and expression, and one for calls.

AutoGraph writes their names (`ag__.if_stmt`, ...) into the rewritten code. Each function does what Python does, unless
the condition is a traced value. Then `if_statements` and `loop_statements` add a `lax.cond` or a loop to the program.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow import (
    DEPENDS_ON_PATH,
    IDENTITY,
    OF_ARRAYS,
    RAISING,
    BoolTracer,
    as_array,
    check_numbers,
    depends_on_path,
    may_be_nan,
)
from jaxpyop._paths.rewrite.context import check_call, check_rebuilt, context, is_rebuilt, is_traced, is_tracing, refuse
from jaxpyop._paths.rewrite.convert import converted, is_converted, is_convertible, mark_converted
from jaxpyop._paths.rewrite.if_statements import and_, choose, if_exp, not_, or_
from jaxpyop._paths.rewrite.loop_statements import run_for, run_while
from jaxpyop._paths.rewrite.numbers import number_of
from jaxpyop._paths.rewrite.other_statements import ConversionError
from jaxpyop._paths.rewrite.ranges import TracedRange
from jaxpyop._paths.rewrite.values import is_value
from jaxpyop._paths.rewrite.variables import Undefined, UndefinedReturnValue, Variables


class FunctionScope:
    """AutoGraph's context manager around the body of a rewritten function, which here only handles the result."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> FunctionScope:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def ret(self, value: Any, did_return: Any) -> Any:
        if isinstance(value, UndefinedReturnValue):
            return None
        if is_traced(did_return) and value is not None:
            what = "not every path is sure to end with a `return`, and some return a value"
            refuse(what, "end the function with a `return`; leave a `while True` by `break`, and return after it")
        return value


def with_function_scope(body: Callable[[Any], Any], *_: Any) -> Any:
    return body(FunctionScope())


def load(value: Any) -> Any:
    if isinstance(value, Undefined):
        return value.read()
    if type(value) in _ITERATORS and is_tracing():
        context().unnamed.pop(id(value), None)
    return value


# The builtins that make an iterator from other iterables. The iterator counts as unnamed (see `TraceContext.unnamed`)
# until it is read from a variable.
_ITERATORS = (enumerate, zip, map, filter, reversed)


def _iterator(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    made, unnamed = function(*args, **kwargs), context().unnamed
    if all(iter(x) is not x or id(x) in unnamed for x in args if hasattr(type(x), "__iter__")):
        unnamed[id(made)] = made
    return made


def load_or_undefined(read: Callable[[], Any], name: str) -> Any:
    try:
        return read()
    except (KeyError, AttributeError, NameError, IndexError):
        return Undefined(name)


def if_stmt(condition: Any, yes: Any, no: Any, get: Any, write: Any, names: Sequence[str], live: int) -> None:
    if is_traced(condition):
        choose(condition, yes, no, lambda: Variables(names, get, write, live))
    else:
        (yes if condition else no)()


def while_stmt(test: Any, body: Any, get: Any, write: Any, names: Sequence[str], options: Any) -> None:
    run_while(test, body, lambda: Variables(names, get, write, options["live"], options["augmented"]))


def for_stmt(items: Any, test: Any, body: Any, get: Any, write: Any, names: Sequence[str], options: Any) -> None:
    run_for(items, test, body, lambda: Variables(names, get, write, options["live"], options["augmented"]))


def assert_stmt(condition: Any, message: Callable[[], Any]) -> None:
    if is_traced(condition):
        refuse("an assert of a traced value cannot stop a compiled program", f"leave it out, {RAISING}")
    if not condition:
        raise AssertionError(message())


# ------------------------------------------------------------------------ calls


def run(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls the body."""
    found = call(function, args, kwargs)
    check_rebuilt()
    return found


def call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, _: Any = None) -> Any:
    """Calls a function. A function of the user is rewritten first, and a function of a library is called as it is."""
    kwargs = kwargs or {}
    if not is_tracing():
        return function(*args, **kwargs)
    if isinstance(function, functools.partial):
        return call(function.func, (*function.args, *args), {**function.keywords, **kwargs})
    check_call(function)
    if isinstance(function, type) or not callable(function):
        return _call_builtin_type(function, args, kwargs)
    # An object of the user's class may have no hash.
    if isinstance(function, (types.FunctionType, types.BuiltinFunctionType)) and function in _REPLACEMENTS:
        return _REPLACEMENTS[function](*args, **kwargs)
    if isinstance(function, types.MethodType):
        owner: Any = function.__self__
        if function.__name__ == "item" and is_traced(owner) and owner.size == 1:
            return _call_builtin_type(_kind_of(owner.dtype), (owner,), {})
        return call(function.__func__, (function.__self__, *args), kwargs)
    if isinstance(function, types.FunctionType):
        return _rewritten(function)(*args, **kwargs)
    if (method := _own_call(function)) is not None:
        return call(method, (function, *args), kwargs)
    return _call_library(function, args, kwargs)


def _kind_of(dtype: Any) -> type:
    """Returns the Python type of `x.item()`."""
    if dtype.kind == "b":
        return bool
    return int if jax.dtypes.issubdtype(dtype, jax.numpy.integer) else float


def _call_builtin_type(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if function is range and any(map(is_traced, args)):
        return TracedRange(*args)
    if function is str and any(map(is_traced, args)):
        _refuse_text()
    if function is type and len(args) == 1 and is_traced(args[0]):
        _refuse_numbers("type(x)", args[0])
    if function in (bool, float, int) and len(args) == 1 and is_traced(args[0]) and args[0].size == 1:
        return not_(not_(args[0])) if function is bool else number_of(args[0], function)
    if function in _ITERATORS:
        return _iterator(function, args, kwargs)
    if function is super and not args:
        refuse("super() has no arguments in a rewritten method", "write super(TheClass, self)")
    if (getattr(function, "__module__", None) or "").startswith("jax"):
        check_numbers(args)
    return function(*args, **kwargs)


def _rewritten(function: Any) -> Any:
    """Returns the rewritten function, or the function itself if it cannot be rewritten."""
    if is_converted(function):
        return function
    if not is_convertible(function, context().home):
        return lambda *args, **kwargs: _call_library(function, args, kwargs)
    try:
        return converted(function, OPERATORS)
    except ConversionError:
        return function


def _own_call(function: Any) -> Any:
    """Returns the `__call__` of an object of the user's class, None for other objects."""
    method = inspect.getattr_static(type(function), "__call__", None)
    return method if is_convertible(method, context().home) or is_converted(method) else None


def _call_library(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function of a library without rewriting it. Functions of the user among its arguments are rewritten."""
    inner = getattr(function, "__wrapped__", None)
    if inner is not None and hasattr(function, "lower"):
        try:
            return function(*args, **kwargs)
        except jax.errors.TracerBoolConversionError:
            # The jitted function has an `if` on a traced value. So it is rewritten, and becomes part of this program.
            return call(inner, args, kwargs)
    if getattr(getattr(function, "__code__", None), "co_filename", "").startswith(core.PACKAGE):
        # This is a function of jaxpyop, which itself decides what to do with functions among its arguments.
        return function(*args, **kwargs)
    if isinstance(getattr(function, "__self__", None), str) and any(map(is_traced, [*args, *kwargs.values()])):
        _refuse_text()
    check_numbers((args, kwargs))
    if getattr(function, "__name__", "") in ("count", "index", "remove"):
        _check_identity(getattr(function, "__self__", None), *args)
    # What `x.at[i]` gives holds the array.
    if depends_on_path([getattr(a, "array", a) for a in args if is_value(getattr(a, "array", a))]):
        refuse(*DEPENDS_ON_PATH)
    args = [_as_argument(a) for a in args]
    if not isinstance(getattr(function, "__self__", None), types.ModuleType):
        # A function of a library such as JAX takes a traced Python bool as an array. A builtin function does not.
        args = list(map(as_array, args))
    return function(*args, **{name: _as_argument(a) for name, a in kwargs.items()})


def _as_argument(x: Any) -> Any:
    if isinstance(x, types.FunctionType) and is_convertible(x, context().home):
        found = _rewritten(x)
        return functools.update_wrapper(found, x) if found is not x else x
    return x


def _extremum(keep_first: Callable[[Any, Any], Any], original: Any, *args: Any, **kwargs: Any) -> Any:
    """Evaluates `min` or `max` of scalars."""
    values: Any = args
    if len(args) == 1:
        values = args[0] if isinstance(args[0], (list, tuple)) else ()
    if kwargs or not any(map(is_traced, values)) or any(getattr(v, "ndim", 0) for v in values):
        return original(*args, **kwargs)
    found = values[0]
    for value in values[1:]:
        found = if_exp(keep_first(value, found), lambda value=value: value, lambda found=found: found)
    return found


def _refuse_numbers(shown: str, x: Any) -> None:
    """Refuses a question about a value if a Python number and the traced array in its place answer it differently."""
    is_other = getattr(x, "number_types", None) or getattr(x, "is_numpy", False)
    if isinstance(x, BoolTracer) or x.aval.weak_type or is_other:
        refuse(
            f"{shown} asks for the type of what is a number of Python's or NumPy's on some path, and an array here",
            'write it without that question, or write mode="eager" to call the body at run time instead',
        )


def _refuse_text() -> None:
    refuse("the text of a traced value is not known", 'write jax.debug.print("{}", x) to look at it')


def _as_text(function: Any) -> Callable[..., Any]:
    return lambda *args: _refuse_text() if any(map(is_traced, args)) else function(*args)


def _isinstance(x: Any, classes: Any) -> bool:
    if is_traced(x):
        _refuse_numbers("isinstance(x, ...)", x)
    if isinstance(x, TracedRange):
        x.refuse("is asked for its type")
    return isinstance(x, classes)


def _with_attributes(function: Any) -> Callable[..., Any]:
    def asked(x: Any, name: str, *default: Any) -> Any:
        if is_traced(x) and name in OF_ARRAYS:
            refuse(
                f"{function.__name__}(x, {name!r}) asks for what a traced value does not have",
                f"leave it out, {RAISING}",
            )
        if is_traced(x) and hasattr(x, name) != hasattr(0, name):
            _refuse_numbers(f"{function.__name__}(x, {name!r})", x)
        return function(x, name, *default)

    return asked


def _equal(a: Any, b: Any) -> Any:
    _check_identity(a, b)
    return a == b


def _not_equal(a: Any, b: Any) -> Any:
    _check_identity(a, b)
    return a != b


def _check_identity(*values: Any) -> None:
    """Refuses to compare lists, tuples and dicts if one holds a value that may be NaN, and identical to another."""
    if any(isinstance(x, (list, tuple, dict)) for x in values) and any(map(may_be_nan, jax.tree.leaves(values))):
        refuse(*IDENTITY)


def is_(a: Any, b: Any) -> bool:
    """Tells whether two objects are identical. It is refused for two traced values if the answer depends on the path.

    Where paths are merged, a variable gets a new traced value, which is not identical to the value of any path.
    """
    # A tuple is made anew where paths are merged, like a list, but never changes.
    values = all(is_value(x) or isinstance(x, tuple) for x in (a, b)) and any(map(is_traced, jax.tree.leaves((a, b))))
    if a is not b and is_tracing() and (values or any(map(is_rebuilt, (a, b)))):
        refuse(
            "whether one of these values `is` the other depends on the path", "compare what they hold, or set a flag"
        )
    return a is b


def _id(x: Any) -> int:
    if is_traced(x) or (is_tracing() and is_rebuilt(x)):
        refuse("id() of a traced value depends on the path", "compare what the values hold, or set a flag")
    return id(x)


def _of_names(function: Any) -> Callable[..., Any]:
    def asked(*args: Any) -> Any:
        if not args:
            refuse(f"{function.__name__}() sees other names in a rewritten body", "write the names that are needed")
        return function(*args)

    return asked


_REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    is_: is_,
    builtins.id: _id,
    builtins.isinstance: _isinstance,
    **{f: _as_text(f) for f in (builtins.repr, builtins.format, builtins.ascii)},
    **{f: _with_attributes(f) for f in (builtins.getattr, builtins.hasattr)},
    builtins.min: functools.partial(_extremum, lambda a, b: a < b, min),
    builtins.max: functools.partial(_extremum, lambda a, b: a > b, max),
    **{f: _of_names(f) for f in (builtins.locals, builtins.vars, builtins.dir)},
}

OPERATORS = types.SimpleNamespace(
    FunctionScope=FunctionScope,
    with_function_scope=with_function_scope,
    ConversionOptions=lambda **_: None,
    Feature=types.SimpleNamespace(ASSERT_STATEMENTS=None, EQUALITY_OPERATORS=None),
    STD=None,
    Undefined=Undefined,
    UndefinedReturnValue=UndefinedReturnValue,
    autograph_artifact=mark_converted,
    converted_call=call,
    ld=load,
    ldu=load_or_undefined,
    if_stmt=if_stmt,
    while_stmt=while_stmt,
    for_stmt=for_stmt,
    assert_stmt=assert_stmt,
    if_exp=if_exp,
    and_=and_,
    or_=or_,
    not_=not_,
    eq=_equal,
    not_eq=_not_equal,
    is_=is_,
)
