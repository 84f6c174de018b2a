"""The functions that users call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, Unpack, overload

from jaxpyop._op import NOT_GIVEN, apply
from jaxpyop._op import clear_records as clear_records
from jaxpyop._op import padded as padded
from jaxpyop._options import JaxOptions, NumpyOptions, filled_in, with_options

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


@overload
def py_function(
    func: Callable[..., Any],
    inp: Any,
    Tout: Any,
    name: str | None = None,
    **options: Unpack[JaxOptions],
) -> Any: ...
@overload
def py_function(
    *,
    Tout: Any,
    name: str | None = None,
    **options: Unpack[JaxOptions],
) -> Decorator: ...
@with_options(JaxOptions)
def py_function(
    func: Callable[..., Any] | None = None,
    inp: Any = None,
    Tout: Any = NOT_GIVEN,
    name: str | None = None,
    **options: Any,
) -> Any:
    """Call a Python function of JAX arrays, differentiably, under any transformation.

    The counterpart of ``tf.py_function``. `func` gets concrete ``jax.Array``
    values and runs eagerly when the program runs, so it may branch and loop
    on values, print, and stop in a debugger. Outside ``jit`` it is simply
    called. It is differentiable to any order, in forward and reverse mode, by
    what it did: a value that was taken out with ``float(x)`` is a constant.

    Args:
        func: called as ``func(*inp)``. Not async, not a generator. It must not
            use traced values of the code around it; pass them through `inp`.
        inp: list or tuple of inputs, or one array; elements may be pytrees.
            Arrays, Python numbers and typed PRNG keys (any shape, any JAX
            dtype) become ``jax.Array``. Anything else reaches `func` as it is.
        Tout: what `func` returns, always to be given: a dtype, something with
            ``.shape`` and ``.dtype`` (``jnp.float32(0)`` is a scalar), a TensorFlow
            dtype, :func:`jaxpyop.padded`, or a pytree of these.
            ``None``: no result; `func` runs for its side effects, and what it
            returns is ignored. ``[]``: no result, and it must return none.
        name: shown in errors, jaxprs and profiles; the name of `func` by default.
        **options: of the table.

    Returns:
        ``jax.Array`` values in the structure of `Tout`, of the promised dtypes
        (64 bits only with ``jax_enable_x64``); ``None`` or ``[]``, as `Tout`, for no
        result. Without
        `func` and `inp`: a decorator, whose functions are called with the inputs.

    Raises:
        TypeError: a malformed argument; a result that is no number or that
            the casting rule refuses; a `func` that cannot be traced.
        ValueError: an option that has no such value; results of another count,
            structure or shape than promised; a traced value in a closure of
            `func`; ``mode="traced"`` of a stateful op.
        OverflowError: an integer, in or out, that does not fit its dtype.
        NotImplementedError: ``jax.export``; a stateful op where JAX allows no
            effects (``checkpoint``, ``vmap`` of ``cond``), and its second derivative.
        RuntimeError: a backward pass of a stateful op whose record is gone (see
            ``jaxpyop.config.max_records``).
        jax.errors.JaxRuntimeError: anything that `func` raises under ``jit``
            (see :func:`jaxpyop.reraise`); outside, its own exception comes out.

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
    asked = filled_in(JaxOptions, options, "py_function")
    return apply("py_function", func, inp, Tout, name, on_jax=True, **asked)


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
    *,
    Tout: Any,
    stateful: bool = False,
    name: str | None = None,
    **options: Unpack[NumpyOptions],
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

    The counterpart of ``tf.numpy_function``, with the meaning of
    :func:`jax.pure_callback`, or of :func:`jax.experimental.io_callback` when
    stateful. TensorFlow's is stateful by default, this one is not: say
    ``stateful=True`` for a function with side effects, or use :func:`py_func`.

    Args:
        func: called as ``func(*inp)`` with private, writable, C-contiguous
            arrays, which it may change or keep. Not async, not a generator.
        inp: list or tuple of inputs, or one array; elements may be pytrees.
            Arrays and Python numbers (any shape, any JAX dtype) become NumPy
            arrays, typed PRNG keys their data (uint32). Anything else reaches
            `func` as it is.
        Tout: what `func` returns, always to be given: a dtype, something with
            ``.shape`` and ``.dtype`` (``jnp.float32(0)`` is a scalar), a TensorFlow
            dtype, :func:`jaxpyop.padded`, or a pytree of these.
            ``None``: no result; `func` runs for its side effects, and what it
            returns is ignored. ``[]``: no result, and it must return none.
        stateful: run exactly once per execution, even if the result is unused.
        name: shown in errors, jaxprs and profiles; the name of `func` by default.
        **options: of the table.

    Returns:
        ``jax.Array`` values in the structure of `Tout`, of the promised dtypes
        (64 bits only with ``jax_enable_x64``); ``None`` or ``[]``, as `Tout`, for no
        result. Without
        `func` and `inp`: a decorator, whose functions are called with the inputs.

    Raises:
        TypeError: a malformed argument; a result that is no number or that
            the casting rule refuses.
        ValueError: an option that has no such value; results of another count,
            structure or shape than promised; a traced value in a closure of
            `func`; a backward pass without `vjp`.
        OverflowError: an integer, in or out, that does not fit its dtype.
        NotImplementedError: forward mode without `jvp`, a second derivative, ``jax.export``; a
            stateful op where JAX allows no effects (``checkpoint``, ``vmap`` of
            ``cond``).
        jax.errors.JaxRuntimeError: anything that `func` raises under ``jit``
            (see :func:`jaxpyop.reraise`); outside, its own exception comes out.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, jaxpyop
        >>> def median(x):
        ...     return np.median(x)
        >>> f = jax.jit(lambda x: jaxpyop.numpy_function(median, [x], jnp.float32(0)))
        >>> print(f(jnp.array([1.0, 5.0, 2.0])))
        2.0

        With a gradient, as a decorator:

        >>> @jaxpyop.numpy_function(Tout=jnp.float32, vjp=lambda x, y, ct: np.cosh(x[0]) * ct[0])
        ... def sinh(x):
        ...     return np.sinh(x)
        >>> print(jax.grad(sinh)(0.0))
        1.0
    """
    asked = filled_in(NumpyOptions, options, "numpy_function") | {"stateful": stateful}
    return apply("numpy_function", func, inp, Tout, name, on_jax=False, **asked)


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
    *,
    Tout: Any,
    stateful: bool = True,
    name: str | None = None,
    **options: Unpack[NumpyOptions],
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
    ``stateful=True``, and the meaning of :func:`jax.experimental.io_callback`.

    Args:
        func: called as ``func(*inp)`` with private, writable, C-contiguous
            arrays, which it may change or keep. Not async, not a generator.
        inp: list or tuple of inputs, or one array; elements may be pytrees.
            Arrays and Python numbers (any shape, any JAX dtype) become NumPy
            arrays, typed PRNG keys their data (uint32). Anything else reaches
            `func` as it is.
        Tout: what `func` returns, always to be given: a dtype, something with
            ``.shape`` and ``.dtype`` (``jnp.float32(0)`` is a scalar), a TensorFlow
            dtype, :func:`jaxpyop.padded`, or a pytree of these.
            ``None``: no result; `func` runs for its side effects, and what it
            returns is ignored. ``[]``: no result, and it must return none.
        stateful: run exactly once per execution, even if the result is unused.
            ``False`` lets the compiler drop, merge and repeat calls, as
            TensorFlow's does.
        name: shown in errors, jaxprs and profiles; the name of `func` by default.
        **options: of the table.

    Returns:
        ``jax.Array`` values in the structure of `Tout`, of the promised dtypes
        (64 bits only with ``jax_enable_x64``); ``None`` or ``[]``, as `Tout`, for no
        result. Without
        `func` and `inp`: a decorator, whose functions are called with the inputs.

    Raises:
        TypeError: a malformed argument; a result that is no number or that
            the casting rule refuses.
        ValueError: an option that has no such value; results of another count,
            structure or shape than promised; a traced value in a closure of
            `func`; a backward pass without `vjp`.
        OverflowError: an integer, in or out, that does not fit its dtype.
        NotImplementedError: forward mode without `jvp`, a second derivative, ``jax.export``; a
            stateful op where JAX allows no effects (``checkpoint``, ``vmap`` of
            ``cond``).
        jax.errors.JaxRuntimeError: anything that `func` raises under ``jit``
            (see :func:`jaxpyop.reraise`); outside, its own exception comes out.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, jaxpyop
        >>> f = jax.jit(lambda x: jaxpyop.py_func(np.sinh, [x], jnp.float32))
        >>> print(f(jnp.array([0.0, 1.0])))
        [0.        1.1752012]
    """
    asked = filled_in(NumpyOptions, options, "py_func") | {"stateful": stateful}
    return apply("py_func", func, inp, Tout, name, on_jax=False, **asked)
