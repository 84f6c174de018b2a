"""The functions that users call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeAlias, overload

from jaxpyop._batching import VmapMethod
from jaxpyop._bodies import Op
from jaxpyop._config import Mode
from jaxpyop._ops import NOT_GIVEN, apply, is_traced, make_op
from jaxpyop._results import Casting

Pool: TypeAlias = Executor | Callable[[], Executor]
Vjp: TypeAlias = Callable[[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]], Any]  # inputs, outputs, cotangents
Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


@overload
def py_function(
    func: Callable[..., Any],
    inp: Any,
    Tout: Any,
    name: str | None = None,
    *,
    output_shapes: Any = None,
    stateful: bool = False,
    ordered: bool = False,
    vmap_method: VmapMethod = "sequential",
    executor: Pool | None = None,
    progress: bool = False,
    casting: Casting = "same_kind",
    mode: Mode | None = None,
) -> Any: ...
@overload
def py_function(
    *,
    Tout: Any,
    name: str | None = None,
    output_shapes: Any = None,
    stateful: bool = False,
    ordered: bool = False,
    vmap_method: VmapMethod = "sequential",
    executor: Pool | None = None,
    progress: bool = False,
    casting: Casting = "same_kind",
    mode: Mode | None = None,
) -> Decorator: ...
def py_function(
    func: Callable[..., Any] | None = None,
    inp: Any = None,
    Tout: Any = NOT_GIVEN,
    name: str | None = None,
    *,
    output_shapes: Any = None,
    stateful: bool = False,
    ordered: bool = False,
    vmap_method: VmapMethod = "sequential",
    executor: Pool | None = None,
    progress: bool = False,
    casting: Casting = "same_kind",
    mode: Mode | None = None,
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
            ``.shape`` and ``.dtype``, a TensorFlow dtype, or a pytree of these.
            ``None`` or ``[]``: no result; `func` runs for its side effects.
        name: shown in errors, jaxprs and profiles; the name of `func` by default.
        output_shapes: a shape per leaf of `Tout`, in its structure, where
            ``None`` stands for an unknown dimension; or a function of the
            inputs' ``jax.ShapeDtypeStruct`` that returns that. Under ``jit``
            shapes that are not given are found by evaluating `func` abstractly,
            and else assumed to be the inputs' broadcast shape.
        stateful: run exactly once per execution, even if the result is unused.
        ordered: stateful, and in program order among ordered ops.
        vmap_method: ``"sequential"`` calls `func` per element;
            ``"expand_dims"`` and ``"broadcast_all"`` once per batch, as in
            :func:`jax.pure_callback`; ``"parallel"`` per element on `executor`.
        executor: for ``"parallel"``: any ``concurrent.futures.Executor``, or a
            function that returns one; threads by default. For processes `func`
            must be picklable, and what it does to its surroundings stays there.
        progress: show a progress bar for the batches of ``"sequential"`` and
            ``"parallel"`` (tqdm, the extra ``progress``).
        casting: NumPy's casting rule from returned to promised floating and
            complex dtypes. Integers go to any integer dtype in which they fit.
        mode: ``"eager"``, or ``"traced"``: under a transformation `func` is
            traced into the program instead of being called at run time, with
            an ``if`` on values as ``lax.cond``, for up to 128 paths. No host
            call is left, XLA places the work, and `func` may use traced values
            of the code around it. It cannot use ``float(x)``, NumPy, or loops
            that depend on values, and has no side effects: `stateful` and
            `ordered` are errors. `vmap_method`, `executor` and `progress` have
            no part in it, and an integer dtype must fit by its range, as no
            value is known. By default ``jaxpyop.config.mode``, which leaves
            stateful ops eager.

    Returns:
        ``jax.Array`` values in the structure of `Tout`, of the promised dtypes
        (64 bits only with ``jax_enable_x64``); ``[]`` for no result. Without
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

    def make(f: Any) -> Op:
        options = {"stateful": stateful, "ordered": ordered, "vmap_method": vmap_method, "casting": casting}
        options |= {"executor": executor, "progress": progress}
        traced = is_traced(mode, "py_function", stateful=stateful or ordered, tout=Tout)
        return make_op("py_function", f, Tout, name, output_shapes, on_jax=True, traced=traced, **options)

    return apply("py_function", func, inp, Tout, make)


@overload
def numpy_function(
    func: Callable[..., Any],
    inp: Any,
    Tout: Any,
    stateful: bool = False,
    name: str | None = None,
    *,
    output_shapes: Any = None,
    ordered: bool = False,
    vmap_method: VmapMethod = "sequential",
    executor: Pool | None = None,
    progress: bool = False,
    casting: Casting = "same_kind",
    vjp: Vjp | None = None,
    copy: bool = True,
) -> Any: ...
@overload
def numpy_function(
    *,
    Tout: Any,
    stateful: bool = False,
    name: str | None = None,
    output_shapes: Any = None,
    ordered: bool = False,
    vmap_method: VmapMethod = "sequential",
    executor: Pool | None = None,
    progress: bool = False,
    casting: Casting = "same_kind",
    vjp: Vjp | None = None,
    copy: bool = True,
) -> Decorator: ...
def numpy_function(
    func: Callable[..., Any] | None = None,
    inp: Any = None,
    Tout: Any = NOT_GIVEN,
    stateful: bool = False,
    name: str | None = None,
    *,
    output_shapes: Any = None,
    ordered: bool = False,
    vmap_method: VmapMethod = "sequential",
    executor: Pool | None = None,
    progress: bool = False,
    casting: Casting = "same_kind",
    vjp: Vjp | None = None,
    copy: bool = True,
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
        Tout: what `func` returns; as for :func:`py_function`.
        stateful: run exactly once per execution, even if the result is unused.
        name: shown in errors, jaxprs and profiles; the name of `func` by default.
        output_shapes: as for :func:`py_function`, except that nothing is
            evaluated: under ``jit`` shapes that are not given are assumed to be
            the inputs' broadcast shape, which is right for elementwise functions.
        ordered: stateful, and in program order among ordered ops.
        vmap_method: as for :func:`py_function`.
        executor: as for :func:`py_function`.
        progress: as for :func:`py_function`.
        casting: as for :func:`py_function`.
        vjp: the gradient: ``f(inputs, outputs, cotangents)`` takes tuples of
            NumPy arrays and returns one cotangent per array input, ``None`` for
            zero; shapes and dtypes are those of the inputs. Complex cotangents
            follow :func:`jax.vjp`. Without it a backward pass is an error.
        copy: ``False`` hands out read-only views without a copy, which must
            not be kept after the call.

    Returns:
        As :func:`py_function`.

    Raises:
        TypeError: as :func:`py_function`, tracing aside.
        ValueError: as :func:`py_function`; a backward pass without `vjp`.
        OverflowError: as :func:`py_function`.
        NotImplementedError: forward mode, a second derivative, ``jax.export``; a
            stateful op where JAX allows no effects.
        jax.errors.JaxRuntimeError: as :func:`py_function`.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, jaxpyop
        >>> def median(x):
        ...     return np.median(x)
        >>> f = jax.jit(lambda x: jaxpyop.numpy_function(median, [x], jnp.float32, output_shapes=()))
        >>> print(f(jnp.array([1.0, 5.0, 2.0])))
        2.0

        With a gradient, as a decorator:

        >>> @jaxpyop.numpy_function(Tout=jnp.float32, vjp=lambda x, y, ct: np.cosh(x[0]) * ct[0])
        ... def sinh(x):
        ...     return np.sinh(x)
        >>> print(jax.grad(sinh)(0.0))
        1.0
    """

    def make(f: Any) -> Op:
        options = {"stateful": stateful, "ordered": ordered, "vmap_method": vmap_method, "casting": casting}
        options |= {"executor": executor, "progress": progress}
        return make_op("numpy_function", f, Tout, name, output_shapes, on_jax=False, vjp=vjp, copy=copy, **options)

    return apply("numpy_function", func, inp, Tout, make)


