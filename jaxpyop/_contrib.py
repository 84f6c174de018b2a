"""``contrib.framework.py_func``: keyword arguments and nested structures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from jaxpyop._op import make_op, run
from jaxpyop._options import ContribOptions, filled_in, with_options


@with_options(ContribOptions)
def py_func(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    output_types: Any = None,
    output_shapes: Any = None,
    stateful: bool = True,
    name: str | None = None,
    **options: Unpack[ContribOptions],
) -> Any:
    """Call a Python function with keyword arguments and nested structures.

    The counterpart of ``tf.contrib.framework.py_func`` of TensorFlow 1:
    :func:`jaxpyop.py_func` of pytrees. It is no decorator.

    Args:
        func: called as ``func(*args, **kwargs)`` in the pytrees that `args` and
            `kwargs` have, with private, writable, C-contiguous arrays, which it
            may change or keep. Not async, not a generator.
        args: positional arguments; elements may be pytrees. Arrays and Python
            numbers (any shape, any JAX dtype) become NumPy arrays, typed PRNG
            keys their data (uint32). Anything else reaches `func` as it is.
        kwargs: keyword arguments; values may be pytrees, read likewise.
        output_types: what `func` returns: a dtype, something with ``.shape``
            and ``.dtype`` (``jnp.float32(0)`` is a scalar), a TensorFlow dtype,
            :func:`jaxpyop.padded`, or a pytree of these. By default no result:
            `func` runs for its side effects, and what it returns is ignored.
        output_shapes: a shape per leaf of `output_types`, in its structure,
            where ``None`` stands for an unknown dimension; or a function of the
            inputs' ``jax.ShapeDtypeStruct`` that returns that. Under ``jit``
            shapes that are not given are assumed to be the inputs' broadcast
            shape, which is right for elementwise functions.
        stateful: run exactly once per execution, even if the result is unused.
            ``False`` lets the compiler drop, merge and repeat calls.
        name: shown in errors, jaxprs and profiles; the name of `func` by default.
        **options: of the table.

    Returns:
        ``jax.Array`` values in the structure of `output_types`, of the promised dtypes
        (64 bits only with ``jax_enable_x64``); ``None`` for no result.

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
        >>> import jax.numpy as jnp, jaxpyop
        >>> def scale(batch, *, by):
        ...     return {"x": batch["x"] * by, "n": len(batch["x"])}
        >>> out = jaxpyop.contrib.framework.py_func(
        ...     scale, args=[{"x": jnp.arange(3.0)}], kwargs={"by": 2.0},
        ...     output_types={"x": jnp.float32, "n": jnp.int32},
        ...     output_shapes={"x": (3,), "n": ()},
        ... )
        >>> print(out["x"], out["n"])
        [0. 2. 4.] 3
    """
    api = "contrib.framework.py_func"
    if not isinstance(args, (list, tuple)):
        raise TypeError(f"{api}: args is {args!r}; expected a list or tuple of arguments, args=[x, y]")
    if kwargs is not None and not isinstance(kwargs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{api}: kwargs is {kwargs!r}; expected a dict of keyword arguments")
    asked = filled_in(ContribOptions, dict(options), api)
    when = asked.pop("when")
    op = make_op(api, func, output_types, name, output_shapes=output_shapes, stateful=stateful, on_jax=False, **asked)
    return run(op, args, kwargs or {}, when)
