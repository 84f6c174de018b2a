"""From what a user wrote to an op, and from an op to a call.

Every public function ends here: `apply` reads the arguments, once for a
decorator and at each call otherwise, and runs the op directly when no
transformation is active.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore, _primitive, _progress, _results, _spec, _traced
from jaxpyop._batching import METHODS
from jaxpyop._bodies import Op
from jaxpyop._calls import UserCall
from jaxpyop._config import config
from jaxpyop._errors import strip_library_frames
from jaxpyop._inputs import Inputs, check_closure, split


class _NotGiven:
    """Stands for an argument that was left out, where None means something."""

    def __repr__(self) -> str:
        return "<not given>"


NOT_GIVEN: Any = _NotGiven()

# ---------------------------------------------------------------- what was asked


_UNUSUAL = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def _check_func(func: Any, api: str) -> None:
    if not callable(func):
        raise TypeError(f"{api}: func must be callable, got {func!r}; write {api}(func, inp, Tout)")
    if isinstance(func, types.FunctionType) and not func.__code__.co_flags & _UNUSUAL:
        return  # the usual case, which inspect takes longer to tell
    inner = func
    while isinstance(inner, functools.partial):
        inner = inner.func
    for candidate in (inner, type(inner).__call__):
        if inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise TypeError(
                f"{api}: func is an async function, which returns before it has run; "
                "write a plain function that calls asyncio.run(...)"
            )
        if inspect.isgeneratorfunction(candidate):
            raise TypeError(f"{api}: func is a generator function; write a plain function that returns its results")


def _check_choice(value: Any, choices: Sequence[Any], name: str, api: str) -> None:
    if value not in choices:
        raise ValueError(f"{api}: {name}={value!r}; expected one of {', '.join(map(repr, choices))}")


_ONE_LIST = " (inputs go in one list, inp=[x, y])"


def _check_flag(value: Any, name: str, api: str) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{api}: {name} is {value!r}; expected True or False{_ONE_LIST}")


def _check_vjp(vjp: Any, api: str) -> None:
    if vjp is not None and not callable(vjp):
        raise TypeError(f"{api}: vjp must be a function f(inputs, outputs, cotangents), got {vjp!r}")


def _check_executor(executor: Any, vmap_method: str, api: str) -> None:
    if executor is None:
        return
    if not (hasattr(executor, "submit") or callable(executor)):
        raise TypeError(
            f"{api}: executor is {executor!r}; expected a concurrent.futures.Executor, or a function that returns one"
        )
    if vmap_method != "parallel":
        raise ValueError(
            f"{api}: executor= runs the elements of vmap_method='parallel', and here it is {vmap_method!r}"
        )


def _read_inp(inp: Any, api: str) -> Sequence[Any]:
    if isinstance(inp, (list, tuple)):
        return inp
    if isinstance(inp, (str, bytes, Mapping)) or inp is None:
        raise TypeError(f"{api}: inp is {inp!r}; expected a list of inputs, inp=[x, y] (a single pytree p: inp=[p])")
    return [inp]


def _name_of(func: Any, name: str | None) -> str:
    if name is not None:
        return name
    while isinstance(func, functools.partial):
        func = func.func
    found = getattr(func, "__name__", None) or type(func).__name__
    return "lambda" if found == "<lambda>" else found


def make_op(api: str, func: Any, tout: Any, name: Any, shapes: Any, **rest: Any) -> Op:
    """Check what the user wrote and make an op of it.

    Raises:
        TypeError: func is not callable, or async, or a generator; Tout or
            output_shapes cannot be read.
        ValueError: an option has no such value; the shapes do not fit Tout.
    """
    _check_func(func, api)
    _check_choice(rest["vmap_method"], METHODS, "vmap_method", api)
    _check_choice(rest["casting"], _results.CASTING, "casting", api)
    _check_vjp(rest.get("vjp"), api)
    _check_executor(rest["executor"], rest["vmap_method"], api)
    if rest["progress"]:
        _progress.check(api)
    if not isinstance(name, (str, type(None))):
        raise TypeError(f"{api}: name is {name!r}; expected a string{_ONE_LIST}")
    for flag in ("stateful", "ordered", "progress", "copy"):
        _check_flag(rest.get(flag, False), flag, api)
    spec = _spec.read_tout(tout, api)
    if shapes is not None and not callable(shapes):
        spec, shapes = _spec.with_shapes(spec, shapes, api), None
    # No result: nothing but the side effects is left to be called for.
    rest["stateful"] = bool(rest["stateful"] or rest["ordered"] or spec.empty)
    name = _name_of(func, name)
    return Op(api, name, func, spec, shapes, title=f"{api} {name!r}", **rest)


def run(op: Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an op with its inputs: directly, or staged into what is traced."""
    arrays, inputs = split(args, dict(kwargs), op.title)
    call = UserCall(op, inputs)
    if _jaxcore.is_eager() and not any(isinstance(a, _jaxcore.Tracer) for a in arrays):
        try:
            outs = _primitive.run_now(call, arrays)
        except BaseException as error:
            raise strip_library_frames(error, op.title)  # noqa: B904  # the same error, less our frames
    else:
        outs = _stage(op, inputs, call, arrays)
    spec = op.spec
    if spec.empty:
        return []
    return outs[0] if spec.tree is None else jax.tree.unflatten(spec.tree, outs)


