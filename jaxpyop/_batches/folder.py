"""The results of finished blocks: in memory, or in a folder that outlives the process and that several processes share.

A folder has

- `description.json`: what was asked for. A call that asks for something else is refused.
- `0.block`, `1.block` and so on, while the sweep runs: a line of JSON with the checksums of what the block was computed
  from and of its results, and the bytes of the results.
- `1.claim`: a lock on a block that is being computed. The system releases it when the process ends, however it ends.
- `0.npy` and so on at the end: each leaf of the results. Then `complete.json` has the lines of JSON of all blocks, and
  the blocks themselves are gone.

Each file but the locks is written under another name, synchronized, and renamed, so that a file is whole or absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pathlib
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np

from jaxpyop._batches.inputs import API, Array, bytes_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl: Any = None

# The type of a leaf of an element's result.
Leaf = tuple[tuple[int, ...], np.dtype[Any]]
_DESCRIPTION, _COMPLETE = "description.json", "complete.json"
# The locks of this process. A forked child has them too, and would keep them if this process is killed.
_locks: set[int] = set()


class Memory:
    """Results in memory, with the methods of `Folder`."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._blocks: list[Sequence[Array]] = [[np.empty((0, *shape), dtype) for shape, dtype in leaves]]

    def has(self, number: int, inputs: str) -> bool:
        return False

    def claim(self, number: int) -> contextlib.AbstractContextManager[bool]:
        return contextlib.nullcontext(True)

    def save(self, number: int, inputs: str, results: Sequence[Array]) -> None:
        self._blocks.append(results)

    def results(self, blocks: int) -> list[Array]:
        return list(map(np.concatenate, zip(*self._blocks)))