@overload
def py_func(
    func: Callable[..., Any],
    inp: Any,
    Tout: Any,
    stateful: bool = True,
    name: str | None = None,
    *,
    output_shapes: Any = None,
    ordered: bool = False,
    vmap_method: VmapMethod = "sequential",
    executor: Pool | None = None,
    progress: bool = False,
    casting: Casting = "same_kind",
    vjp: Vjp | None = None,
    copy: bool = True,
) -> Any: ...
@overload
def py_func(
    *,
    Tout: Any,
    stateful: bool = True,
    name: str | None = None,
    output_shapes: Any = None,
    ordered: bool = False,
    vmap_method: VmapMethod = "sequential",
    executor: Pool | None = None,
    progress: bool = False,
    casting: Casting = "same_kind",
    vjp: Vjp | None = None,
    copy: bool = True,
) -> Decorator: ...
def py_func(
    func: Callable[..., Any] | None = None,
    inp: Any = None,
    Tout: Any = NOT_GIVEN,
    stateful: bool = True,
    name: str | None = None,
    *,
    output_shapes: Any = None,
    ordered: bool = False,
    vmap_method: VmapMethod = "sequential",
    executor: Pool | None = None,
    progress: bool = False,
    casting: Casting = "same_kind",
    vjp: Vjp | None = None,
    copy: bool = True,
) -> Any:
    """Call a Python function of NumPy arrays, stateful by default.

    The counterpart of ``tf.compat.v1.py_func``: :func:`numpy_function` with
    ``stateful=True``.

    Args:
        func: as for :func:`numpy_function`.
        inp: as for :func:`numpy_function`.
        Tout: as for :func:`numpy_function`.
        stateful: run exactly once per execution. ``False`` lets the compiler
            drop, merge and repeat calls, as TensorFlow's does.
        name: as for :func:`numpy_function`.
        output_shapes: as for :func:`numpy_function`.
        ordered: as for :func:`numpy_function`.
        vmap_method: as for :func:`numpy_function`.
        executor: as for :func:`numpy_function`.
        progress: as for :func:`numpy_function`.
        casting: as for :func:`numpy_function`.
        vjp: as for :func:`numpy_function`.
        copy: as for :func:`numpy_function`.

    Returns:
        As :func:`numpy_function`.

    Raises:
        TypeError: as :func:`numpy_function`.
        ValueError: as :func:`numpy_function`.
        OverflowError: as :func:`numpy_function`.
        NotImplementedError: as :func:`numpy_function`.
        jax.errors.JaxRuntimeError: as :func:`numpy_function`.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, jaxpyop
        >>> f = jax.jit(lambda x: jaxpyop.py_func(np.sinh, [x], jnp.float32))
        >>> print(f(jnp.array([0.0, 1.0])))
        [0.        1.1752012]
    """

    def make(f: Any) -> Op:
        options = {"stateful": stateful, "ordered": ordered, "vmap_method": vmap_method, "casting": casting}
        options |= {"executor": executor, "progress": progress}
        return make_op("py_func", f, Tout, name, output_shapes, on_jax=False, vjp=vjp, copy=copy, **options)

    return apply("py_func", func, inp, Tout, make)
