"""The results of finished blocks: in memory, or in a folder that outlives the process and that several processes share.

A folder has

- `description.json`: what was asked for. A call that asks for something else is refused.
- `0.block`, `1.block` and so on, while the sweep runs: a line of JSON with the checksums of the block's inputs and of its
  results, and the bytes of the results.
- `1.claim`: a lock on a block that is being computed. The system releases it when the process ends, however it ends.
- `0.npy` and so on at the end: each leaf of the results. Then `complete.json` has the lines of JSON of all blocks, and the
  blocks themselves are gone.

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
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, Protocol

import numpy as np

from jaxpyop._batches.inputs import API

try:
    import fcntl
except ImportError:
    fcntl = None  # Windows

Arrays = Sequence[np.ndarray[Any, Any]]
# The type of a leaf of an element's result.
Leaf = tuple[tuple[int, ...], np.dtype[Any]]
_DESCRIPTION, _COMPLETE = "description.json", "complete.json"
# Locks that this process has. A forked child has them too, and would keep them when this process is killed.
_locks: set[int] = set()


class Store(Protocol):
    """Where the results of finished blocks are."""

    def has(self, number: int, inputs: str) -> bool:
        """Whether a block is finished. `inputs` is the checksum of its inputs, which must be those of the finished one."""
        ...

    def claim(self, number: int) -> contextlib.AbstractContextManager[bool]:
        """Claims a block, so that nobody else computes it; gives False if somebody else has it."""
        ...

    def save(self, number: int, inputs: str, results: Arrays) -> None:
        """Keeps the results of a block that is claimed."""
        ...

    def results(self, blocks: int) -> Arrays:
        """Returns the results of all blocks, of which there are so many."""
        ...


class Memory:
    """Results in memory."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves
        self._blocks: list[Arrays] = []

    def has(self, number: int, inputs: str) -> bool:
        return False

    def claim(self, number: int) -> contextlib.AbstractContextManager[bool]:
        return contextlib.nullcontext(True)

    def save(self, number: int, inputs: str, results: Arrays) -> None:
        self._blocks.append(results)

    def results(self, blocks: int) -> Arrays:
        empty = [np.empty((0, *shape), dtype) for shape, dtype in self._leaves]
        return [np.concatenate(column) for column in zip(empty, *self._blocks)]


