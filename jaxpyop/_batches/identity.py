"""What a program is, in a form that is equal in each process exactly if the program computes the same.

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

from jaxpyop._functions import closure_of, codes_in, contents_of_code, defaults_of, names_in, without_partials
from jaxpyop._jaxcore import Literal, consts_of, equations_in, is_own_file, jaxpr_of, jaxprs_in
from jaxpyop._op import python_call_p

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), slice, range)
# They have a new identity in each process, and say nothing about what a class does.
_SKIPPED_IN_CLASSES = ("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "_abc_impl")


# What classes of C are made of: they are told by their names.
_OF_C = (
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.BuiltinFunctionType),
)


class UnknownError(Exception):
    """Something that a function on the host reads cannot be compared between processes."""


def program_digest(traced: Any, lowered: Any) -> str:
    """Returns a checksum of what JAX compiles."""
    # JAX can be set to lower constants as inputs, so that their values are not in the text.
    values = [x for x in _constants({"": traced.jaxpr}) if np.ndim(x)]
    return _Digests().of([lowered.as_text(), values]).hex()


def host_functions(traced: Any, lowered: Any) -> dict[str, str]:
    """Returns a checksum of each Python function that a program calls for a value.

    Raises:
        UnknownError: a function, or something that it reads, has no checksum.
    """
    found: dict[str, str] = {}
    calls = [
        eqn for eqn in equations_in({"": traced.jaxpr}) if eqn.primitive is python_call_p or "callback" in eqn.params
    ]
    if not calls and "_callback" in lowered.as_text():
        raise UnknownError("a callback of another library")
    # The results do not depend on a call that has none.
    for k, eqn in enumerate(eqn for eqn in calls if eqn.outvars):
        if eqn.primitive is python_call_p:
            call, op = eqn.params["call"], eqn.params["call"].op
            title, parts = repr(call), (op.func, op.rules, op.casting, op.step, op.fills, op.on_jax)
        else:
            callback = eqn.params["callback"]
            parts = getattr(callback, "callback_func", callback)
            title = f"{eqn.primitive} {getattr(without_partials(parts), '__name__', parts)!r}"
        try:
            found[f"{k}: {title}"] = _Digests().of(parts).hex()
        except RecursionError:
            raise UnknownError(f"{title}: what it reads holds itself") from None
        except UnknownError as error:
            raise UnknownError(f"{title}: {error}") from None
    return found


def _constants(params: dict[str, Any]) -> Iterator[Any]:
    for closed in jaxprs_in(params):
        yield from consts_of(closed)
        for eqn in jaxpr_of(closed).eqns:
            yield from (atom.val for atom in eqn.invars if isinstance(atom, Literal))
            yield from _constants(eqn.params)


class _Digests:
    """The checksums of values, each computed once."""

    def __init__(self) -> None:
        # The value is kept too, because its identity may be that of another object once it is gone.
        self._known: dict[int, tuple[Any, bytes]] = {}

    def of(self, value: Any) -> bytes:
        """Returns the checksum of a value, a function, or an object with all that it holds."""
        if id(value) not in self._known:
            # An object that holds itself meets this entry.
            self._known[id(value)] = value, b"itself"
            hashed = hashlib.sha256(type(value).__qualname__.encode())
            for part in self._parts(value):
                hashed.update(part if isinstance(part, memoryview) else self.of(part))
            self._known[id(value)] = value, hashed.digest()
        return self._known[id(value)][1]

    def _parts(self, value: Any) -> Iterator[Any]:
        """The parts of a value; a memoryview is hashed as it is."""
        if type(value) in _PLAIN:
            yield memoryview(repr(value).encode())
        elif type(value) in (tuple, list):
            yield from value
        elif type(value) in (dict, types.MappingProxyType):
            for item in value.items():
                yield from item
        elif type(value) in (set, frozenset):
            # The order is another one in each process.
            yield memoryview(b"".join(sorted(map(self.of, value))))
        elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
            yield from _parts_of_array(value)
        elif isinstance(value, types.FunctionType):
            yield from _parts_of_function(value)
        elif isinstance(value, types.MethodType):
            yield from (value.__func__, value.__self__)
        elif isinstance(value, types.ModuleType):
            yield memoryview(value.__name__.encode() if _is_own(value.__name__) else _installed(value.__name__))
        elif isinstance(value, type):
            yield from _parts_of_class(value)
        elif isinstance(value, jax.tree_util.PyTreeDef):
            yield memoryview(str(value).encode())
        elif callable(value) and hasattr(value, "__wrapped__"):
            yield from (type(value), value.__wrapped__)
        else:
            yield from _parts_of_object(value)


def _parts_of_array(value: Any) -> Iterator[Any]:
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        yield str(value.dtype)
        value = jax.random.key_data(value)
    array = np.asarray(value)
    yield from (str(array.dtype), array.shape)
    if array.dtype.hasobject:
        yield array.tolist()
    else:
        yield memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _parts_of_function(func: types.FunctionType) -> Iterator[Any]:
    yield repr(contents_of_code(func.__code__))
    # A decorator of a library closes over the user's function.
    yield from (closure_of(func), defaults_of(func))
    if is_own_file(func.__code__.co_filename):
        _check_imports(func.__code__)
        yield from _named(names_in(func.__code__), func.__globals__, set())
    else:
        yield memoryview(_installed(func.__module__))


def _named(names: list[str], variables: dict[str, Any], seen: set[str]) -> Iterator[Any]:
    """What the names in a function's code stand for, among its globals and in the user's own modules among these."""
    for name in (name for name in names if name in variables):
        value = variables[name]
        yield from (name, value)
        if isinstance(value, types.ModuleType) and value.__name__ not in seen and _is_own(value.__name__):
            seen.add(value.__name__)
            yield from _named(names, vars(value), seen)


def _check_imports(code: types.CodeType) -> None:
    """Refuses a function that imports a module of the user's own when it runs: what it takes from there is not seen."""
    for instruction in (i for part in codes_in(code) for i in dis.get_instructions(part)):
        if instruction.opname == "IMPORT_NAME" and (not instruction.argval or _is_own(instruction.argval)):
            raise UnknownError(
                f"it imports {instruction.argval or 'a relative module'} when it runs; write the import at the top of "
                "its module"
            )


