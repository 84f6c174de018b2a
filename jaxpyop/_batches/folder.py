"""The results of finished blocks: in memory, or in a folder that outlives the process and that several processes share.

A folder has

- `description.json`: what was asked for. A call that asks for something else is refused.
- `0.npz`, `1.npz` and so on, while the sweep runs: each leaf of the results of a block, which users may read, and a
  record with the checksums of what the block was computed from and of its results, as JSON.
- `1.claim`: a lock on a block that is being computed. The system releases it when the process ends, however it ends.
- `0.npy` and so on at the end: each leaf of the results. Then `complete.json` has the records of all blocks, and the
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
import secrets
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from jaxpyop._batches.inputs import API, Array, bytes_of
from jaxpyop._jaxcore import warn_once

try:
    import fcntl
except ImportError:  # Windows
    fcntl: Any = None

# The type of a leaf of an element's result.
Leaf = tuple[tuple[int, ...], np.dtype[Any]]
_DESCRIPTION, _COMPLETE = "description.json", "complete.json"
_RECORD = {"of", "code", "elements", "results"}
# The locks of this process. A forked child has them too, and would keep them if this process is killed.
_locks: set[int] = set()


class Memory:
    """Results in memory, with the methods of `Folder`."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._blocks: list[Sequence[Array]] = [[np.empty((0, *shape), dtype) for shape, dtype in leaves]]

    def checksum(self, block: Sequence[Array], program: Callable[[int], str]) -> str:
        return ""

    def has(self, number: int, checksum: str) -> bool:
        return False

    def claim(self, number: int) -> contextlib.AbstractContextManager[bool]:
        return contextlib.nullcontext(True)

    def save(self, number: int, checksum: str, results: Sequence[Array]) -> None:
        self._blocks.append(results)

    def results(self, checksums: Sequence[str]) -> list[Array]:
        return list(map(np.concatenate, zip(*self._blocks)))


