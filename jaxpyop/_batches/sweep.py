"""The function that users call, the loop over the blocks, and what a folder compares of the function of the user.

A program tells all that it computes: names and comments in the source do not count, and every value that the function
reads does. But not all can be seen that a Python function on the host reads while it runs. So the user names a version
of it. If its code differs, a warning comes, because a version is easily forgotten.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _settings
from jaxpyop._batches.contents import checksum_of
from jaxpyop._batches.folder import Folder, Memory
from jaxpyop._batches.inputs import API, Array, Arrays, Elements, bytes_of, data_of, is_key, read_inputs, with_keys
from jaxpyop._host import add_note, reraise
from jaxpyop._jaxcore import Literal, consts_of, equations_in, is_eager, jaxpr_of, jaxprs_in
from jaxpyop._op import numerical, python_call_p
from jaxpyop._saved import code_checksum
from jaxpyop._values import nodes_of

# How long a process that waits for the blocks of others sleeps before it looks for them.
_SECONDS = 0.2


def map_batches(
    f: Callable[[Any], Any],
    inputs: Any,
    *,
    batch_size: int,
    checkpoint: str | os.PathLike[str] | None = None,
    version: str | None = None,
    progress: bool | Callable[[int, int | None], object] = False,
) -> Any:
    """Apply a function to many elements, in blocks of one compiled ``vmap``, and keep what is finished.

    Like ``jax.jit(jax.vmap(f))(inputs)``, for more elements than fit into memory, and for hours. With `checkpoint`,
    finished blocks are saved in a folder. If the process is killed, the same call continues, and computes only what is
    missing. Several processes that make the same call at the same time, on one machine or on several that share a file
    system, divide the blocks among them, and all get all results.

    Args:
        f: a function of one element, which JAX can trace, as for :func:`jax.vmap`. It may call Python by the functions
            of this package.
        inputs: the elements. Either a pytree of arrays, whose leading axes are the elements; memory-mapped arrays are
            read block by block. Or an iterable of elements, which are pytrees of arrays and numbers of the same types.
            A list is refused, because it could be both.
        batch_size: how many elements a block has. The last block has the rest, and is compiled separately.
        checkpoint: a folder, which is made if it is not there. With ``None``, results are in memory.
        version: a name of yours for all that the Python functions which `f` calls on the host read: models, tables,
            files, other functions. A folder cannot see whether these have changed, so it needs a version if there are
            such functions, and another one after a change. If their own code has changed, it warns.
        progress: ``True`` writes to the standard error how many elements are done. A function is called with this
            number, and the number of all elements, which is ``None`` for an iterable.

    Returns:
        What `f` returns, where each leaf is a NumPy array with the elements as its leading axis. With `checkpoint`, the
        arrays are memory-mapped files of the folder, which are read-only.

    Raises:
        TypeError: an argument is malformed, elements have different types, or `f` returns a PRNG key.
        ValueError: `batch_size` is no whole number from 1 on; the folder is that of another call: of another program,
            other functions on the host, another version, other inputs, or another `batch_size`; a file in it is
            damaged; or there is no `version`, and `f` calls Python on the host.
        OverflowError: an integer does not fit its dtype in JAX.
        RuntimeError: a transformation is active, such as ``jax.jit``; or another process ended before its block was
            finished, and `inputs` is an iterator, which cannot be read again.
        OSError: the folder cannot be written, or its file system has no locks.
        BaseException: what `f` raises, with a note that names the block and its elements.

    Example:
        >>> import numpy as np, jaxpyop
        >>> def half(x):
        ...     return {"half": x / 2, "is_odd": x % 2 == 1}
        >>> results = jaxpyop.map_batches(half, np.arange(5), batch_size=2)
        >>> print(results["half"], results["is_odd"])
        [0.  0.5 1.  1.5 2. ] [False  True False  True False]
    """
    size = _check(f, batch_size, version)
    folder = None if checkpoint is None else os.path.realpath(checkpoint)
    with _at_work_on(folder):
        elements = read_inputs(inputs, size)
        program = _Program(f, elements, size)
        leaves, tree = jax.tree.flatten(program.results)
        types = [(leaf.shape[1:], np.dtype(leaf.dtype)) for leaf in leaves]
        store = Folder(folder, *_description(program, elements, version), types) if folder else Memory(types)
        checksums = _Sweep(program, store, _progress(progress, elements.length)).run(elements)
        return jax.tree.unflatten(tree, store.results(checksums))


# The folders of the sweeps that this code is called by.
_folders: contextvars.ContextVar[tuple[str | None, ...]] = contextvars.ContextVar("jaxpyop_folders", default=())


@contextlib.contextmanager
def _at_work_on(folder: str | None) -> Iterator[None]:
    if folder is not None and folder in _folders.get():
        raise RuntimeError(
            f"{API}: a function that it calls calls it with the same folder {folder}, and would wait for it"
        )
    before = _folders.set((*_folders.get(), folder))
    try:
        yield
    finally:
        _folders.reset(before)


def _check(f: Any, batch_size: Any, version: Any) -> int:
    if not callable(f):
        raise TypeError(f"{API}: f is {f!r}; expected a function of one element")
    if not isinstance(batch_size, (int, np.integer)) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(f"{API}: batch_size is {batch_size!r}; expected a whole number from 1 on")
    if not isinstance(version, (str, type(None))):
        raise TypeError(f"{API}: version is {version!r}; expected a string")
    if not is_eager():
        raise RuntimeError(f"{API}: a transformation of JAX is active, such as jit or grad; call map_batches outside")
    return int(batch_size)


class _Program:
    """The function of the user on blocks, compiled once for each size of a block.

    Attributes:
        size: how many elements a block has, but for the last one.
        results: the types of the results of such a block, as a pytree.
    """

    def __init__(self, f: Callable[[Any], Any], inputs: Arrays | Elements, size: int) -> None:
        make_keys = with_keys(inputs.structs)
        on_leaves = lambda *leaves: f(jax.tree.unflatten(inputs.tree, make_keys(*leaves)))
        jitted = jax.jit(jax.vmap(on_leaves))
        types = lambda size: [jax.ShapeDtypeStruct((size, *x.shape), x.dtype) for x in inputs.structs]
        self.traced = functools.cache(lambda size: jitted.trace(*types(size)))
        self._lowered = functools.cache(lambda size: self.traced(size).lower())
        self._compiled = functools.cache(lambda size: self._lowered(size).compile())
        self.text = lambda size: self._lowered(size).as_text()
        self.checksum = functools.cache(lambda size: _program_checksum(self.traced(size), self.text(size)))
        self.size, self.results = size, self.traced(size).out_info
        if any(map(is_key, jax.tree.leaves(self.results))):
            raise TypeError(f"{API}: f returns a PRNG key; return jax.random.key_data(key)")

    def __call__(self, block: Sequence[Array]) -> list[Array]:
        count = len(block[0])
        if (found := _types_of(self.traced(count).out_info)) != (expected := _types_of(self.results)):
            raise TypeError(f"{API}: f returned {found} for the last block, and {expected} for the others")
        with reraise():
            results = self._compiled(count)(*block)
            found = list(map(np.asarray, jax.tree.leaves(results)))
            # An effect may fail that no result depends on.
            jax.effects_barrier()
        return found


@dataclasses.dataclass(eq=False)
class _Sweep:
    """Computes the blocks that are missing.

    Attributes:
        program: computes a block.
        store: keeps the results.
        tell: is called with the number of finished elements.
        done: this number.
    """

    program: _Program
    store: Memory | Folder
    tell: Callable[[int], object]
    done: int = 0

    def run(self, inputs: Arrays | Elements) -> list[str]:
        """Returns the checksums of all blocks once they are finished, by this process or by others."""
        checksums: list[str] = []
        # What finishes the blocks that other processes are computing, if one of these ends before.
        others: dict[int, Callable[[], bool]] = {}
        for number, block in enumerate(inputs.blocks()):
            checksums.append(checksum := self._checksum(block))
            count = len(block[0])
            if not self._finish(number, checksum, count, functools.partial(list, block)):
                again = functools.partial(self._again, inputs, number, checksum)
                others[number] = functools.partial(self._finish, number, checksum, count, again)
        while others:
            time.sleep(_SECONDS)
            others = {each: finish for each, finish in others.items() if not finish()}
        return checksums

    def _checksum(self, block: Sequence[Array]) -> str:
        return self.store.checksum(block, self.program.checksum)

    def _finish(self, number: int, checksum: str, count: int, load: Callable[[], Sequence[Array]]) -> bool:
        """Computes a block if it is missing. Returns False if another process is computing it."""
        if not self.store.has(number, checksum):
            with self.store.claim(number) as mine:
                if not mine:
                    return False
                if not self.store.has(number, checksum):
                    self._compute(number, checksum, load())
        self.done += count
        self.tell(self.done)
        return True

    def _compute(self, number: int, checksum: str, block: Sequence[Array]) -> None:
        try:
            self.store.save(number, checksum, self.program(block))
        except BaseException as error:
            first = number * self.program.size
            last = first + len(block[0]) - 1
            add_note(error, f"{API}: in block {number}, elements {first} to {last} of inputs")
            raise

    def _again(self, inputs: Arrays | Elements, number: int, checksum: str) -> Sequence[Array]:
        block = inputs.again(number)
        if not block or self._checksum(block) != checksum:
            raise ValueError(f"{API}: inputs gives other elements when it is read again; expected the same each time")
        return block


# ------------------------------------------------------------------------ what a folder compares


def _description(
    program: _Program, inputs: Arrays | Elements, version: str | None
) -> tuple[dict[str, Any], list[str | None]]:
    """What decides the results, as JSON, and checksums of the code of the functions on the host."""
    functions, code = _host_functions(program.traced(program.size), program.text(program.size))
    if functions and version is None:
        raise ValueError(
            f"{API}: f calls a Python function on the host ({functions[0][0]}), and a folder cannot see whether all "
            'that it reads has changed: pass version="1", and another version after a change'
        )
    description = {
        "format": 1,
        "batch_size": program.size,
        "elements": inputs.length,
        "inputs": [_shown(inputs.tree), *([list(x.shape), str(x.dtype), x.key] for x in inputs.structs)],
        "results": _types_of(program.results),
        "program of f": program.checksum(program.size),
        "version": version,
        "functions on the host": functions,
        "jax": jax.__version__,
        "settings of jax": [*map(str, _settings.thread_settings()), *map(str, _settings.process_settings())],
        "platform": jax.default_backend(),
    }
    return description, code


# How a text calls Python, or a function that Numba compiled: by a number, or by an address of this process.
_CALL = re.compile(r"@(?:xla_buffer_python_cpu_callback|jaxpyop_native_\w+)(\(.*?\{)((?:index|block) = \d+) : u?i64\}")


def _without_addresses(text: str) -> str:
    """Returns a text of a program that is the same in each process, and with and without native calls."""
    numbers: dict[str, int] = {}
    return _CALL.sub(lambda found: f"@call{found[1]}{numbers.setdefault(found[2], len(numbers))}}}", text)


def _program_checksum(traced: Any, text: str) -> str:
    """Returns a checksum of what JAX compiles, of which this is the text."""
    hashed = hashlib.sha256(_without_addresses(text).encode())
    # JAX can be set to lower constants as inputs, so that their values are not in the text.
    for x in map(data_of, _constants({"": traced.jaxpr})):
        hashed.update(f"{x.shape} {x.dtype}".encode() + bytes_of(x))
    return hashed.hexdigest()


def _constants(params: dict[str, Any]) -> Iterator[Any]:
    for closed in jaxprs_in(params):
        yield from consts_of(closed)
        for eqn in jaxpr_of(closed).eqns:
            yield from (atom.val for atom in eqn.invars if isinstance(atom, Literal) and np.ndim(atom.val))
            yield from _constants(eqn.params)


def _host_functions(traced: Any, text: str) -> tuple[list[list[str]], list[str | None]]:
    """Returns the Python functions that a program calls for a value: how it calls each, and checksums of their code."""
    found: list[list[str]] = []
    code: list[str | None] = []
    # The results do not depend on a call that has none.
    for eqn in (eqn for eqn in equations_in({"": traced.jaxpr}) if eqn.outvars):
        if eqn.primitive is python_call_p:
            call = eqn.params["call"]
            op, rules = call.op, dict(call.op.rules.functions())
            steps = [rule.step for rule in (op.rules.vjp, op.rules.jvp) if isinstance(rule, numerical)]
            options = op.vmap_method.name, op.casting, op.on_jax, op.out, steps, op.fills, list(rules)
            results, (tree, leaves, keys) = op.spec.returned.leaves, _inputs_of(call)
            with _naming(op.title):
                # A text of the values would leave much of an array or object out, and have a set in any order.
                settings = map(str, (*keys, *call.environment.settings))
                checksum = checksum_of([options, results, tree and nodes_of(tree), leaves, *settings])
            found.append([repr(call), _shown(options), _shown(results), checksum])
            code += map(code_checksum, (op.func, *rules.values()))
        elif "callback" in eqn.params:
            callback = getattr(eqn.params["callback"], "callback_func", eqn.params["callback"])
            found.append([f"{eqn.primitive} {getattr(callback, '__qualname__', '')}"])
            code.append(code_checksum(callback))
    if not found and "_callback" in text:
        found.append(["a callback of another library"])
    return found, code


def _inputs_of(call: Any) -> tuple[Any, Any, Any]:
    """The structure of the inputs of a user's call, what is no array among them, and the kinds of typed keys."""
    while call.origin is not None:
        call = call.origin[0]
    inputs = getattr(call.body, "inputs", None)
    return (None, None, ()) if inputs is None else (inputs.tree, inputs.leaves, inputs.key_impls)


@contextlib.contextmanager
def _naming(title: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise TypeError(
            f"{API}: {title} gets an object of which a folder cannot tell whether it has changed ({error}); let the "
            "function read it from around it, and name it by version="
        ) from error


def _shown(value: Any) -> str:
    """The text of a value, without the addresses of objects, which are other ones in each process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _types_of(results: Any) -> list[Any]:
    leaves, tree = jax.tree.flatten(results)
    return [_shown(tree), *([list(x.shape[1:]), str(x.dtype)] for x in leaves)]


def _progress(progress: bool | Callable[[int, int | None], object], total: int | None) -> Callable[[int], object]:
    if callable(progress):
        return lambda done: progress(done, total)
    last = -float("inf")

    def tell(done: int) -> None:
        nonlocal last
        if progress and (done == total or time.monotonic() - last >= 1):
            last = time.monotonic()
            print(f"map_batches: {done:,}{'' if total is None else f' of {total:,}'} elements", file=sys.stderr)

    return tell
