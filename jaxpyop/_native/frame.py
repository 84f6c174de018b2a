"""The call frame of XLA's foreign function interface, read by code that Numba compiles; and the way back into Python.

XLA calls a handler with the address of a frame, whose layout its documented C header gives (`xla/ffi/api/c_api.h`). One
handler serves all kernels (`_enter`). It reads the address of a block from the call's only attribute: three words, the
address of a kernel, the number of the call, and a count of its runs. So XLA is given one target for good, and the code
of a kernel lives as long as the programs that have its block.

If a kernel cannot give a result, it calls `_fall_back`, which enters Python and has the ordinary function fill the
results, or raise its error.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

# As Any, because the types in these packages are those of Python, and these functions become machine code.
ir: Any = importlib.import_module("llvmlite.ir")
numba: Any = importlib.import_module("numba")
cgutils: Any = importlib.import_module("numba.core.cgutils")
intrinsic: Any = importlib.import_module("numba.extending").intrinsic
carray, types = numba.carray, numba.types
# What is called from machine code alone needs no wrapper that Python calls, which takes a third of the time.
njit = functools.partial(numba.njit, no_cpython_wrapper=True, no_cfunc_wrapper=True)

# The words of a frame: at which a struct of the header begins, and what is in it.
EXTENSION, API, ARGUMENTS, RESULTS, ATTRIBUTES, FRAME_WORDS = 1, 2, 9, 14, 20, 21
# The words of a buffer that hold the address of its values, and that of its sizes.
DATA, SIZES, BUFFER_WORDS = 3, 5, 6
# The words of a block.
_KERNEL, _NUMBER, _RUNS, _BLOCK_WORDS = 0, 1, 2, 3
_numbers = itertools.count(1)
# A file of programs must not find the block of another process.
TARGET = f"jaxpyop_native_{secrets.token_hex(8)}"
_INVALID = 13  # INTERNAL, an error code of XLA's


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """An integer as a pointer."""
    return types.voidptr(address), lambda context, builder, signature, args: builder.inttoptr(
        args[0], cgutils.voidptr_t
    )


@njit
def words(address: Any, count: Any) -> Any:
    """The words at an address."""
    return carray(pointer(address), count, np.int64)


@intrinsic
def buffer_at(typing_context: Any, frame_address: Any, table: Any, number: Any, axes: Any) -> Any:
    """The address of the values of a buffer, and its sizes, of which one without axes has one: a single value.

    Args:
        typing_context: Numba's own.
        frame_address: the call frame.
        table: ARGUMENTS or RESULTS.
        number: which of these.
        axes: how many axes the buffer has.
    """
    if not isinstance(axes, types.IntegerLiteral):
        return None
    count = axes.literal_value
    result = types.Tuple((types.voidptr, types.UniTuple(types.int64, max(1, count))))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, one = ir.IntType(64), ir.Constant(ir.IntType(64), 1)
        at = lambda address, k: builder.load(builder.gep(builder.inttoptr(address, word.as_pointer()), [word(k)]))
        buffer = at(at(args[0], table.literal_value), number.literal_value)
        sizes = [at(at(buffer, SIZES), axis) for axis in range(count)] or [one]
        values = builder.inttoptr(at(buffer, DATA), cgutils.voidptr_t)
        return context.make_tuple(builder, result, (values, cgutils.pack_array(builder, sizes)))

    return result(frame_address, table, number, axes), generate


@intrinsic
def _add_to_word(typing_context: Any, address: Any, number: Any) -> Any:
    """Add a number to the word at an address, whatever other threads do to it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", place, args[1], "monotonic")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _set_mode(typing_context: Any, mode: Any) -> Any:
    """Set the mode of the processor for floating-point numbers (x86's MXCSR), and return the mode before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer])
        read, write = (
            cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.sse.{name}")
            for name in ("stmxcsr", "ldmxcsr")
        )
        place = cgutils.alloca_once(builder, ir.IntType(32))
        as_bytes = builder.bitcast(place, byte_pointer)
        builder.call(read, [as_bytes])
        before = builder.load(place)
        is_kept = builder.icmp_signed("<", args[0], ir.Constant(ir.IntType(64), 0))
        # Bit 15 flushes results to zero, and bit 6 operands.
        usual = builder.and_(before, ir.Constant(ir.IntType(32), 0xFFFF7FBF))
        builder.store(builder.select(is_kept, usual, builder.trunc(args[0], ir.IntType(32))), place)
        builder.call(write, [as_bytes])
        return builder.zext(before, ir.IntType(64))

    return types.int64(types.int64), generate


# The functions that kernels call, by their numbers in the code of kernels.
_overloads: weakref.WeakValueDictionary[int, Overload] = weakref.WeakValueDictionary()


class Overload:
    """What Numba compiled a function to for some types, and Python would call for inputs of these types.

    Args:
        compiled: Numba's own object, whose library has the machine code.

    Attributes:
        number: refers to it in the code of a kernel.
    """

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.number = next(_numbers)
        _overloads[self.number] = self


@intrinsic
def call_overload(typing_context: Any, number: Any, args: Any) -> Any:
    """Call an overload by its number: tells whether it raised, and what it returned, which then is all zeros.

    It is called by its address, so that LLVM cannot compile it again into the kernel. There, a function with `fastmath`
    or `inline` would round differently than in Python.
    """
    if not isinstance(number, types.IntegerLiteral):
        return None
    compiled = _overloads[number.literal_value].compiled
    wanted, returned = compiled.signature.args, compiled.signature.return_type
    result = types.Tuple((types.boolean, returned))

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address = ir.Constant(ir.IntType(64), address_of(compiled))
        triples = zip(cgutils.unpack_tuple(builder, values[1]), args, wanted)
        given = [() if isinstance(to, types.Omitted) else context.cast(builder, x, is_, to) for x, is_, to in triples]
        return context.make_tuple(builder, result, _called(context, builder, address, returned, wanted, given))

    return result(number, args), generate


@intrinsic
def _call_kernel(typing_context: Any, address: Any, frame_address: Any) -> Any:
    """Call a kernel by its address; returns 0 if it gave its results."""
    wanted = (types.int64,)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        raised, status = _called(context, builder, args[0], types.int64, wanted, args[1:])
        return builder.or_(status, builder.zext(raised, ir.IntType(64)))

    return types.int64(types.int64, types.int64), generate


def _called(context: Any, builder: Any, address: Any, returned: Any, wanted: Any, given: Any) -> tuple[Any, Any]:
    """Generate the call of a function of Numba's: whether it raised, and what it returned."""
    kind = context.call_conv.get_function_type(returned, wanted)
    function = builder.inttoptr(address, kind.as_pointer())
    status, found = context.call_conv.call_function(builder, function, returned, wanted, given)
    return builder.not_(status.is_ok), found


