"""`jaxpyop.export` and `jaxpyop.load`: from a function to a file, and back."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import jax
import jax.export

from jaxpyop import _dtypes, _jaxcore
from jaxpyop._cut import CutFunction, Loops, holds_call
from jaxpyop._saved.call_as_data import CallsToData, calls_from_data
from jaxpyop._saved.file_format import check_type, packed, structs_from_data, unpacked
from jaxpyop._saved.function_names import Names, changed_functions, check_functions, find_functions
from jaxpyop._saved.plan_as_data import Loader, Saver
from jaxpyop._saved.structures import structure_from_data, structure_to_data
from jaxpyop._values import without_weak_type


@dataclasses.dataclass(frozen=True, eq=False, repr=False, slots=True)
class Exported:
    """A program that `jaxpyop.export` serialized.

    Attributes:
        functions: the names of the Python functions that the program calls.
    """

    _name: str
    functions: tuple[str, ...]
    _data: bytes

    def to_bytes(self) -> bytes:
        """Return the program as bytes, for :func:`jaxpyop.load`."""
        return self._data

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to a file, for :func:`jaxpyop.load`."""
        pathlib.Path(path).write_bytes(self._data)

    def __repr__(self) -> str:
        return f"<jaxpyop.export of {self._name}: {len(self._data)} bytes, calls {', '.join(self.functions)}>"


def export(
    fun: Callable[..., Any],
    /,
    *,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    loops: Loops = "compiled",
    platforms: Sequence[str] | None = None,
    vjp_order: int = 0,
    disabled_checks: Sequence[Any] = (),
) -> Callable[..., Exported]:
    """Save a program that calls Python functions, so that another process can load and run it.

    :func:`jax.export.export` refuses a program with callbacks. This function cuts the program at its Python calls, as
    :func:`jaxpyop.jit` does. :mod:`jax.export` serializes the segments, and the calls between them are stored as
    data. A Python function is stored by name, not by its code, and the process that loads the program must have it.

    A function that a module defines has a name already. A lambda, a function inside a function or a class, an object or
    a function of ``__main__`` needs one: :func:`jaxpyop.register`, or `functions`. The package ``flatbuffers`` must be
    installed.

    Args:
        fun: a function of arrays, or what :func:`jax.jit` or :func:`jaxpyop.jit` returned for one.
        functions: names for Python functions, which are needed again as `functions` of :func:`jaxpyop.load`.
        loops: how the loaded program runs loops that call Python, as in :func:`jaxpyop.jit`.
        platforms: the platforms on which the program can run, as in :func:`jax.export.export`.
        vjp_order: how often the loaded program can be differentiated in reverse mode. The default is never.
        disabled_checks: as in :func:`jax.export.export`.

    Returns:
        A function that takes the arguments of `fun`, or ``jax.ShapeDtypeStruct`` objects in place of arrays. It
        returns an object with the methods ``to_bytes()`` and ``save(path)``, and with the names of the functions that
        are called, ``functions``.

    Raises:
        ValueError: something cannot be saved, such as a function without a name, or an input that is not plain data.
        ImportError: ``flatbuffers`` is not installed.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, jaxpyop
        >>> def step(x):
        ...     return jnp.sin(jaxpyop.numpy_function(np_median, [x], jnp.float32(0)))
        >>> def np_median(x):
        ...     return np.median(x)
        >>> saved = jaxpyop.export(step, functions={"median": np_median})(jnp.ones(3))
        >>> saved.functions
        ('median',)
        >>> loaded = jaxpyop.load(saved.to_bytes(), functions={"median": np_median})
        >>> print(loaded(jnp.array([1.0, 5.0, 2.0])))
        0.9092974
    """
    _refuse_if_portable("export")
    given = check_functions(functions, "jaxpyop.export")
    if not callable(fun):
        raise TypeError(f"jaxpyop.export: fun is {fun!r}; expected a function, as in jaxpyop.export(fun)(x)")
    if loops not in get_args(Loops):
        raise ValueError(f"jaxpyop.export: loops={loops!r}; expected one of {', '.join(map(repr, get_args(Loops)))}")
    if isinstance(platforms, str):
        raise TypeError(f"jaxpyop.export: platforms={platforms!r}; expected a list of names, such as ['cpu', 'cuda']")
    if type(vjp_order) is not int or vjp_order < 0:
        raise ValueError(f"jaxpyop.export: vjp_order is {vjp_order!r}; expected 0, 1 or more")

    def write_segment(function: Callable[..., Any], avals: Sequence[Any]) -> bytes:
        exporting = jax.export.export(jax.jit(function), platforms=platforms, disabled_checks=disabled_checks)
        return bytes(exporting(*avals).serialize(vjp_order=vjp_order))

    def write(*args: Any, **kwargs: Any) -> Exported:
        compiled: Any = fun if hasattr(fun, "trace") else jax.jit(fun)
        traced = compiled.trace(*args, **kwargs)
        if vjp_order:
            _check_rules(traced.jaxpr)
        names, name = Names(given), str(getattr(fun, "__name__", "function"))
        saver = Saver(CallsToData(names), write_segment, bool(vjp_order))
        program = saver.program(traced.jaxpr)
        plan = {
            "name": name,
            "x64": _dtypes.x64_enabled(),
            "loops": loops,
            "vjp_order": vjp_order,
            "arguments": _structure_to_data(jax.tree.structure(traced.args_info), names, "an argument"),
            "names": _jaxcore.names_of_inputs(traced.jaxpr),
            "results": _structure_to_data(traced.out_tree, names, "the result"),
            "functions": names.data,
            "calls": saver.calls.data,
            "program": program,
        }
        return Exported(
            name, tuple(entry["name"] for entry in names.data if "fields" not in entry), packed(plan, saver.blobs)
        )

    return write