def _stage(op: Op, inputs: Inputs, call: UserCall, arrays: Sequence[Any]) -> list[Any]:
    with jax.named_scope(op.name):
        if op.traced:
            return _traced.trace(op, inputs, arrays)
        check_closure(op.func, op.title)
        check_closure(op.vjp, op.title, "vjp")
        return _primitive.bind(call, *map(_strong, arrays))


def _strong(x: Any) -> Any:
    # The transpose of the conversion makes a weakly typed input's cotangent weakly typed, as JAX's are.
    return jax.lax.convert_element_type(x, x.dtype) if getattr(x, "weak_type", False) else x


def is_traced(mode: str | None, api: str, *, stateful: bool, tout: Any) -> bool:
    """Whether a py_function is to be traced.

    `config.mode` is a default for what can be traced; the argument is meant.

    Raises:
        ValueError: no such mode, or a stateful op that is to be traced.
    """
    if mode is not None:
        _check_choice(mode, ("eager", "traced"), "mode", api)
    stateful = stateful or _spec.promises_nothing(tout)
    if mode == "traced" and stateful:
        raise ValueError(
            f"{api}: a stateful op runs on the host, and mode='traced' leaves nothing to run there; pass mode='eager'"
            " (an op without a result is stateful)"
        )
    return (mode or config.mode) == "traced" and not stateful


def apply(api: str, func: Any, inp: Any, tout: Any, make: Callable[[Any], Op]) -> Any:
    """Run an op, or without `func` and `inp` return the decorator that makes one."""
    if tout is NOT_GIVEN:
        raise TypeError(
            f"{api}: Tout was not given; write {api}(func, inp, Tout=jnp.float32), or Tout=None for no result; "
            f"as a decorator, @{api}(Tout=jnp.float32)"
        )
    if func is None and inp is None:
        return _decorator(make)
    if inp is None:
        raise TypeError(f"{api}: inp was not given; write {api}(func, [x, y], Tout), or [] for a func without inputs")
    if func is None:
        raise TypeError(f"{api}: func was not given; write {api}(func, inp, Tout)")
    return run(make(func), _read_inp(inp, api), {})


def _settings() -> tuple[bool, str]:
    return _jaxcore.x64_enabled(), config.mode


def _decorator(make: Callable[[Any], Op]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        ops = {_settings(): make(func)}  # what Tout means depends on x64

        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = _settings()
            if key not in ops:
                ops[key] = make(func)
            return run(ops[key], args, kwargs)

        return wrapper

    return decorate
