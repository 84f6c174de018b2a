"""From a function that Numba compiled, and the types of its inputs and results, to a kernel that XLA calls.

A kernel is a Numba function that reads XLA's call frame, loops over the elements of a batch, gives the function copies
of its inputs, checks what it returns, and stores it. Its source is written for the types. Numba compiles the function
for just the types with which Python would call it, so that both give the same values, bit by bit.

What is not possible raises `Ordinary`, which says why; the call then takes the ordinary way through Python.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import weakref
from typing import Any

import numpy as np

from jaxpyop._native import frame
from jaxpyop._native.frame import carray, njit, types
from jaxpyop._native.functions import Filled, Ordinary, Signature, Zeros, is_ufunc

numba: Any = importlib.import_module("numba")
_dtypes: Any = importlib.import_module("numba.np.numpy_support")
as_dtype, from_dtype = _dtypes.as_dtype, _dtypes.from_dtype

# By their signatures and overloads. A function that is recompiled has other overloads.
_kernels: weakref.WeakValueDictionary[Any, Kernel] = weakref.WeakValueDictionary()
# LLVM does not give back the memory of machine code, about half a megabyte for each kernel, which a program that makes
# a new function at each step would run out of.
_MOST_KERNELS = 1000
_numbers = itertools.count()


@dataclasses.dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Kernel:
    """The code that XLA calls.

    Attributes:
        code: what Numba compiled it to.
        overload: the function that it calls.
    """

    code: Any
    overload: Any

    @property
    def address(self) -> int:
        return frame.address_of(self.code)


def kernel_of(signature: Signature) -> Kernel:
    """Compile the kernel of a signature. Equal signatures share it while they are used.

    Raises:
        Ordinary: the function cannot be called without Python.
    """
    try:
        if is_ufunc(signature.func):
            # The loop that Numba compiled for NumPy does not tell that an element raised. The function inside it gives
            # other numbers where LLVM promises none, such as np.uint8(300.0), because a loop has vector instructions.
            raise Ordinary("numba.vectorize or guvectorize made it for NumPy; use numba.njit, and jax.vmap or a loop")
        compiled, args = _overload_of(signature)
        # Not `get_llvm_str`, which has nothing of a function that Numba loaded from its cache.
        code = str(compiled.library._get_module_for_linking())
        if "numba_parallel_for" in code:
            raise Ordinary("it runs on threads of Numba's (parallel=True), which one caller at a time may use")
        if "PyObject_CallFunctionObjArgs" in code or "PySys_FormatStdout" in code:
            # There it would find neither the context variables of the caller, nor JAX's settings.
            raise Ordinary("it enters Python itself (numba.objmode, print)")
        key = signature, id(compiled.library)
        if (kernel := _kernels.get(key)) is None:
            kernel = _kernels[key] = _compiled(signature, compiled, args)
    except Ordinary:
        raise
    except Exception as error:
        # What Python says of it, the ordinary way says.
        raise Ordinary(f"Numba does not compile it: {str(error).strip().partition(_NEW_LINE)[0]}") from None
    return kernel


_NEW_LINE = "\n"


@dataclasses.dataclass(frozen=True, slots=True)
class _Omitted:
    """An argument that has its default."""

    default: Any


def _overload_of(signature: Signature) -> tuple[Any, tuple[Any, ...]]:
    """Find the overload that Python would call, and its arguments, in order."""
    func = signature.func
    # With the defaults of the time when it was decorated, which Numba knows.
    signature_of_func = func._compiler.pysig
    given = signature_of_func.bind(*signature.args, **dict(signature.kwargs)).arguments
    args: tuple[Any, ...] = ()
    for name, parameter in signature_of_func.parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise Ordinary("it has keyword-only parameters, whose defaults Numba does not know in Python")
        absent = () if parameter.kind is parameter.VAR_POSITIONAL else _Omitted(parameter.default)
        args += (given.get(name, absent),)
    kinds = tuple(_type_of(signature, part) for part in args)
    if func._can_compile:
        func.compile(kinds)
    # A function of given types takes its arrays in any layout, which makes no difference. It also converts numbers, and
    # chooses among several types, by rules that differ in Python.
    same = [found for types_, found in func.overloads.items() if all(map(_are_alike, kinds, types_))]
    compiled = func.overloads.get(kinds) or (same[0] if len(same) == 1 else None)
    if compiled is None or compiled.objectmode:
        raise Ordinary(f"it is not compiled for just the types ({', '.join(map(str, kinds))})")
    return compiled, args


def _type_of(signature: Signature, part: Any) -> Any:
    """Numba's type of an argument, as Python would pass it."""
    if isinstance(part, tuple):
        return types.BaseTuple.from_types([_type_of(signature, one) for one in part])
    if isinstance(part, _Omitted):
        return types.Omitted(part.default)
    if isinstance(part, Filled):
        dtype, rank = signature.results[part.number]
        return types.Array(from_dtype(np.dtype(dtype)), rank, "C")
    if not isinstance(part, (int, Zeros)):
        return numba.typeof(part.value)
    dtype, rank = signature.inputs[part.like if isinstance(part, Zeros) else part]
    scalar, is_lent = from_dtype(np.dtype(dtype)), isinstance(part, int) and not signature.copy
    return types.Array(scalar, rank, "C", readonly=is_lent) if rank else scalar