class Folder:
    """Results in a folder.

    Args:
        path: the folder, which is made if it is not there.
        description: what was asked for, as JSON.
        leaves: the type of each leaf of an element's result.

    Raises:
        ValueError: the folder is that of another call, or has other files.
    """

    def __init__(self, path: Any, description: dict[str, Any], leaves: Sequence[Leaf]) -> None:
        if fcntl is None:
            raise NotImplementedError(f"{API}: checkpoint= needs the file locks of a POSIX system")
        self._path = pathlib.Path(path)
        self._leaves = leaves
        self._complete: dict[str, Any] | None = None
        self._path.mkdir(parents=True, exist_ok=True)
        while not self._exists(_DESCRIPTION):
            self._check_others()
            with self._lock("description") as mine:
                if mine and not self._exists(_DESCRIPTION):
                    with self._writing(_DESCRIPTION) as file:
                        file.write(json.dumps(description, indent=1).encode())
        self._compare(description)

    def has(self, number: int, inputs: str) -> bool:
        record = self._record(number)
        if record is not None and record["inputs"] != inputs:
            raise self._refusal(f"it has results of block {number} for other inputs")
        return record is not None

    def claim(self, number: int) -> contextlib.AbstractContextManager[bool]:
        return self._lock(str(number))

    def save(self, number: int, inputs: str, results: Arrays) -> None:
        data = [_bytes_of(x) for x in results]
        record = {"inputs": inputs, "elements": len(results[0]) if results else 0, "results": _checksum(data)}
        with self._writing(f"{number}.block") as file:
            file.write(json.dumps(record).encode() + b"\n")
            file.writelines(data)

    def results(self, blocks: int) -> Arrays:
        while (complete := self._read_complete()) is None:
            with self._lock("complete") as mine:
                if mine and self._read_complete() is None:
                    self._join(blocks)
            time.sleep(0.02)
        if len(complete["blocks"]) != blocks:
            raise self._refusal(f"it has the results of {len(complete['blocks'])} blocks, and inputs has {blocks}")
        self._check_leaves(complete["blocks"])
        return [self._open(k, *leaf) for k, leaf in enumerate(self._leaves)]

    # ------------------------------------------------------------------- description

    def _check_others(self) -> None:
        names = {file.name for file in self._path.iterdir() if file.suffix not in (".claim", ".part")}
        if names and _DESCRIPTION not in names:
            raise ValueError(
                f"{API}: the folder {self._path} has files of something else: {', '.join(sorted(names)[:3])}"
            )

    def _compare(self, description: dict[str, Any]) -> None:
        found = self._json(_DESCRIPTION)
        differing = [name for name in description if found.get(name) != description[name]]
        if differing:
            values = [f"{name}: {found.get(name)} there, {description[name]} here" for name in differing]
            raise self._refusal("; ".join(values))

    def _refusal(self, why: str) -> ValueError:
        return ValueError(
            f"{API}: the folder {self._path} is that of another call: {why}. Its results may not be those that are "
            "asked for here: pass a new folder as checkpoint=, or delete this one"
        )

    # ------------------------------------------------------------------- blocks

    def _read_complete(self) -> dict[str, Any] | None:
        if self._complete is None and self._exists(_COMPLETE):
            self._complete = self._json(_COMPLETE)
        return self._complete

    def _record(self, number: int) -> dict[str, Any] | None:
        """The checksums of a block; None if it is not finished."""
        with contextlib.suppress(FileNotFoundError), self._block(number) as (record, _):
            return record
        # Blocks are deleted when all are complete, which may be just now.
        if (complete := self._read_complete()) is None:
            return None
        if number >= len(complete["blocks"]):
            raise self._refusal(f"it has the results of {len(complete['blocks'])} blocks, and inputs has more")
        return complete["blocks"][number]

    @contextlib.contextmanager
    def _block(self, number: int) -> Iterator[tuple[dict[str, Any], IO[bytes]]]:
        with (self._path / f"{number}.block").open("rb") as file:
            yield self._parsed(file.readline(), f"{number}.block"), file

    def _join(self, blocks: int) -> None:
        """Writes the results of all blocks into one file for each leaf."""
        numbers = {int(file.stem) for file in self._path.glob("*.block")}
        if numbers != set(range(blocks)):
            raise self._refusal(f"it has the results of {len(numbers)} blocks, and inputs has {blocks}")
        records = [self._record(k) for k in range(blocks)]
        count = sum(record["elements"] for record in records if record)
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(self._writing(f"{k}.npy")) for k in range(len(self._leaves))]
            for file, (shape, dtype) in zip(files, self._leaves):
                file.write(_npy_header((count, *shape), dtype))
            for number in range(blocks):
                for file, part in zip(files, self._data(number)):
                    file.write(part)
        with self._writing(_COMPLETE) as file:
            file.write(json.dumps({"blocks": records}).encode())
        # Who locks a claim now finds that the block is finished.
        for file in (*self._path.glob("*.block"), *self._path.glob("*.claim")):
            file.unlink(missing_ok=True)

    def _data(self, number: int) -> list[bytes]:
        """The bytes of each leaf of a block."""
        with self._block(number) as (record, file):
            data = [file.read(record["elements"] * _size_of(*leaf)) for leaf in self._leaves]
            if _checksum(data) != record["results"] or file.read(1):
                raise self._damaged(f"{number}.block")
            return data

    # ------------------------------------------------------------------- results

    def _check_leaves(self, records: Sequence[dict[str, Any]]) -> None:
        """Reads all results, as files and not through a memory map, whose pages would count as memory of the process."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context((self._path / f"{k}.npy").open("rb")) for k in range(len(self._leaves))]
            count = sum(record["elements"] for record in records)
            for file, (shape, dtype) in zip(files, self._leaves):
                file.seek(len(_npy_header((count, *shape), dtype)))
            for number, record in enumerate(records):
                sizes = [record["elements"] * _size_of(*leaf) for leaf in self._leaves]
                data = [file.read(size) for file, size in zip(files, sizes)]
                if _checksum(data) != record["results"]:
                    raise self._damaged(f"block {number} of the results")

    def _open(self, number: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        # The dtypes that NumPy does not know, such as bfloat16, are stored as bytes.
        return np.load(self._path / f"{number}.npy", mmap_mode="r").view(dtype)

    # ------------------------------------------------------------------- files

    def _exists(self, name: str) -> bool:
        return (self._path / name).exists()

    def _json(self, name: str) -> dict[str, Any]:
        return self._parsed((self._path / name).read_bytes(), name)

    def _parsed(self, data: bytes, name: str) -> dict[str, Any]:
        try:
            return json.loads(data)
        except ValueError:
            raise self._damaged(name) from None

    def _damaged(self, name: str) -> ValueError:
        advice = "delete it, and the block is computed again" if name.endswith(".block") else "delete the folder"
        return ValueError(f"{API}: {name} in the folder {self._path} is damaged; {advice}")

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

        The file is deleted only once the block of code has succeeded. Who locks a deleted file, or a new one, then finds
        that there is nothing left to do.
        """
        path = self._path / f"{name}.claim"
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        _locks.add(lock)
        try:
            mine = _locked(lock, path)
            yield mine
            if mine:
                path.unlink(missing_ok=True)
        finally:
            _locks.discard(lock)
            os.close(lock)


def _locked(lock: int, path: pathlib.Path) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # pyright: ignore
    except BlockingIOError:
        return False
    except OSError as error:
        raise OSError(
            error.errno, f"{API}: checkpoint= needs a file system with locks ({error.strerror})", str(path)
        ) from None
    return True


def _close_locks() -> None:
    for lock in _locks:
        os.close(lock)
    _locks.clear()


if fcntl is not None:
    os.register_at_fork(after_in_child=_close_locks)


def _checksum(data: Iterable[bytes | memoryview]) -> str:
    hashed = hashlib.sha256()
    for part in data:
        hashed.update(part)
    return hashed.hexdigest()


def _bytes_of(x: np.ndarray[Any, Any]) -> memoryview:
    return memoryview(np.ascontiguousarray(x).reshape(-1).view(np.uint8))


def _size_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    file = io.BytesIO()
    stored = dtype if dtype.kind in "biufc" else np.dtype((np.void, dtype.itemsize))
    header = {"shape": shape, "fortran_order": False, "descr": np.lib.format.dtype_to_descr(stored)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()
