"""Checks once whether XLA calls a kernel as expected, and makes the blocks of native calls.

The check runs a program of its own at the first use: values of three dtypes, and an error. If anything is not as
expected, no call is native, and one warning says so.
"""

from __future__ import annotations

import concurrent.futures
import functools
import importlib.util
import os
import platform
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._native.functions import Ordinary, Signature

_KNOWN = "native calls"
# Threads may make their first native calls at once, and XLA takes one handler.
_checking = threading.Lock()


def target() -> str:
    """The name of XLA's target for native calls."""
    from jaxpyop._native import frame

    return frame.TARGET


def state() -> str:
    """Say whether native calls are possible, for `doctor`."""
    if importlib.util.find_spec("numba") is None:
        return "no: Numba is not installed (the extra `native`)"
    return _why_not() or "yes: a check of XLA's calling convention passed"


def native_block(signature: Signature, fall_back: Callable[[Sequence[Any], Sequence[Any]], None]) -> Any:
    """Make the block of a native call, which its program has to keep.

    Args:
        signature: the call.
        fall_back: fills the results where the kernel cannot, and raises an error whose text XLA gets.

    Raises:
        Ordinary: the call cannot be native.
    """
    if why := _why_not():
        raise Ordinary(why)
    return _block(signature, fall_back)


def _block(signature: Signature, fall_back: Callable[[Sequence[Any], Sequence[Any]], None]) -> Any:
    # These import Numba, and a program without a function of Numba's has no use for it.
    from jaxpyop._native import frame, kernels

    frame.register()
    return frame.Block(kernels.kernel_of(signature), fall_back)


def _why_not() -> str:
    """Why no call is native; empty if calls may be."""
    with _checking:
        return _found_out()


@functools.cache
def _found_out() -> str:
    if os.environ.get("JAXPYOP_NATIVE", "1") == "0":
        return "the environment variable JAXPYOP_NATIVE is 0"
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"native calls are for x86-64, and this is {platform.machine()}"
    try:
        # On a thread of its own, where no mesh, trace or setting of the caller's is in effect.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(_check).result()
    except Exception as error:
        text = f"a check of native calls failed, so that functions of Numba's are called through Python: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
        return f"a check failed: {error}"
    return ""


def _check() -> None:
    """Run a program with a known kernel.

    Raises:
        Exception: something is not as expected.
    """
    from jaxpyop._native.frame import njit

    @njit
    def known(x: Any, n: Any, z: Any) -> Any:
        if n[0] == 0:
            raise ValueError
        return x * 2 + n[0], n + 1, z * 1j

    inputs, kinds = (("float32", 1), ("int32", 1), ("complex64", 1)), ("float32", "int32", "complex64")
    cast = lambda source, dtype: (1, 0)
    signature = Signature(known, (0, 1, 2), (), inputs, inputs, (0, 1, 2), cast)

    def fall_back(inputs: Sequence[Any], results: Sequence[Any]) -> None:
        raise ValueError(f"{_KNOWN}, {inputs[0].tolist()}")

    block = _block(signature, fall_back)
    shapes = [jax.ShapeDtypeStruct(shape, kind) for shape, kind in zip([(2,), (1,), (3,)], kinds)]
    with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.transfer_guard("allow"):
        program = jax.jit(lambda *args: jax.ffi.ffi_call(target(), shapes)(*args, block=np.int64(block.address)))
        arrays = [np.array([1.5, -2], "float32"), np.array([3], "int32"), np.array([1, 2j, 3], "complex64")]
        found = [np.asarray(x) for x in program(*arrays)]
        wanted = [arrays[0] * 2 + 3, arrays[1] + 1, arrays[2] * 1j]
        if not all(map(np.array_equal, found, wanted)) or block.runs != 1:
            raise ValueError(f"{found} came where {wanted} was expected")
        try:
            jax.block_until_ready(program(arrays[0], np.zeros(1, "int32"), arrays[2]))
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            if f"{_KNOWN}, [1.5, -2.0]" in str(error):
                return
            raise
    raise ValueError("an error did not come")