def _are_alike(given: Any, wanted: Any) -> bool:
    """Tell whether two types are the same but for the layout of an array."""
    if not isinstance(given, types.Array) or not isinstance(wanted, types.Array):
        return given == wanted
    pairs = (given.dtype, given.ndim, given.mutable), (wanted.dtype, wanted.ndim, wanted.mutable)
    return pairs[0] == pairs[1] and wanted.layout in "CA"


def _call_text(signature: Signature, args: tuple[Any, ...], overload: Any, scope: dict[str, Any]) -> str:
    """The call of the function, as text, which sets e and y. The arrays are called x0, x1 and so on."""

    def text(part: Any) -> str:
        if isinstance(part, tuple):
            return f"({''.join(text(one) + ', ' for one in part)})"
        if isinstance(part, int):
            return f"x{part}"
        if isinstance(part, Filled):
            return f"w{part.number}"
        if isinstance(part, Zeros):
            dtype, rank = signature.inputs[part.like]
            return f"zeros_like(x{part.like})" if rank else f"d_{dtype}(0)"
        if isinstance(part, _Omitted) or part.value is None:
            return "None"
        name = f"c{len(scope)}"
        scope[name] = part.value
        return name

    return f"e, y = call_overload({overload.number}, {text(args)})"


def _compiled(signature: Signature, compiled: Any, args: tuple[Any, ...]) -> Kernel:
    if next(_numbers) >= _MOST_KERNELS:
        raise Ordinary(f"{_MOST_KERNELS} kernels were compiled in this process, whose memory Numba keeps")
    scope = {"carray": carray, "buffer_at": frame.buffer_at}
    scope |= {"call_overload": frame.call_overload, "zeros_like": np.zeros_like}
    overload = frame.Overload(compiled)
    lines = ["def run(frame_address):"]
    axes = signature.axes
    for k, (dtype, rank) in enumerate(signature.inputs):
        lines += _array("a", frame.ARGUMENTS, k, dtype, rank + sum(mask[k] for mask in signature.masks), scope)
    for k, (dtype, rank) in enumerate(signature.results):
        lines += _array("o", frame.RESULTS, k, dtype, rank + axes, scope)
    indent = "    "
    for axis in range(axes):
        lines.append(f"{indent}for i{axis} in range(o0.shape[{axis}]):")
        indent += "    "
    body = [*_inputs_of_element(signature), *_memory_of_element(signature)]
    body += [_call_text(signature, args, overload, scope), "if e:", "    return 1"]
    for k, part, kind in _returned_parts(signature.returns, "y", compiled.signature.return_type):
        body += _store(signature, k, part, kind, scope)
    lines += [indent + line for line in body]
    lines.append("    return 0")
    exec("\n".join(lines), scope)
    run = njit(scope["run"])
    run.compile((types.int64,))
    return Kernel(run.overloads[types.int64,], overload)


def _array(name: str, table: int, k: int, dtype: str, rank: int, scope: dict[str, Any]) -> list[str]:
    """The lines that make an array of a buffer of the frame. One without axes gets an axis of size 1."""
    scope[f"d_{dtype}"] = np.dtype(dtype).type
    return [
        f"    values, sizes = buffer_at(frame_address, {table}, {k}, {rank})",
        f"    {name}{k} = carray(values, sizes, d_{dtype})",
    ]


def _inputs_of_element(signature: Signature) -> list[str]:
    lines: list[str] = []
    for k, (_, rank) in enumerate(signature.inputs):
        own = [f"i{axis}" for axis, mask in enumerate(signature.masks) if mask[k]]
        index = f"[{', '.join(own)}]" if own else "" if rank else "[0]"
        # The function may write into what it gets.
        lines.append(f"x{k} = a{k}{index}{'.copy()' if rank and signature.copy else ''}")
    return lines


def _memory_of_element(signature: Signature) -> list[str]:
    """The lines that make the arrays that the function fills, if it does: w0, w1 and so on."""
    lines: list[str] = []
    for k, (dtype, rank) in enumerate(signature.results if signature.returns is None else ()):
        index = [f"i{axis}" for axis in range(signature.axes)]
        whole = f"o{k}[{', '.join(index)}]" if index else f"o{k}"
        if not rank:
            *outer, last = index or ["0"]
            whole = f"o{k}[{', '.join([*outer, f'{last}:{last} + 1'])}].reshape(())"
        lines += [f"w{k} = {whole}", f"w{k}[...] = d_{dtype}(0)"]
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
        check, value = _cast(signature, part, kind, dtype, is_python=True)
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
