"""The functions that users call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, Protocol, Unpack, get_args, overload

from jaxpyop._cut import CutFunction, Loops
from jaxpyop._keywords import DEFAULTS, JaxOptions, NumpyOptions, with_options
from jaxpyop._op import NOT_GIVEN, apply_or_decorate
from jaxpyop._op import clear_records as clear_records
from jaxpyop._op import explain_traced as explain_traced
from jaxpyop._op import numerical as numerical
from jaxpyop._values import padded as padded
from jaxpyop._values import static as static

_Parameters = ParamSpec("_Parameters")


class Decorator(Protocol):
    """Makes an op of a function. It takes what the function takes, and returns arrays in the structure of `Tout`."""

    def __call__(self, func: Callable[_Parameters, Any], /) -> Callable[_Parameters, Any]: ...


@overload
def py_function(
    func: Callable[..., Any], inp: Any, Tout: Any, name: str | None = None, **options: Unpack[JaxOptions]
) -> Any: ...
@overload
def py_function(*, Tout: Any, name: str | None = None, **options: Unpack[JaxOptions]) -> Decorator: ...
@with_options(JaxOptions)
def py_function(
    func: Callable[..., Any] | None = None,
    inp: Any = None,
    Tout: Any = NOT_GIVEN,
    name: str | None = None,
    **options: Any,
) -> Any:
    """Call a Python function of JAX arrays, differentiably, under any transformation.

    The counterpart of ``tf.py_function``. `func` receives concrete ``jax.Array`` values
    when the program runs. It may branch and loop on values, print, and stop in a
    debugger. Outside ``jit`` it is simply called. It is differentiable to any order, in
    forward and reverse mode, through the JAX operations that it performed. A value that
    leaves JAX, such as ``float(x)``, is a constant for the derivative.

    Args:
        func: the function, called as ``func(*inp)``. It must be neither async nor a
            generator. It must not use traced values of the enclosing code; pass them
            through `inp`.
        inp: a list or tuple of inputs, or one array. Elements may be pytrees. Arrays,
            Python numbers and typed PRNG keys become ``jax.Array`` values. Everything
            else reaches `func` unchanged.
        Tout: the declared results, always required: a dtype, an object with ``.shape``
            and ``.dtype`` (``jnp.float32(0)`` is a scalar), a TensorFlow dtype,
            :func:`jaxpyop.padded`, or a pytree of these. With ``None``, `func` runs for
            its side effects, and its return value is ignored. With ``[]``, `func` must
            return nothing.
        name: the name in errors, jaxprs and profiles. The default is the name of `func`.
        **options: as listed there.

    Returns:
        The results, as ``jax.Array`` values in the structure of `Tout`, with the declared
        dtypes. Without ``jax_enable_x64``, 64-bit dtypes become 32-bit ones. If there
        is no result, ``None`` or ``[]``, like `Tout`. Without `func` and `inp`: a
        decorator.

    Raises:
        TypeError: an argument is malformed; a result is not a number; the casting rule
            refuses a result; or `func` cannot be traced.
        ValueError: an option has an unknown value; the number, structure or shapes of the
            results differ from the declared ones; `func` closes over a traced value;
            or the op is stateful with ``mode="traced"``.
        OverflowError: an integer does not fit its dtype, as an input or a result.
        NotImplementedError: ``jax.export`` is used; the op is stateful where JAX allows
            no effects (``grad`` of ``checkpoint``, ``vmap`` of a ``cond`` whose predicate
            differs by element); or a stateful op is differentiated twice.
        RuntimeError: the record of a stateful op is gone in its backward pass (see
            ``jaxpyop.config.max_record_bytes``).
        jax.errors.JaxRuntimeError: `func` raised an exception under ``jit`` (see
            :func:`jaxpyop.reraise`). Outside ``jit`` its own exception is raised.

    Example:
        >>> import jax, jax.numpy as jnp, jaxpyop
        >>> def log_huber(x, m):
        ...     if abs(x) <= m:
        ...         return x**2
        ...     return m**2 * (1 - 2 * jnp.log(m) + jnp.log(x**2))
        >>> loss = lambda x, m: jaxpyop.py_function(log_huber, [x, m], jnp.float32)
        >>> value, slope = jax.jit(jax.value_and_grad(loss))(3.0, 2.0)
        >>> print(f"{value:.4f} {slope:.4f}")
        7.2437 2.6667
    """
    asked = filled_in(JaxOptions, options, py_function, "py_function")
    return apply_or_decorate("py_function", func, inp, Tout, name, on_jax=True, **asked)


@overload
def numpy_function(
    func: Callable[..., Any],
    inp: Any,
    Tout: Any,
    stateful: bool = False,
    name: str | None = None,
    **options: Unpack[NumpyOptions],
) -> Any: ...
@overload
def numpy_function(
    *, Tout: Any, stateful: bool = False, name: str | None = None, **options: Unpack[NumpyOptions]
) -> Decorator: ...
@with_options(NumpyOptions)
def numpy_function(
    func: Callable[..., Any] | None = None,
    inp: Any = None,
    Tout: Any = NOT_GIVEN,
    stateful: bool = False,
    name: str | None = None,
    **options: Any,
) -> Any:
    """Call a Python function of NumPy arrays under any transformation.

    The counterpart of ``tf.numpy_function``. It works like :func:`jax.pure_callback`,
    or like :func:`jax.experimental.io_callback` if it is stateful. TensorFlow's function
    is stateful by default, and this one is not. If `func` has side effects, pass
    ``stateful=True`` or use :func:`py_func`.

    Args:
        func: the function, called as ``func(*inp)``. Its arrays are private, writable
            and C-contiguous; it may change and keep them. It must be neither async nor
            a generator.
        inp: a list or tuple of inputs, or one array. Elements may be pytrees. Arrays and
            Python numbers become NumPy arrays. Typed PRNG keys become their data
            (uint32). Everything else reaches `func` unchanged.
        Tout: the declared results, always required: a dtype, an object with ``.shape``
            and ``.dtype`` (``jnp.float32(0)`` is a scalar), a TensorFlow dtype,
            :func:`jaxpyop.padded`, or a pytree of these. With ``None``, `func` runs for
            its side effects, and its return value is ignored. With ``[]``, `func` must
            return nothing.
        stateful: run `func` exactly once per execution, even if its result is unused.
        name: the name in errors, jaxprs and profiles. The default is the name of `func`.
        **options: as listed there.

    Returns:
        The results, as ``jax.Array`` values in the structure of `Tout`, with the declared
        dtypes. Without ``jax_enable_x64``, 64-bit dtypes become 32-bit ones. If there
        is no result, ``None`` or ``[]``, like `Tout`. Without `func` and `inp`: a
        decorator.

    Raises:
        TypeError: an argument is malformed; a result is not a number; or the casting
            rule refuses a result.
        ValueError: an option has an unknown value; the number, structure or shapes of the
            results differ from the declared ones; `func` closes over a traced value;
            or a backward pass needs a `vjp`.
        OverflowError: an integer does not fit its dtype, as an input or a result.
        NotImplementedError: forward mode needs a `jvp`; no rule gives a second
            derivative; ``jax.export`` is used; or the op is stateful where JAX
            allows no effects (``grad`` of ``checkpoint``, ``vmap`` of a ``cond`` whose
            predicate differs by element).
        jax.errors.JaxRuntimeError: `func` raised an exception under ``jit`` (see
            :func:`jaxpyop.reraise`). Outside ``jit`` its own exception is raised.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, jaxpyop
        >>> def median(x):
        ...     return np.median(x)
        >>> f = jax.jit(lambda x: jaxpyop.numpy_function(median, [x], jnp.float32(0)))
        >>> print(f(jnp.array([1.0, 5.0, 2.0])))
        2.0

        With a gradient, as a decorator:

        >>> @jaxpyop.numpy_function(Tout=jnp.float32, vjp=lambda x, y, ct: np.cosh(x[0]) * ct)
        ... def sinh(x):
        ...     return np.sinh(x)
        >>> print(jax.grad(sinh)(0.0))
        1.0

        Where it fails, the results are NaN, and a warning says so once:

        >>> import warnings
        >>> @jaxpyop.numpy_function(Tout=jnp.float32(0), on_error="nan")
        ... def inverse(x):
        ...     return 1 / float(x)
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     print(jax.vmap(inverse)(jnp.array([1.0, 0.0, 4.0])))
        [1.    nan 0.25]
    """
    asked = filled_in(NumpyOptions, options, numpy_function, "numpy_function") | {"stateful": stateful}
    return apply_or_decorate("numpy_function", func, inp, Tout, name, on_jax=False, **asked)


@overload
def py_func(
    func: Callable[..., Any],
    inp: Any,
    Tout: Any,
    stateful: bool = True,
    name: str | None = None,
    **options: Unpack[NumpyOptions],
) -> Any: ...
@overload
def py_func(
    *, Tout: Any, stateful: bool = True, name: str | None = None, **options: Unpack[NumpyOptions]
) -> Decorator: ...
@with_options(NumpyOptions)
def py_func(
    func: Callable[..., Any] | None = None,
    inp: Any = None,
    Tout: Any = NOT_GIVEN,
    stateful: bool = True,
    name: str | None = None,
    **options: Any,
) -> Any:
    """Call a Python function of NumPy arrays, stateful by default.

    The counterpart of ``tf.compat.v1.py_func``: :func:`numpy_function` with
    ``stateful=True``. It works like :func:`jax.experimental.io_callback`.

    Args:
        func: the function, called as ``func(*inp)``. Its arrays are private, writable
            and C-contiguous; it may change and keep them. It must be neither async nor
            a generator.
        inp: a list or tuple of inputs, or one array. Elements may be pytrees. Arrays and
            Python numbers become NumPy arrays. Typed PRNG keys become their data
            (uint32). Everything else reaches `func` unchanged.
        Tout: the declared results, always required: a dtype, an object with ``.shape``
            and ``.dtype`` (``jnp.float32(0)`` is a scalar), a TensorFlow dtype,
            :func:`jaxpyop.padded`, or a pytree of these. With ``None``, `func` runs for
            its side effects, and its return value is ignored. With ``[]``, `func` must
            return nothing.
        stateful: run `func` exactly once per execution, even if its result is unused.
            With ``False`` the compiler may drop, merge and repeat calls, as in
            TensorFlow.
        name: the name in errors, jaxprs and profiles. The default is the name of `func`.
        **options: as listed there.

    Returns:
        The results, as ``jax.Array`` values in the structure of `Tout`, with the declared
        dtypes. Without ``jax_enable_x64``, 64-bit dtypes become 32-bit ones. If there
        is no result, ``None`` or ``[]``, like `Tout`. Without `func` and `inp`: a
        decorator.

    Raises:
        TypeError: an argument is malformed; a result is not a number; or the casting
            rule refuses a result.
        ValueError: an option has an unknown value; the number, structure or shapes of the
            results differ from the declared ones; `func` closes over a traced value;
            or a backward pass needs a `vjp`.
        OverflowError: an integer does not fit its dtype, as an input or a result.
        NotImplementedError: forward mode needs a `jvp`; no rule gives a second
            derivative; ``jax.export`` is used; or the op is stateful where JAX
            allows no effects (``grad`` of ``checkpoint``, ``vmap`` of a ``cond`` whose
            predicate differs by element).
        jax.errors.JaxRuntimeError: `func` raised an exception under ``jit`` (see
            :func:`jaxpyop.reraise`). Outside ``jit`` its own exception is raised.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, jaxpyop
        >>> f = jax.jit(lambda x: jaxpyop.py_func(np.sinh, [x], jnp.float32))
        >>> print(f(jnp.array([0.0, 1.0])))
        [0.        1.1752012]
    """
    asked = filled_in(NumpyOptions, options, py_func, "py_func") | {"stateful": stateful}
    return apply_or_decorate("py_func", func, inp, Tout, name, on_jax=False, **asked)


@overload
def jit(
    fun: Callable[..., Any],
    /,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    loops: Loops = "compiled",
    **options: Any,
) -> CutFunction: ...
@overload
def jit(
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    loops: Loops = "compiled",
    **options: Any,
) -> Callable[[Callable[..., Any]], CutFunction]: ...
def jit(fun: Callable[..., Any] | None = None, /, *, loops: Loops = "compiled", **options: Any) -> Any:
    """Compile a function, cut at its Python calls: :func:`jax.jit` without callbacks.

    With :func:`jax.jit`, XLA calls Python functions from inside the program, on the CPU. A program that
    ``jaxpyop.jit`` compiles is cut into segments instead, and the Python functions run between them, on the caller's
    thread. Their arrays stay on their device, such as a GPU, as with TensorFlow's ``tf.py_function``. The backend
    needs no callbacks. A stateful call takes between a seventh and a third of its time under :func:`jax.jit`. The
    caller receives a function's own exception. ``jaxpyop.jit`` can replace :func:`jax.jit`, because it accepts the
    same arguments.

    Args:
        fun: a function of arrays. It is traced.
        loops: how a ``scan``, ``while_loop`` or ``cond`` that calls Python runs. With ``"compiled"`` it is part of a
            segment, with a callback inside. With ``"python"``, Python runs each iteration, which is cut as well. On a
            backend without callbacks, Python always runs them.
        **options: the options of :func:`jax.jit`: ``static_argnums``, ``static_argnames``, ``donate_argnums``,
            ``donate_argnames``, ``compiler_options`` and the others. With ``in_shardings``, ``out_shardings``,
            ``device`` or ``backend``, the program is not cut.

    Returns:
        A function with the methods of a function from :func:`jax.jit`: ``lower`` and ``trace`` (of the whole program,
        with callbacks), ``eval_shape`` and ``clear_cache``. Its method ``explain`` takes the same arguments as the
        function, and returns the steps of the program as text. Under a transformation, such as ``jax.grad``, the
        program is not cut. Without `fun`: a decorator.

    Raises:
        ValueError: `loops` has an unknown value.
        TypeError: :func:`jax.jit` does not have one of the options.
        NotImplementedError: the backend has no callbacks, and the program cannot be cut: for example, because of a
            call in a ``shard_map``.
        Exception: the Python function raised it. If the program is not cut, the error of :func:`jax.jit` is raised.

    Example:
        >>> import jax.numpy as jnp, jaxpyop
        >>> @jaxpyop.jit
        ... def step(x):
        ...     y = jnp.sin(x)
        ...     z = jaxpyop.py_function(lambda y: y * 2 if y > 0 else -y, [y], jnp.float32)
        ...     return z + x
        >>> x = jnp.float32(1.0)
        >>> print(step(x))
        2.682942
        >>> print(step.explain(x))
        segment: sin
        Python: lambda
        segment: add
    """
    if loops not in get_args(Loops):
        raise ValueError(f"jaxpyop.jit: loops={loops!r}; expected one of {', '.join(map(repr, get_args(Loops)))}")
    if fun is None:
        return lambda fun: CutFunction(fun, loops, options)
    if not callable(fun):
        raise TypeError(f"jaxpyop.jit: fun is {fun!r}; expected a function, as in jaxpyop.jit(fun)")
    return CutFunction(fun, loops, options)


def filled_in(table: Any, given: dict[str, Any], function: Callable[..., Any], api: str) -> dict[str, Any]:
    """All options of a table: the given ones, and the defaults of the others.

    Raises:
        TypeError: `function`, which is called `api`, does not have one of the keywords.
    """
    if unknown := given.keys() - DEFAULTS[table].keys():
        known = ", ".join(inspect.signature(function).parameters)
        raise TypeError(f"{api}() got an unexpected keyword argument {min(unknown)!r}; it has {known}")
    return DEFAULTS[table] | given