def address_of(compiled: Any) -> int:
    """The address of the machine code of what Numba compiled."""
    return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)


# Passed to `_set_mode`: the mode as it is, with the smallest numbers.
_USUAL_MODE = -1


def _enter(frame_address: Any) -> Any:
    frame = words(frame_address, FRAME_WORDS)
    if frame[EXTENSION] != 0:
        # XLA asks for the version of the interface, which is that of its own table.
        words(words(frame[EXTENSION], 4)[3], 4)[3] = words(frame[API], 5)[4]
        return 0
    attribute = words(words(frame[ATTRIBUTES], 1)[0], 2)[1]
    block = words(attribute, 1)[0]
    mode = _set_mode(_USUAL_MODE)
    status = _call_kernel(words(block, _BLOCK_WORDS)[_KERNEL], frame_address)
    _set_mode(mode)
    if status != 0:
        return _fall_back(frame_address)
    _add_to_word(block + 8 * _RUNS, 1)
    return 0


class Block:
    """What a program has of a native call.

    Args:
        kernel: the compiled kernel, with its address as an attribute.
        fall_back: fills results from inputs, both given as NumPy arrays in the memory of XLA, and raises an error whose
            text XLA gets.

    Attributes:
        words: what the handler reads.
    """

    def __init__(self, kernel: Any, fall_back: Callable[[Sequence[Any], Sequence[Any]], None]) -> None:
        self.kernel = kernel
        self.fall_back = fall_back
        number = next(_numbers)
        self.words = np.array([kernel.address, number, 0], np.int64)
        _blocks[number] = self

    def __reduce__(self) -> Any:
        # JAX pickles what a program keeps if it writes the program to a file, where the address would stay.
        raise TypeError("a program with a native call holds addresses of this process; save it by jaxpyop.export")

    def fill(self, inputs: Sequence[np.ndarray[Any, Any]], results: Sequence[np.ndarray[Any, Any]]) -> bool:
        """Call the kernel as XLA does, on arrays in C order, without Python's lock; tells whether it filled them."""
        frame = (ctypes.c_int64 * FRAME_WORDS)()
        tables = [_table(inputs), _table(results)]
        frame[ARGUMENTS], frame[RESULTS] = (ctypes.addressof(addresses) for addresses, _ in tables)
        return _caller()(self.kernel.address, ctypes.addressof(frame)) == 0

    @property
    def address(self) -> int:
        """The attribute of the call."""
        return self.words.ctypes.data

    @property
    def runs(self) -> int:
        """How often the kernel ran."""
        return int(self.words[_RUNS])


_blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()


def _table(arrays: Sequence[np.ndarray[Any, Any]]) -> tuple[Any, Any]:
    """The addresses of the buffers of arrays, and what has to be kept for them to be valid."""
    sizes = [(ctypes.c_int64 * array.ndim)(*array.shape) for array in arrays]
    buffers = (ctypes.c_int64 * BUFFER_WORDS * len(arrays))()
    for buffer, array, size in zip(buffers, arrays, sizes):
        buffer[DATA], buffer[SIZES] = array.ctypes.data, ctypes.addressof(size)
    return (ctypes.c_int64 * len(arrays))(*map(ctypes.addressof, buffers)), (buffers, sizes)


@functools.cache
def _caller() -> Any:
    call = lambda address, frame_address: _call_kernel(address, frame_address)
    handler = numba.cfunc(types.int64(types.int64, types.int64), nopython=True)(call)
    _kept.append(handler)
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(handler.address)


# The dtypes of XLA that Numba has, by their numbers in the header.
_dtypes = {1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64"}
_dtypes |= {11: "float32", 12: "float64", 15: "complex64", 18: "complex128"}


def _words_at(address: int, count: int) -> Any:
    return (ctypes.c_int64 * count).from_address(address)


def _arrays(addresses: int, count: int) -> list[np.ndarray[Any, Any]]:
    found: list[Any] = []
    for address in _words_at(addresses, count) if count else ():
        buffer = _words_at(address, BUFFER_WORDS)
        dtype = np.dtype(_dtypes[buffer[2] & 0xFFFFFFFF])
        rank = buffer[4]
        shape = tuple(_words_at(buffer[SIZES], rank)) if rank else ()
        memory: Any = (ctypes.c_char * (int(np.prod(shape)) * dtype.itemsize)).from_address(buffer[DATA] or 1)
        found.append(np.frombuffer(memory, dtype).reshape(shape))
    return found


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
def _fall_back(frame_address: int) -> int:
    """Have Python fill the results of a call; returns the address of an error, or 0."""
    frame = _words_at(frame_address, FRAME_WORDS)
    try:
        attribute = _words_at(_words_at(frame[ATTRIBUTES], 1)[0], 2)[1]
        block = _blocks[_words_at(_words_at(attribute, 1)[0], _BLOCK_WORDS)[_NUMBER]]
        inputs = _arrays(frame[ARGUMENTS], frame[ARGUMENTS - 2])
        block.fall_back(inputs, _arrays(frame[RESULTS], frame[RESULTS - 2]))
    except BaseException as error:
        return _error_of(frame[API], str(error))
    return 0


def _error_of(api: int, text: str) -> int:
    message = ctypes.create_string_buffer(text.encode())
    create = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(_words_at(api, 8)[6])
    arguments = (ctypes.c_int64 * 4)(32, 0, ctypes.addressof(message), _INVALID)
    return create(ctypes.addressof(arguments))


@functools.cache
def register() -> None:
    """Register the handler with XLA, once."""
    handler = numba.cfunc(types.int64(types.int64), nopython=True)(_enter)
    _kept.append(handler)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(ctypes.c_void_p(handler.address)), platform="cpu")


_kept: list[Any] = []
