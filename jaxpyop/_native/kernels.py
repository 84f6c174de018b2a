"""From a function that Numba compiled, and the types of its inputs and results, to a kernel that XLA calls.

A kernel is a Numba function that reads XLA's call frame, loops over the elements of a batch, gives the function copies
of its inputs, checks what it returns, and stores it. Its source is written for the types. Numba compiles the function
for just the types with which Python would call it, so that both give the same values, bit by bit.

What is not possible raises `Ordinary`, which says why; the call then takes the ordinary way through Python.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

from jaxpyop._native import frame
from jaxpyop._native.frame import carray, cfunc, njit, types
from jaxpyop._native.functions import Ordinary, Signature, is_element_wise

NumbaError: Any = importlib.import_module("numba.core.errors").NumbaError
_dtypes: Any = importlib.import_module("numba.np.numpy_support")
as_dtype, from_dtype = _dtypes.as_dtype, _dtypes.from_dtype


@functools.lru_cache(maxsize=256)
def kernel_of(signature: Signature) -> Any:
    """Compile the kernel of a signature. Equal signatures share it while they are used.

    Raises:
        Ordinary: the function cannot be called without Python.
    """
    try:
        returned = _return_type(signature)
        kernel = _compiled(signature, returned)
    except NumbaError as error:
        raise Ordinary(f"Numba does not compile it: {str(error).strip().splitlines()[0]}") from None
    if "numba_parallel_for" in kernel._library.get_llvm_str():
        raise Ordinary("it runs on threads of Numba's (parallel=True), which one caller at a time may use")
    return kernel


def _types_of(signature: Signature) -> list[Any]:
    """Numba's types of the arrays that the function gets, as Python would pass them."""
    found: list[Any] = []
    for dtype, rank in signature.inputs:
        scalar = from_dtype(np.dtype(dtype))
        found.append(types.Array(scalar, rank, "C", readonly=not signature.copy) if rank else scalar)
    return found


def _call_text(signature: Signature, constants: dict[str, Any]) -> str:
    """The call of the function, as text. The arrays are called x0, x1 and so on."""

    def text(part: Any) -> str:
        if isinstance(part, tuple):
            return f"({''.join(text(one) + ', ' for one in part)})"
        if isinstance(part, int):
            return f"x{part}"
        name = f"c{len(constants)}"
        constants[name] = part.value
        return "None" if part.value is None else name

    args = [text(part) for part in signature.args]
    args += [f"{name}={text(part)}" for name, part in signature.kwargs]
    return f"f({', '.join(args)})"


def _return_type(signature: Signature) -> Any:
    """Numba's type of what the function returns."""
    scope: dict[str, Any] = {"f": signature.func}
    names = ", ".join(f"x{k}" for k in range(len(signature.inputs)))
    call = _call_text(signature, scope)
    exec(f"def probe({names}):\n    return {call}", scope)
    probe = njit(scope["probe"])
    probe.compile(tuple(_types_of(signature)))
    return next(iter(probe.overloads.values())).signature.return_type


def _compiled(signature: Signature, returned: Any) -> Any:
    scope: dict[str, Any] = {"f": signature.func, "words": frame.words, "carray": carray, "pointer": frame.pointer}
    lines = ["def run(frame_address):", f"    frame = words(frame_address, {frame.FRAME_WORDS})"]
    lines += [f"    args = words(frame[{frame.ARGUMENTS}], {max(1, len(signature.inputs))})"]
    lines += [f"    rets = words(frame[{frame.RESULTS}], {len(signature.results)})"]
    axes = signature.axes
    for k, (dtype, rank) in enumerate(signature.inputs):
        lines += _array("a", "args", k, dtype, rank + sum(mask[k] for mask in signature.masks), scope)
    for k, (dtype, rank) in enumerate(signature.results):
        lines += _array("o", "rets", k, dtype, rank + axes, scope)
    indent = "    "
    for axis in range(axes):
        lines.append(f"{indent}for i{axis} in range(o0.shape[{axis}]):")
        indent += "    "
    body = [*_inputs_of_element(signature), f"y = {_call_text(signature, scope)}"]
    for k, part, kind in _returned_parts(signature.returns, "y", returned):
        body += _store(signature, k, part, kind, scope)
    lines += [indent + line for line in body]
    lines.append("    return 0")
    exec("\n".join(lines), scope)
    run, fall_back, set_mode, usual = njit(scope["run"]), frame.fall_back, frame.set_mode, frame.USUAL_MODE
    words, add_to_word, attributes, runs = frame.words, frame.add_to_word, frame.ATTRIBUTES, 8 * frame.RUNS
    count = frame.FRAME_WORDS

    def kernel(frame_address: Any) -> Any:
        status = 1
        mode = set_mode(usual)
        try:
            status = run(frame_address)
        except Exception:
            status = 1
        set_mode(mode)
        if status != 0:
            return fall_back(frame_address)
        block = words(words(words(words(frame_address, count)[attributes], 1)[0], 2)[1], 1)[0]
        add_to_word(block + runs, 1)
        return 0

    return cfunc(types.int64(types.int64), nopython=True)(kernel)


