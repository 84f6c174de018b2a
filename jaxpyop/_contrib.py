"""``contrib.framework.py_func``: keyword arguments and nested structures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxpyop._api import Pool, Vjp
from jaxpyop._batching import VmapMethod
from jaxpyop._ops import make_op, run
from jaxpyop._results import Casting


def py_func(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    output_types: Any = None,
    output_shapes: Any = None,
    stateful: bool = True,
    name: str | None = None,
    *,
    ordered: bool = False,
    vmap_method: VmapMethod = "sequential",
    executor: Pool | None = None,
    progress: bool = False,
    casting: Casting = "same_kind",
    vjp: Vjp | None = None,
    copy: bool = True,
) -> Any:
    """Call a Python function with keyword arguments and nested structures.

    The counterpart of ``tf.contrib.framework.py_func`` of TensorFlow 1:
    :func:`jaxpyop.py_func` of pytrees. It is no decorator.

    Args:
        func: called as ``func(*args, **kwargs)`` with NumPy arrays, in the
            pytrees that `args` and `kwargs` have; as for :func:`jaxpyop.numpy_function`.
        args: positional arguments; elements may be pytrees.
        kwargs: keyword arguments; values may be pytrees.
        output_types: pytree of dtypes, as `Tout` of :func:`jaxpyop.numpy_function`.
            By default no result: `func` runs for its side effects.
        output_shapes: a shape per leaf of `output_types`, in its structure;
            as for :func:`jaxpyop.numpy_function`.
        stateful: as for :func:`jaxpyop.py_func`.
        name: as for :func:`jaxpyop.numpy_function`.
        ordered: as for :func:`jaxpyop.numpy_function`.
        vmap_method: as for :func:`jaxpyop.numpy_function`.
        executor: as for :func:`jaxpyop.numpy_function`.
        progress: as for :func:`jaxpyop.numpy_function`.
        casting: as for :func:`jaxpyop.numpy_function`.
        vjp: as for :func:`jaxpyop.numpy_function`; its inputs are all array
            leaves of `args`, then those of `kwargs` by sorted name.
        copy: as for :func:`jaxpyop.numpy_function`.

    Returns:
        ``jax.Array`` values in the structure of `output_types`; ``[]`` for no result.

    Raises:
        TypeError: as :func:`jaxpyop.numpy_function`.
        ValueError: as :func:`jaxpyop.numpy_function`.
        OverflowError: as :func:`jaxpyop.numpy_function`.
        NotImplementedError: as :func:`jaxpyop.numpy_function`.
        jax.errors.JaxRuntimeError: as :func:`jaxpyop.numpy_function`.

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
    options = {"stateful": stateful, "ordered": ordered, "vmap_method": vmap_method, "casting": casting}
    options |= {"executor": executor, "progress": progress}
    op = make_op(api, func, output_types, name, output_shapes, on_jax=False, vjp=vjp, copy=copy, **options)
    return run(op, args, kwargs or {})