class Folder:
    """Results in a folder.

    Args:
        path: the folder, which is made if it is not there.
        description: what was asked for, as JSON. Its "code" may have changed, and then it warns.
        leaves: the type of each leaf of an element's result.

    Raises:
        ValueError: the folder is that of another call, or has other files.
    """

    def __init__(self, path: Any, description: dict[str, Any], leaves: Sequence[Leaf]) -> None:
        if fcntl is None:
            raise NotImplementedError(f"{API}: checkpoint= needs the file locks of a POSIX system")
        self._path = pathlib.Path(path)
        self._leaves = leaves
        self._records: list[dict[str, Any]] | None = None
        self._path.mkdir(parents=True, exist_ok=True)
        while not self._exists(_DESCRIPTION):
            self._check_others()
            with self._lock("description") as mine:
                if mine and not self._exists(_DESCRIPTION):
                    with self._writing(_DESCRIPTION) as file:
                        file.write(json.dumps(description, indent=1).encode())
        found = self._json(_DESCRIPTION)
        differing = [name for name in description if found.get(name) != description[name]]
        if differing == ["code"]:
            warnings.warn(
                f"{API}: the code of a Python function on the host is not what it was when the folder {self._path} was "
                "made, and version= is the same, so finished blocks are not computed again; pass a new folder if "
                "their results are not right any more",
                RuntimeWarning,
                stacklevel=3,
            )
        elif differing:
            values = [f"{name}: {found.get(name)} there, {description[name]} here" for name in differing]
            raise self._refusal("; ".join(values))
        # The locks of some network file systems lock nothing, so each block tells what it belongs to.
        self._call = _checksum([json.dumps({**description, "code": None}).encode()])

    def has(self, number: int, inputs: str) -> bool:
        """Whether a block is finished. `inputs` is the checksum of its inputs, which must be the same as then."""
        record = self._record(number)
        if record is not None and record["of"] != self._call + inputs:
            raise self._refusal(f"it has results of block {number} for other inputs")
        return record is not None

    def claim(self, number: int) -> contextlib.AbstractContextManager[bool]:
        """Claims a block, so that nobody else computes it; gives False if somebody else has it."""
        return self._lock(str(number))

    def save(self, number: int, inputs: str, results: Sequence[Array]) -> None:
        """Keeps the results of a block that is claimed."""
        data = [bytes_of(x) for x in results]
        elements = len(results[0]) if results else 0
        record = {"of": self._call + inputs, "elements": elements, "results": _checksum(data)}
        with self._writing(f"{number}.block") as file:
            file.write(json.dumps(record).encode() + b"\n")
            file.writelines(data)

    def results(self, blocks: int) -> list[Array]:
        """Returns the results of all blocks, of which there are so many, as memory-mapped arrays."""
        while (records := self._complete()) is None:
            with self._lock("complete") as mine:
                if not mine:
                    time.sleep(0.02)
                elif self._complete() is None:
                    self._join(blocks)
        if len(records) != blocks:
            raise self._refusal(f"it has the results of {len(records)} blocks, and inputs has {blocks}")
        self._check_leaves(records)
        # The dtypes that NumPy does not have, such as bfloat16, are stored as bytes.
        files = [np.load(self._path / f"{k}.npy", mmap_mode="r") for k in range(len(self._leaves))]
        return [file.view(dtype) for file, (_, dtype) in zip(files, self._leaves)]

    # ----------------------------------------------------------------- what is there

    def _exists(self, name: str) -> bool:
        return (self._path / name).exists()

    def _check_others(self) -> None:
        names = {file.name for file in self._path.iterdir() if file.suffix not in (".claim", ".part")}
        if names and _DESCRIPTION not in names:
            raise ValueError(
                f"{API}: the folder {self._path} has files of something else: {', '.join(sorted(names)[:3])}"
            )

    def _refusal(self, why: str) -> ValueError:
        return ValueError(
            f"{API}: the folder {self._path} is that of another call: {why}. Its results may not be those that are "
            "asked for here: pass a new folder as checkpoint=, or delete this one"
        )

    def _json(self, name: str, data: bytes | None = None) -> Any:
        try:
            return json.loads((self._path / name).read_bytes() if data is None else data)
        except ValueError:
            raise self._damaged(name) from None

    def _damaged(self, name: str) -> ValueError:
        advice = "delete it, and the block is computed again" if name.endswith(".block") else "delete the folder"
        return ValueError(f"{API}: {name} in the folder {self._path} is damaged; {advice}")

    def _complete(self) -> list[dict[str, Any]] | None:
        """The records of all blocks; None if some of these are missing."""
        if self._records is None and self._exists(_COMPLETE):
            self._records = self._json(_COMPLETE)
        return self._records

    def _record(self, number: int) -> dict[str, Any] | None:
        """The checksums of a block; None if it is not finished."""
        with contextlib.suppress(FileNotFoundError), (self._path / f"{number}.block").open("rb") as file:
            return self._json(f"{number}.block", file.readline())
        # Blocks are deleted when all of them are complete, which may be just now.
        if (records := self._complete()) is None:
            return None
        if number >= len(records):
            raise self._refusal(f"it has the results of {len(records)} blocks, and inputs has more")
        return records[number]

    # ----------------------------------------------------------------- from blocks to arrays

    def _join(self, blocks: int) -> None:
        """Writes the results of all blocks into one file for each leaf."""
        numbers = {int(file.stem) for file in self._path.glob("*.block")}
        if numbers != set(range(blocks)):
            raise self._refusal(f"it has the results of {len(numbers)} blocks, and inputs has {blocks}")
        records = [record for number in range(blocks) if (record := self._record(number))]
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(self._writing(f"{k}.npy")) for k in range(len(self._leaves))]
            for file, header in zip(files, self._headers(records)):
                file.write(header)
            for number, record in enumerate(records):
                for file, part in zip(files, self._data(number, record)):
                    file.write(part)
        with self._writing(_COMPLETE) as file:
            file.write(json.dumps(records).encode())
        # Who locks a claim from now on finds that the block is finished.
        for file in (*self._path.glob("*.block"), *self._path.glob("*.claim")):
            file.unlink(missing_ok=True)

    def _data(self, number: int, record: dict[str, Any]) -> list[bytes]:
        """The bytes of each leaf of a block."""
        with (self._path / f"{number}.block").open("rb") as file:
            file.readline()
            data = [file.read(size) for size in self._sizes(record)]
            if _checksum(data) != record["results"] or file.read(1):
                raise self._damaged(f"{number}.block")
        return data

    def _check_leaves(self, records: Sequence[dict[str, Any]]) -> None:
        """Compares all results with their checksums."""
        with contextlib.ExitStack() as stack:
            # As files: the pages of a memory map count as memory of the process.
            files = [stack.enter_context((self._path / f"{k}.npy").open("rb")) for k in range(len(self._leaves))]
            headers = [file.read(len(header)) == header for file, header in zip(files, self._headers(records))]
            for number, record in enumerate(records):
                data = [file.read(size) for file, size in zip(files, self._sizes(record))]
                if _checksum(data) != record["results"] or not all(headers):
                    raise self._damaged(f"block {number} of the results")

    def _headers(self, records: Sequence[dict[str, Any]]) -> Iterator[bytes]:
        """The beginning of the file of each leaf."""
        count = sum(record["elements"] for record in records)
        for shape, dtype in self._leaves:
            file = io.BytesIO()
            stored = dtype if dtype.kind in "biufc" else np.dtype((np.void, dtype.itemsize))
            header = {"shape": (count, *shape), "fortran_order": False, "descr": stored.str}
            np.lib.format.write_array_header_1_0(file, header)
            yield file.getvalue()

    def _sizes(self, record: dict[str, Any]) -> list[int]:
        """The number of bytes of each leaf of a block."""
        return [record["elements"] * int(np.prod(shape)) * dtype.itemsize for shape, dtype in self._leaves]

    # ----------------------------------------------------------------- files and locks

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[IO[bytes]]:
        """Writes a file, which appears once it is whole."""
        part = self._path / f"{name}.part"
        try:
            with part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self._path / name)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        folder = os.open(self._path, os.O_RDONLY)
        try:
            # Otherwise the new name might be lost if the machine fails.
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[bool]:
        """Locks a name for a block of code; gives False if it is locked already.

        The file is deleted only once the block of code has succeeded. Who locks the deleted file, or a new one, then
        finds that there is nothing left to do.
        """
        path = self._path / f"{name}.claim"
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        _locks.add(lock)
        try:
            mine = _locked(lock)
            yield mine
            if mine:
                path.unlink(missing_ok=True)
        finally:
            _locks.discard(lock)
            os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise OSError(error.errno, f"{API}: checkpoint= needs a file system with locks: {error.strerror}") from None
    return True


def _close_locks() -> None:
    for lock in _locks:
        os.close(lock)
    _locks.clear()


if fcntl is not None:
    os.register_at_fork(after_in_child=_close_locks)


def _checksum(data: Sequence[bytes | memoryview]) -> str:
    hashed = hashlib.sha256()
    for part in data:
        hashed.update(part)
    return hashed.hexdigest()
