"""``contrib.framework.py_func``: keyword arguments and nested structures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from jaxpyop._api import filled_in
from jaxpyop._keywords import ContribOptions, with_options
from jaxpyop._op import call_op, make_op


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
    :func:`jaxpyop.py_func` of pytrees. It is not a decorator.

    Args:
        func: the function, called as ``func(*args, **kwargs)``. Its arrays are private,
            writable and C-contiguous; it may change and keep them. It must be neither
            async nor a generator.
        args: the positional arguments, which may be pytrees. Arrays and Python numbers
            become NumPy arrays. Typed PRNG keys become their data (uint32). Everything
            else reaches `func` unchanged.
        kwargs: the keyword arguments. Their values are treated like `args`.
        output_types: the declared results: a dtype, an object with ``.shape`` and
            ``.dtype`` (``jnp.float32(0)`` is a scalar), a TensorFlow dtype,
            :func:`jaxpyop.padded`, or a pytree of these. By default `func` runs for its
            side effects, and its return value is ignored.
        output_shapes: the shapes of the results, in the structure of `output_types`.
            ``None`` stands for an unknown dimension. A function of the inputs'
            ``jax.ShapeDtypeStruct`` may return the shapes. Under ``jit``, the broadcast
            shape of the inputs is assumed for shapes that you do not specify, and
            checked. It is right for elementwise functions.
        stateful: run `func` exactly once per execution, even if its result is unused.
            With ``False`` the compiler may drop, merge and repeat calls.
        name: the name in errors, jaxprs and profiles. The default is the name of `func`.
        **options: as listed there.

    Returns:
        The results, as ``jax.Array`` values in the structure of `output_types`, with
        the declared dtypes. Without ``jax_enable_x64``, 64-bit dtypes become 32-bit
        ones. If there is no result, ``None`` or ``[]``, like `output_types`.

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
    asked = filled_in(ContribOptions, dict(options), py_func, api)
    when = asked.pop("when")
    op = make_op(api, func, output_types, name, output_shapes=output_shapes, stateful=stateful, on_jax=False, **asked)
    return call_op(op, args, kwargs or {}, when)