def _parts_of_class(cls: type) -> Iterator[Any]:
    yield f"{cls.__module__}.{cls.__qualname__}"
    if not _is_own(cls.__module__):
        yield memoryview(_installed(cls.__module__))
        return
    yield cls.__bases__
    for name, value in sorted(vars(cls).items()):
        if isinstance(value, property):
            yield from (name, value.fget, value.fset, value.fdel)
        elif isinstance(value, functools.cached_property):
            yield from (name, value.func)
        elif name not in _SKIPPED_IN_CLASSES and not isinstance(value, _OF_C):
            yield from (name, getattr(value, "__func__", value))


def _parts_of_object(value: Any) -> Iterator[Any]:
    """What `pickle` and `copy` take of an object."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception as error:
        raise UnknownError(f"it reads an object of type {type(value).__qualname__} ({error})") from None
    if isinstance(reduced, str):
        yield from (reduced, type(value))
        return
    func, args, *state = reduced
    yield from (func, args)
    # The items of a list and of a dict, which are iterators.
    yield from (part if part is None or k == 0 else list(part) for k, part in enumerate(state))


def _is_own(module: str) -> bool:
    """Whether the user wrote a module, in contrast to one that is installed."""
    if module == "__main__":
        return True
    root = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        # A module that was made by hand.
        return True
    if spec is None or spec.origin in ("built-in", "frozen"):
        return spec is None and root in sys.modules
    return any(map(is_own_file, [spec.origin] if spec.origin else spec.submodule_search_locations or []))


@functools.lru_cache(256)
def _installed(module: str) -> bytes:
    """The identity of a module that is installed: its name, the version of its package, and its file if it has one."""
    version = getattr(sys.modules.get(module.partition(".")[0]), "__version__", "")
    try:
        with open(str(getattr(sys.modules.get(module), "__file__", None)), "rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
    except OSError:
        content = b""
    return hashlib.sha256(f"{module} {version}".encode() + content).digest()