class Folder:
    """Results in a folder.

    Args:
        path: the folder, which is made if it is not there.
        description: what was asked for, as JSON.
        code: checksums of the code of functions on the host. There is a warning for blocks that have others.
        leaves: the type of each leaf of an element's result.

    Raises:
        ValueError: the folder is that of another call, or has other files.
    """

    def __init__(self, path: Any, description: dict[str, Any], code: list[Any], leaves: Sequence[Leaf]) -> None:
        if fcntl is None:
            raise NotImplementedError(f"{API}: checkpoint= needs the file locks of a POSIX system")
        self._path = pathlib.Path(path)
        self._leaves, self._code = leaves, code
        self._records: list[dict[str, Any]] | None = None
        self._path.mkdir(parents=True, exist_ok=True)
        if not self._exists(_DESCRIPTION):
            self._check_others()
            # Another call may do the same now. The blocks of the two are told apart by their checksums.
            with self._writing(_DESCRIPTION) as file:
                file.write(json.dumps(description, indent=1).encode())
        found = self._json(_DESCRIPTION, dict)
        if differing := [name for name in description if found.get(name) != description[name]]:
            values = [f"{name}: {found.get(name)} there, {description[name]} here" for name in differing]
            raise self._refusal("; ".join(values))
        self._call = json.dumps(description).encode()
        self._is_checked = self._complete() is not None and self._mend()

    def checksum(self, block: Sequence[Array], program: Callable[[int], str]) -> str:
        """Returns what a block is computed from: its inputs, the program for its size, and all of the description.

        The locks of some network file systems lock nothing, and a folder may be deleted and made anew while a process
        computes. So a block itself has to tell which call it belongs to.
        """
        types = [f"{x.shape} {x.dtype}".encode() for x in block]
        return _checksum([self._call, program(len(block[0])).encode(), *types, *map(bytes_of, block)])

    def has(self, number: int, checksum: str) -> bool:
        """Whether a block is finished, which must be of the same inputs."""
        record = self._record(number)
        if record is not None:
            self._check_block(number, record, checksum)
        return record is not None

    def save(self, number: int, checksum: str, results: Sequence[Array]) -> None:
        """Keeps the results of a block that is claimed."""
        elements = len(results[0]) if results else 0
        record = {"of": checksum, "code": self._code, "elements": elements}
        self._write_block(number, record | {"results": _checksum(list(map(bytes_of, results)))}, results)

    def results(self, checksums: Sequence[str]) -> list[Array]:
        """Returns the results of all blocks, which have these checksums, as memory-mapped arrays."""
        if (records := self._complete()) is None:
            with self.claim("complete", wait=True):
                # Another process may have done it meanwhile.
                if (records := self._complete()) is None:
                    records = self._join(checksums)
        self._check_blocks(records, checksums)
        if not self._is_checked and any(data is None for data in self._blocks_of_leaves(records)):
            raise self._damaged("a file of the results")
        # Who locks a claim from now on finds that the block is finished.
        for pattern in ("*.npz", "*.claim", "*.part"):
            for file in self._path.glob(pattern):
                # The folder of a finished sweep may be read-only.
                with contextlib.suppress(OSError):
                    file.unlink()
        files = [np.load(self._path / f"{k}.npy", mmap_mode="r") for k in range(len(self._leaves))]
        return [file.view(dtype) for file, (_, dtype) in zip(files, self._leaves)]

    def _mend(self) -> bool:
        """Makes blocks of complete results again if some of them are damaged, which are then missing."""
        data = lambda: enumerate(self._blocks_of_leaves(self._records or ()))
        if not (damaged := [number for number, parts in data() if parts is None]):
            return True
        with self.claim("complete", wait=True):
            # Another process may have done it meanwhile.
            for number, parts in data() if self._exists(_COMPLETE) else ():
                if parts is not None and self._records:
                    record = self._records[number]
                    pairs = zip(parts, self._leaves)
                    arrays = [
                        np.frombuffer(x, dtype).reshape(record["elements"], *shape) for x, (shape, dtype) in pairs
                    ]
                    self._write_block(number, record, arrays)
            (self._path / _COMPLETE).unlink(missing_ok=True)
        self._records = None
        text = f"{API}: block {damaged[0]} of the results in the folder {self._path} is damaged, and is computed again"
        warnings.warn(
            text if len(damaged) == 1 else f"{text}; so are {len(damaged) - 1} more", RuntimeWarning, stacklevel=2
        )
        return False

    # ----------------------------------------------------------------- what is there

    def _exists(self, name: str) -> bool:
        return (self._path / name).exists()

    def _check_others(self) -> None:
        names = {file.name for file in self._path.iterdir() if file.suffix not in (".claim", ".part")}
        if names and not self._exists(_DESCRIPTION):
            raise ValueError(
                f"{API}: the folder {self._path} has files of something else: {', '.join(sorted(names)[:3])}"
            )

    def _check_block(self, number: int, record: dict[str, Any], checksum: str) -> None:
        if record["of"] != checksum:
            raise self._refusal(f"its block {number} is of other inputs or of another function")
        if record["code"] != self._code:
            warn_once(
                ("code", str(self._path), *map(str, self._code)),
                f"{API}: block {number} in the folder {self._path} was computed when the code of a Python function on "
                "the host was another one; version= is the same, so it is not computed again: pass a new folder if "
                "its results are not right any more",
            )

    def _check_blocks(self, records: Sequence[dict[str, Any]], checksums: Sequence[str]) -> None:
        if len(records) != len(checksums):
            raise self._refusal(f"it has the results of {len(records)} blocks, and inputs has {len(checksums)}")
        for number, (record, checksum) in enumerate(zip(records, checksums)):
            self._check_block(number, record, checksum)

    def _refusal(self, why: str) -> ValueError:
        return ValueError(
            f"{API}: the folder {self._path} is that of another call: {why}. Its results may not be those that are "
            "asked for here: pass a new folder as checkpoint=, or delete this one"
        )

    def _json(self, name: str, kind: type) -> Any:
        with contextlib.suppress(ValueError):
            found = json.loads((self._path / name).read_bytes())
            if isinstance(found, kind):
                return found
        raise self._damaged(name)

    def _damaged(self, name: str) -> ValueError:
        advice = "delete it, and the block is computed again" if name.endswith(".npz") else "delete the folder"
        return ValueError(f"{API}: {name} in the folder {self._path} is damaged; {advice}")

    def _complete(self) -> list[dict[str, Any]] | None:
        """The records of all blocks; None if some of these are missing."""
        if self._records is None and self._exists(_COMPLETE):
            records = self._json(_COMPLETE, list)
            if not all(isinstance(record, dict) and record.keys() == _RECORD for record in records):
                raise self._damaged(_COMPLETE)
            self._records = records
        return self._records

    def _record(self, number: int) -> dict[str, Any] | None:
        """The checksums of a block; None if it is not finished."""
        with contextlib.suppress(FileNotFoundError), self._block(number) as block:
            return json.loads(str(block["record"]))
        # Blocks are deleted when all of them are complete, which may be just now.
        if (records := self._complete()) is None:
            return None
        if number >= len(records):
            raise self._refusal(f"it has the results of {len(records)} blocks, and inputs has more")
        return records[number]

    # ----------------------------------------------------------------- from blocks to arrays

    def _join(self, checksums: Sequence[str]) -> list[dict[str, Any]]:
        """Writes the results of all blocks into one file for each leaf, and returns the records of the blocks."""
        there = range(len(list(self._path.glob("*.npz"))))
        records = [record for number in there if (record := self._record(number))]
        self._check_blocks(records, checksums)
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(self._writing(f"{k}.npy")) for k in range(len(self._leaves))]
            for file, header in zip(files, self._headers(records)):
                file.write(header)
            for number, record in enumerate(records):
                for file, part in zip(files, self._data(number, record)):
                    file.write(part)
        with self._writing(_COMPLETE) as file:
            file.write(json.dumps(records).encode())
        return records

    def _write_block(self, number: int, record: dict[str, Any], results: Sequence[Array]) -> None:
        arrays = {str(k): np.ascontiguousarray(x).view(_stored(x.dtype)) for k, x in enumerate(results)}
        with self._writing(f"{number}.npz") as file:
            np.savez(file, allow_pickle=False, record=json.dumps(record), **arrays)

    @contextlib.contextmanager
    def _block(self, number: int) -> Iterator[Any]:
        """Opens the file of a block."""
        try:
            # Opened here: a file that it refuses stays open.
            with (self._path / f"{number}.npz").open("rb") as file, np.load(file) as block:
                yield block
        except FileNotFoundError:
            raise
        except (OSError, EOFError, ValueError, LookupError, zipfile.BadZipFile, NotImplementedError, struct.error):
            raise self._damaged(f"{number}.npz") from None

    def _data(self, number: int, record: dict[str, Any]) -> list[memoryview]:
        """The bytes of each leaf of a block."""
        with self._block(number) as block:
            data = [bytes_of(block[str(k)]) for k in range(len(self._leaves))]
            if _checksum(data) != record["results"]:
                raise ValueError
        return data

    def _blocks_of_leaves(self, records: Sequence[dict[str, Any]]) -> Iterator[list[bytes] | None]:
        """The bytes of each leaf of each block, from the complete results; None where they are damaged."""
        with contextlib.ExitStack() as stack:
            # As files: the pages of a memory map count as memory of the process.
            paths = [self._path / f"{k}.npy" for k in range(len(self._leaves))]
            files = [stack.enter_context(path.open("rb")) if path.exists() else io.BytesIO() for path in paths]
            headers = [file.read(len(header)) == header for file, header in zip(files, self._headers(records))]
            for number, record in enumerate(records):
                data = [file.read(size) for file, size in zip(files, self._sizes(record))]
                # The headers go with the first block.
                is_whole = _checksum(data) == record["results"] and (number > 0 or all(headers))
                yield data if is_whole else None

    def _headers(self, records: Sequence[dict[str, Any]]) -> Iterator[bytes]:
        """The beginning of the file of each leaf."""
        count = sum(record["elements"] for record in records)
        for shape, dtype in self._leaves:
            file = io.BytesIO()
            header = {"shape": (count, *shape), "fortran_order": False, "descr": _stored(dtype).str}
            np.lib.format.write_array_header_1_0(file, header)
            yield file.getvalue()

    def _sizes(self, record: dict[str, Any]) -> list[int]:
        """The number of bytes of each leaf of a block."""
        return [record["elements"] * int(np.prod(shape)) * dtype.itemsize for shape, dtype in self._leaves]

    # ----------------------------------------------------------------- files and locks

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[IO[bytes]]:
        """Writes a file, which appears once it is whole."""
        part = self._path / f"{name}.{os.getpid()}.{secrets.token_hex(4)}.part"
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
    def claim(self, name: int | str, *, wait: bool = False) -> Iterator[bool]:
        """Claims a block, or something else, so that nobody else computes it; gives False if somebody else has it.

        The file is deleted only once the block of code has succeeded. Who locks the deleted file, or a new one, then
        finds that there is nothing left to do.
        """
        path = self._path / f"{name}.claim"
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        _locks.add(lock)
        try:
            mine = _locked(lock, wait)
            yield mine
            if mine:
                path.unlink(missing_ok=True)
        finally:
            _locks.discard(lock)
            os.close(lock)


def _locked(lock: int, wait: bool) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype in files: those that NumPy does not have, such as bfloat16, are bytes there."""
    return dtype if dtype.isbuiltin == 1 else np.dtype((np.void, dtype.itemsize))


def _checksum(data: Sequence[bytes | memoryview]) -> str:
    hashed = hashlib.sha256()
    for part in data:
        hashed.update(part)
    return hashed.hexdigest()
