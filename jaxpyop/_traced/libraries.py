"""Functions of libraries, as the search for shapes sees them: which may be given traced values."""

from __future__ import annotations

import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._traced.values import *

# JAX's packages of functions that have no effects, and the libraries whose models may be given traced values.
_PACKAGES, _LIBRARIES = {"numpy", "lax", "nn", "random", "scipy", "image", "ops"}, {"equinox", "flax", "haiku"}


def owner_of(f: Any) -> Any:
    """The object of a method, or the object itself."""
    return f.__self__ if isinstance(f, (types.MethodType, types.BuiltinMethodType)) else f


def is_made_for_jax(v: Any) -> bool:
    """Whether a callable may be given traced values: a compiled function, one of JAX, and a model or its method."""
    if core.is_jitted(v) or isinstance(v, (jax.custom_jvp, jax.custom_vjp)):
        return True
    if isinstance(v, types.FunctionType):
        package, *rest = v.__module__.split(".")
        return package == "jax" and not _PACKAGES.isdisjoint(rest)
    return any(module_of(c) in _LIBRARIES for c in type(owner_of(v)).__mro__)


def is_without_jax(f: types.FunctionType) -> bool:
    """Whether a function of an installed package, such as SciPy, does not know JAX."""
    if "site-packages" not in f.__code__.co_filename or f.__module__.startswith("jax"):
        return False
    return not any(v is module for v in f.__globals__.values() for module in (jax, jnp, jax.lax))


def counterpart_of(f: Any) -> Any:
    """The function of JAX that is like one of NumPy, or None."""
    is_function = isinstance(f, (type, types.FunctionType, types.BuiltinFunctionType, type(np.sum)))
    package, *modules = str(f.__module__ if is_function else "").split(".")
    names = [m for m in modules if m[0] != "_"] + [getattr(f, "__name__", "")]
    if isinstance(ufunc := owner_of(f), np.ufunc):  # such as np.add.reduce, or one of the dot product, as np.matmul
        package, names = "numpy", [ufunc.__name__, *names[-1:] * (ufunc is not f)]
    found = functools.reduce(lambda m, n: getattr(m, n, None), names, jnp) if package == "numpy" else None
    return None if found is f else found


def call_with_arrays(f: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a function of JAX, which takes no lists for arrays as NumPy does."""
    try:
        return f(*args, **kwargs)
    except TypeError:
        return f(*(jnp.asarray(x) if isinstance(x, list) else x for x in args), **kwargs)


def broadcast_of(count: int, *xs: Any) -> Any:
    out = jnp.zeros(jnp.broadcast_shapes(*map(jnp.shape, xs)))
    return out if count == 1 else (out,) * count