def _check_rules(closed: Any) -> None:
    """Refuse a program in which a primitive with its own derivative rule holds a Python call."""
    for eqn in _jaxcore.equations_in({"program": closed}):
        if eqn.primitive.name.startswith("custom_") and holds_call(eqn):
            raise ValueError(
                f"jaxpyop.export: a {eqn.primitive.name} is around a Python call, and its rule cannot be saved; give "
                "the rule to the op (vjp= or jvp=), or export jax.grad of the function with vjp_order=0"
            )


def _structure_to_data(tree: Any, names: Names, what: str) -> Any:
    try:
        return structure_to_data(tree.unflatten, tree.num_leaves, names, f"jaxpyop.export: {what}")
    except Exception as error:
        raise ValueError(
            f"jaxpyop.export: {what} is a structure that cannot be saved: {error}; use lists, tuples, dicts, "
            "NamedTuples and dataclasses of modules, or jax.export.register_pytree_node_serialization"
        ) from None


# -------------------------------------------------------------------- loading


def _refuse_if_portable(name: str) -> None:
    if not _jaxcore.has("jaxpyop.jit"):
        raise NotImplementedError(
            f"jaxpyop.{name}: a program cannot be cut at its Python calls, as saved programs are "
            f"({_jaxcore.why_without('jaxpyop.jit')}); use JAX {_jaxcore.TESTED} for this, or a newer jaxpyop"
        )