def _array(name: str, table: str, k: int, dtype: str, rank: int, scope: dict[str, Any]) -> list[str]:
    """The lines that make an array of a buffer of the frame. One without axes gets an axis of size 1."""
    scope[f"d_{dtype}"] = np.dtype(dtype).type
    lines = [f"    b = words({table}[{k}], {frame.BUFFER_WORDS})"]
    shape = "(1,)"
    if rank:
        lines.append(f"    s = words(b[{frame.SIZES}], {rank})")
        shape = f"({''.join(f's[{axis}], ' for axis in range(rank))})"
    return [*lines, f"    {name}{k} = carray(pointer(b[{frame.DATA}]), {shape}, d_{dtype})"]


def _inputs_of_element(signature: Signature) -> list[str]:
    lines: list[str] = []
    for k, (_, rank) in enumerate(signature.inputs):
        own = [f"i{axis}" for axis, mask in enumerate(signature.masks) if mask[k]]
        index = f"[{', '.join(own)}]" if own else "" if rank else "[0]"
        # The function may write into what it gets.
        lines.append(f"x{k} = a{k}{index}{'.copy()' if rank and signature.copy else ''}")
    return lines


def _returned_parts(template: Any, text: str, kind: Any) -> list[tuple[int, str, Any]]:
    """The number of each result, with the text of the part of what the function returns, and its type."""
    if isinstance(template, int):
        return [(template, text, kind)] if template >= 0 else []
    if template is None:
        if not isinstance(kind, types.NoneType):
            raise Ordinary(f"it returns {kind} where nothing is declared")
        return []
    if len(template) == 1 and not isinstance(kind, types.BaseTuple):
        # As in TensorFlow, x stands for [x].
        return _returned_parts(template[0], text, kind)
    if isinstance(kind, types.NoneType):
        return [(k, text, kind) for part in template for k, _, _ in _returned_parts(part, text, kind)]
    if not isinstance(kind, types.BaseTuple) or isinstance(kind, types.BaseNamedTuple) or len(kind) != len(template):
        raise Ordinary(f"it returns {kind}, which is not a tuple of {len(template)}")
    pairs = enumerate(zip(template, kind))
    return [found for i, (part, inner) in pairs for found in _returned_parts(part, f"{text}[{i}]", inner)]


def _store(signature: Signature, k: int, part: str, kind: Any, scope: dict[str, Any]) -> list[str]:
    """The lines that check a part of what the function returned, and store it as result `k`."""
    dtype, rank = signature.results[k]
    axes = [f"i{axis}" for axis in range(signature.axes)]
    whole = f"o{k}[{', '.join(axes)}]" if axes else f"o{k}"
    if isinstance(kind, types.NoneType) and signature.is_rule:
        return _filled(whole, f"d_{dtype}(0)", k, rank, axes)
    if isinstance(kind, (types.Number, types.Boolean)):
        check, value = _cast(signature, part, kind, dtype, is_python=not is_element_wise(signature.func))
        if rank and not signature.is_rule:
            raise Ordinary("it returns a number where an array is declared")
        return [*check, *_filled(whole, value, k, rank, axes)]
    if not isinstance(kind, types.Array) or kind.ndim != rank:
        raise Ordinary(f"it returns {kind}, where an array with {rank} axes is declared")
    if not rank:
        check, value = _cast(signature, f"{part}[()]", kind.dtype, dtype)
        return [*check, *_filled(whole, value, k, rank, axes)]
    check, value = _cast(signature, "v", kind.dtype, dtype)
    lines = [f"o, z = {whole}, {part}", "if z.shape != o.shape:", "    return 1"]
    places = [f"t{axis}" for axis in range(rank)]
    # Plain loops: `numpy.ndindex` takes longer than the functions of a small array.
    lines += [f"{'    ' * axis}for {place} in range(z.shape[{axis}]):" for axis, place in enumerate(places)]
    at = ", ".join(places)
    inner = [f"v = z[{at}]", *check, f"o[{at}] = {value}"]
    return [*lines, *("    " * rank + line for line in inner)]


def _filled(whole: str, value: str, k: int, rank: int, axes: list[str]) -> list[str]:
    if rank:
        return [f"{whole}[...] = {value}"]
    return [f"o{k}[{', '.join(axes) or '0'}] = {value}"]


def _cast(signature: Signature, text: str, kind: Any, dtype: str, is_python: bool = False) -> tuple[list[str], str]:
    """The lines that check a number, and its text in the declared dtype."""
    source: Any = as_dtype(kind)
    if is_python:
        # Numba hands numbers over as Python's own.
        source = {"b": bool, "i": int, "u": int, "f": float, "c": complex}[source.kind]
    least, most = signature.cast(source, np.dtype(dtype))
    check: list[str] = []
    if least <= most:
        check = [f"if {text} < {least} or {text} > {most}:", "    return 1"]
    return check, f"d_{dtype}({text})"
