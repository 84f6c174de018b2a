"""Functions of `numba.vectorize` and `numba.guvectorize`, called once for each element of a loop.

NumPy calls such a function in a loop that Numba compiled for NumPy, in which nobody learns that an element raised. So
the kernel has the loop itself, over the axes that the inputs have beyond those that the function takes, and calls the
function behind it. The values are the same, because both round alike unless Numba was told to be quick (`fastmath`).
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._native.functions import Filled, Ordinary, Signature, is_element_wise

numba: Any = importlib.import_module("numba")
from_dtype: Any = importlib.import_module("numba.np.numpy_support").from_dtype


def by_elements(signature: Signature) -> tuple[Signature, Any, tuple[Any, ...]]:
    """Turn a call of a ufunc into one of the function behind it, with more axes that the kernel loops over.

    Returns:
        The signature of the function, what Numba compiled it to, and its arguments.

    Raises:
        Ordinary: NumPy has to call it.
    """
    func, count = signature.func, len(signature.inputs)
    if signature.args != tuple(range(count)) or signature.kwargs:
        raise Ordinary("a ufunc is native with arrays alone")
    options = func.targetoptions if is_element_wise(func) else func.gufunc_builder.targetoptions
    if options.get("fastmath") or numba.core.config.USING_SVML:
        raise Ordinary("a loop for NumPy may round differently than the function itself (fastmath, SVML)")
    dtypes = [np.dtype(dtype) for dtype, _ in (*signature.inputs, *signature.results)]
    if is_element_wise(func):
        compiled = _element_wise(func, dtypes[:count])
        takes, gives, args, returns = ((),) * count, ((),), signature.args, signature.returns
    else:
        builder = func.gufunc_builder
        takes, gives = tuple(builder.sin), tuple(builder.sout)
        compiled, found = _generalized(func, dtypes[:count])
        forms = [tuple(range(len(gives))), *([0] if len(gives) == 1 else [])]
        if signature.returns not in forms or found != dtypes:
            raise Ordinary("its results are declared with other dtypes, or in another form")
        args, returns = (*signature.args, *(Filled(k, not core) for k, core in enumerate(gives))), None
    if compiled.objectmode:
        raise Ordinary("Numba compiled it to calls of Python")
    masks = (*signature.masks, *_masks(signature.shapes, takes, gives))
    kinds = tuple((dtype.name, len(core)) for dtype, core in zip(dtypes, (*takes, *gives)))
    changes = {"args": args, "returns": returns, "inputs": kinds[:count], "results": kinds[count:], "masks": masks}
    # A generalized one is known not to write its inputs, and the other gets numbers.
    return dataclasses.replace(signature, **changes, copy=False, shapes=()), compiled, args


def _resolved(func: Any, dtypes: list[np.dtype[Any]]) -> list[np.dtype[Any]]:
    """The dtypes of the loop that NumPy chooses, those of its results included."""
    if len(dtypes) != func.ufunc.nin:
        raise Ordinary(f"it takes {func.ufunc.nin} arrays")
    found = list(func.ufunc.resolve_dtypes((*dtypes, *[None] * func.ufunc.nout)))
    if found[: len(dtypes)] != dtypes:
        raise Ordinary(f"NumPy would convert its inputs to {', '.join(map(str, found[: len(dtypes)]))}")
    return found


def _element_wise(func: Any, dtypes: list[np.dtype[Any]]) -> Any:
    """What Numba compiled a function of `numba.vectorize` to, for dtypes of inputs."""
    kinds = tuple(map(from_dtype, dtypes))
    try:
        _resolved(func, dtypes)
    except TypeError:
        # As a call in Python would do now.
        func.add(kinds)
        _resolved(func, dtypes)
    return _only(compiled for known, compiled in func._dispatcher.overloads.items() if known.args == kinds)


def _generalized(func: Any, dtypes: list[np.dtype[Any]]) -> tuple[Any, list[np.dtype[Any]]]:
    """The same of `numba.guvectorize`, with the dtypes of its results."""
    builder = func.gufunc_builder
    if func.is_dynamic or builder.writable_args:
        raise Ordinary("it is compiled by its calls, or writes into its inputs")
    found = _resolved(func, dtypes)
    kinds = [from_dtype(dtype) for dtype in found]
    dtype_of = lambda kind: getattr(kind, "dtype", kind)
    compiled = _only(one for known, one in builder._cres.items() if [*map(dtype_of, known.args)] == kinds)
    args, takes = compiled.signature.args, (*builder.sin, *builder.sout)
    # A result that is a single number is an array of size 1.
    ranks = [len(core) or int(k >= len(dtypes)) for k, core in enumerate(takes)]
    if [getattr(kind, "ndim", 0) for kind in args] != ranks:
        raise Ordinary("it takes single numbers as arrays")
    # NumPy gives the same memory to several calls, which would see what another one wrote into it.
    kept = [kind.copy(readonly=True) if getattr(kind, "ndim", 0) else kind for kind in args[: len(dtypes)]]
    numba.njit(builder.py_func).compile((*kept, *args[len(dtypes) :]))
    return compiled, found


def _masks(shapes: Sequence[tuple[int, ...]], takes: Sequence[Any], gives: Sequence[Any]) -> Any:
    """Which inputs have which of the axes that the kernel loops over, as in `Signature`, by the rules of NumPy."""
    sizes: dict[Any, int] = {}
    outer: list[tuple[int, ...]] = []
    for shape, core in zip(shapes, takes):
        own = shape[len(shape) - len(core) :]
        if len(own) != len(core) or any(sizes.setdefault(name, size) != size for name, size in zip(core, own)):
            raise Ordinary("the shapes of its inputs do not fit together")
        outer.append(shape[: len(shape) - len(core)])
    try:
        whole = np.broadcast_shapes(*outer)
    except ValueError:
        raise Ordinary("the shapes of its inputs do not fit together") from None
    if any(shape != (*whole, *[sizes.get(n) for n in core]) for shape, core in zip(shapes[len(takes) :], gives)):
        raise Ordinary("its results are declared with other shapes")

    def has(own: tuple[int, ...], axis: int) -> bool | None:
        place = axis - len(whole) + len(own)
        return place >= 0 and (own[place] == whole[axis] or None)

    return tuple(tuple(has(own, axis) for own in outer) for axis in range(len(whole)))


def _only(found: Any) -> Any:
    candidates = list(found)
    if len(candidates) != 1:
        raise Ordinary("Numba compiled it several times for these dtypes")
    return candidates[0]