def load(
    source: str | os.PathLike[str] | bytes,
    /,
    *,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    allow: Sequence[str] = (),
) -> CutFunction:
    """Load a program that :func:`jaxpyop.export` saved.

    The counterpart of :func:`jax.export.deserialize`. The file names Python functions. Only those in `functions`, those
    that :func:`jaxpyop.register` knows, and those that a module in `allow` defines are ever called. No other module is
    imported, and nothing is unpickled. The compiled segments are programs for XLA, so load files from people whom you
    trust.

    Args:
        source: the path of a file, or the bytes of a program.
        functions: the functions that belong to names in the file. They replace registered and imported ones.
        allow: modules that may be imported to find a function. A package allows all modules in it. What begins with an
            underscore needs to be named itself, such as ``"package.module:_function"``.

    Returns:
        A function like those of :func:`jaxpyop.jit`. It takes the arguments with which the program was exported,
        without the static ones.

    Raises:
        ValueError: the file is damaged, functions are missing, or the program does not fit this process.
        OSError: the file cannot be read.

    Warns:
        UserWarning: the code of a function is not the code that was exported.

    Example:
        >>> import jax.numpy as jnp, jaxpyop
        >>> double = lambda x: 2 * x
        >>> op = lambda x: jaxpyop.numpy_function(double, [x], jnp.float32(0))
        >>> data = jaxpyop.export(op, functions={"double": double})(jnp.float32(1.0)).to_bytes()
        >>> print(jaxpyop.load(data, functions={"double": double})(jnp.float32(3.0)))
        6.0
    """
    _refuse_if_portable("load")
    given = check_functions(functions, "jaxpyop.load")
    if isinstance(allow, str) or any(type(name) is not str for name in allow):
        raise TypeError(f"jaxpyop.load: allow is {allow!r}; expected a list of modules, such as ['package.module']")
    is_bytes = isinstance(source, (bytes, bytearray, memoryview))
    title = "the program" if is_bytes else repr(os.fspath(source))
    content = bytes(source) if is_bytes else pathlib.Path(source).read_bytes()
    try:
        plan, blobs = unpacked(content)
        found = find_functions(plan["functions"], given, allow)
        changed = changed_functions(plan["functions"], found)
        program = _loaded(plan, blobs, found)
    except ImportError:
        # `jax.export` needs a package that is not installed. (`find_functions` turns the ImportError of a module that
        # the file names into a ValueError about a missing function.)
        raise
    except Exception as error:
        # A manipulated file can make any line above raise any error.
        text = str(error)
        if type(error) is not ValueError:
            text = f"its plan is not one that this jaxpyop writes; export it again ({type(error).__name__}: {text})"
        raise ValueError(f"jaxpyop.load: {title} cannot be loaded: {text}") from error
    for name in changed:
        text = f"jaxpyop.load: {title}: the code of {name!r} is not the code that was exported"
        warnings.warn(text, UserWarning, stacklevel=2)
    return program


def _loaded(plan: Mapping[str, Any], blobs: Sequence[bytes], functions: Sequence[Callable[..., Any]]) -> CutFunction:
    x64, order = bool(plan["x64"]), plan["vjp_order"]
    _check_x64(x64)
    run = Loader(calls_from_data(plan["calls"], functions), blobs).program(plan["program"])
    expected, results = (
        jax.tree.structure(structure_from_data(plan[what], functions)) for what in ("arguments", "results")
    )
    flat, inputs = run if order else _without_derivative(run), plan["program"]["inputs"]
    # Files from before the names were stored have numbers in their place.
    names = plan.get("names") or [f"input {k}" for k in range(len(inputs))]
    named_inputs = list(zip(names, inputs, strict=True))

    def program(*args: Any, **kwargs: Any) -> Any:
        _check_x64(x64)
        leaves, tree = jax.tree.flatten((args, kwargs))
        if tree != expected:
            raise TypeError(f"the program was exported for arguments of the structure {expected}, and got {tree}")
        arrays = [without_weak_type(jax.numpy.asarray(x)) for x in leaves]
        for x, (name, like) in zip(arrays, named_inputs, strict=True):
            check_type(x, like, f"{plan['name']}: the argument {name}")
        return jax.tree.unflatten(results, flat(*arrays))

    if (structs := structs_from_data(inputs)) is not None:
        # Tracing the program once finds steps whose shapes and dtypes do not match.
        args, kwargs = jax.tree.unflatten(expected, structs)
        jax.eval_shape(program, *args, **kwargs)
    program.__name__ = program.__qualname__ = str(plan["name"])
    return CutFunction(program, plan["loops"], {})


def _check_x64(x64: bool) -> None:
    if _dtypes.x64_enabled() != x64:
        raise ValueError(f"the program was exported with jax_enable_x64={x64}; set the same here")


def _without_derivative(run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return a function that does the same, but raises an error when it is differentiated."""
    guarded = jax.custom_jvp(run)

    @guarded.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise NotImplementedError(
            "the program was exported without its derivative; export it with vjp_order=1, or export jax.grad of it"
        )

    return guarded
