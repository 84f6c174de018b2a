"""What a program is: a checksum that is equal in each process if, and only if, the program computes the same.

What JAX traces is told by the program that JAX lowers, with all its constants: names and comments in the source do not
count, and every value that the function reads does. The Python functions that the program calls on the host are told by
their code, and by all that they read. What cannot be told is refused: it might change, and nobody would notice.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxpyop._batches.inputs import bytes_of
from jaxpyop._functions import closure_of, codes_in, contents_of_code, defaults_of, names_in
from jaxpyop._jaxcore import Literal, consts_of, equations_in, is_own_file, jaxpr_of, jaxprs_in
from jaxpyop._op import python_call_p


class UnknownError(Exception):
    """Something that a function on the host reads cannot be compared between processes."""


def program_digest(traced: Any, text: str) -> str:
    """Returns a checksum of what JAX compiles, of which this is the text."""
    # JAX can be set to lower constants as inputs, so that their values are not in the text.
    return _Digests().of([text, [x for x in _constants({"": traced.jaxpr}) if np.ndim(x)]]).hex()


def host_functions(traced: Any, text: str) -> dict[str, str]:
    """Returns a checksum of each Python function that a program calls for a value.

    Raises:
        UnknownError: a function, or something that it reads, has no checksum.
    """
    found: dict[str, str] = {}
    eqns = list(equations_in({"": traced.jaxpr}))
    calls = [eqn for eqn in eqns if eqn.primitive is python_call_p or "callback" in eqn.params]
    if not calls and "_callback" in text:
        raise UnknownError("a callback of another library")
    # The results do not depend on a call that has none.
    for k, eqn in enumerate(eqn for eqn in calls if eqn.outvars):
        if eqn.primitive is python_call_p:
            call, op = eqn.params["call"], eqn.params["call"].op
            options = op.vmap_method, op.casting, op.on_jax, op.out, op.step, op.fills
            title, parts = repr(call), (op.func, op.rules, options)
        else:
            callback = eqn.params["callback"]
            parts = getattr(callback, "callback_func", callback)
            title = f"{eqn.primitive} {getattr(parts, '__qualname__', '')!r}"
        try:
            found[f"{k}: {title}"] = _Digests().of(parts).hex()
        except RecursionError:
            raise UnknownError(f"{title} reads something that is nested too deeply") from None
        except UnknownError as error:
            raise UnknownError(f"{title} {error}") from None
    return found


def _constants(params: dict[str, Any]) -> Iterator[Any]:
    for closed in jaxprs_in(params):
        yield from consts_of(closed)
        for eqn in jaxpr_of(closed).eqns:
            yield from (atom.val for atom in eqn.invars if isinstance(atom, Literal))
            yield from _constants(eqn.params)


_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), slice, range)
# They differ in each process, and say nothing about what a class does.
_SKIPPED_IN_CLASSES = ("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "_abc_impl")
# What a class of C is made of. Such a class is told by its name, and by its module.
_OF_C = (
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.BuiltinFunctionType),
)


class _Digests:
    """The checksums of values, each computed once."""

    def __init__(self) -> None:
        # The value is kept too, because its identity may be that of another object once it is gone.
        self._known: dict[int, tuple[Any, bytes]] = {}

    def of(self, value: Any) -> bytes:
        """Returns the checksum of a value, a function, or an object with all that it holds."""
        if id(value) not in self._known:
            # An object that holds itself meets this entry, which says which one it is.
            self._known[id(value)] = value, f"number {len(self._known)}".encode()
            hashed = hashlib.sha256(type(value).__qualname__.encode())
            for part in self._parts(value):
                hashed.update(part if isinstance(part, memoryview) else self.of(part))
            self._known[id(value)] = value, hashed.digest()
        return self._known[id(value)][1]

    def _parts(self, value: Any) -> Iterator[Any]:
        """The parts of a value; a memoryview is hashed as it is."""
        kind = type(value)
        if kind in _PLAIN:
            yield memoryview(repr(value).encode())
        elif kind in (tuple, list):
            yield from value
        elif kind in (dict, types.MappingProxyType):
            yield from (part for item in value.items() for part in item)
        elif kind in (set, frozenset):
            # The order is another one in each process.
            yield memoryview(b"".join(sorted(map(self.of, value))))
        elif kind in (np.ndarray, np.memmap) or isinstance(value, (np.generic, jax.Array)):
            yield from _parts_of_array(value)
        elif isinstance(value, types.FunctionType):
            yield from _parts_of_function(value)
        elif isinstance(value, types.ModuleType):
            yield value.__name__ if _is_own(value.__name__) else _installed(value.__name__)
        elif isinstance(value, type):
            yield from _parts_of_class(value)
        elif isinstance(value, jax.tree_util.PyTreeDef):
            yield str(value)
        elif callable(value) and hasattr(value, "__wrapped__") and not _is_own(kind.__module__):
            yield from (kind, getattr(value, "__wrapped__"))  # noqa: B009  # types do not know it
        else:
            yield from _parts_of_object(value)


def _parts_of_array(value: Any) -> Iterator[Any]:
    yield from (str(value.dtype), value.shape)
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    yield array.tolist() if array.dtype.hasobject else bytes_of(array)


def _parts_of_function(func: types.FunctionType) -> Iterator[Any]:
    yield repr(contents_of_code(func.__code__))
    # A decorator of a library closes over the user's function.
    yield from (closure_of(func), defaults_of(func), vars(func))
    if is_own_file(func.__code__.co_filename):
        _check_imports(func.__code__)
        yield from _named(names_in(func.__code__), func.__globals__, set())
    else:
        yield _installed(func.__module__)


def _named(names: list[str], variables: dict[str, Any], seen: set[str]) -> Iterator[Any]:
    """What the names in a function's code stand for, among its globals and in the user's own modules among these."""
    for name in (name for name in names if name in variables):
        value = variables[name]
        yield from (name, value)
        if isinstance(value, types.ModuleType) and value.__name__ not in seen and _is_own(value.__name__):
            seen.add(value.__name__)
            yield from _named(names, vars(value), seen)


def _check_imports(code: types.CodeType) -> None:
    for instruction in (i for part in codes_in(code) for i in dis.get_instructions(part)):
        name = instruction.argval
        if instruction.opname == "IMPORT_NAME" and (not name or _is_own(name)):
            raise UnknownError(f"imports {name or 'a module'} when it runs (write the import at the top of the file)")


def _parts_of_class(cls: type) -> Iterator[Any]:
    yield f"{cls.__module__}.{cls.__qualname__}"
    if not _is_own(cls.__module__):
        yield _installed(cls.__module__)
        return
    yield cls.__bases__
    for name, value in sorted(vars(cls).items()):
        if isinstance(value, property):
            yield from (name, value.fget, value.fset, value.fdel)
        elif name not in _SKIPPED_IN_CLASSES and not isinstance(value, _OF_C):
            # The function inside a static or class method, or a cached property.
            yield from (name, getattr(value, "__func__", getattr(value, "func", value)))


def _parts_of_object(value: Any) -> Iterator[Any]:
    """What `pickle` and `copy` take of an object."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception as error:
        raise UnknownError(f"reads an object of type {type(value).__qualname__} ({error})") from None
    if isinstance(reduced, str):
        yield from (reduced, type(value))
        return
    func, args, *state = reduced
    yield from (func, args)
    # After the state come the items of a list, and those of a dict, which are iterators.
    yield from (part if part is None or k == 0 else list(part) for k, part in enumerate(state))


def _is_own(module: str) -> bool:
    """Whether the user wrote a module, in contrast to one that is installed."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except ValueError:
        return True  # a script, or a module that was made by hand
    if spec is None or spec.origin in ("built-in", "frozen"):
        return False
    return spec.origin is None or is_own_file(spec.origin)


@functools.lru_cache(256)
def _installed(module: str) -> str:
    """The identity of a module that is installed: its name, the version of its package, and its file if it has one."""
    version = getattr(sys.modules.get(module.partition(".")[0]), "__version__", "")
    try:
        with open(str(getattr(sys.modules.get(module), "__file__", None)), "rb") as file:
            return f"{module} {version} {hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError:
        return f"{module} {version}"
