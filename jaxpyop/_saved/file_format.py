"""The bytes of a saved program: a magic, a format number, a checksum, the plan as compressed JSON, and the segments.

The checksum covers everything after it. It is compared before anything is decompressed or given to JAX. It detects
damage by accident, and does not protect against an attacker. Nothing in the file is pickled.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

FORMAT = 1
_MAGIC = b"jaxpyop\0"
# The magic, the format, and the checksum.
_START = struct.Struct("<8sI32s")
_LENGTH = struct.Struct("<Q")
# The largest plausible ratio of a plan's size to the size of the file. Decompression stops there, so that a manipulated
# file cannot fill the memory.
_MOST_COMPRESSION = 100


def packed(plan: dict[str, Any], blobs: Sequence[bytes]) -> bytes:
    """Return a plan, and the segments that the plan names by number, as bytes."""
    plan = {**plan, "blobs": list(map(len, blobs))}
    header = zlib.compress(json.dumps(plan, separators=(",", ":"), default=_refused).encode(), 9)
    content = b"".join([_LENGTH.pack(len(header)), header, *blobs])
    return _START.pack(_MAGIC, FORMAT, hashlib.sha256(content).digest()) + content


def _refused(value: Any) -> Any:
    raise ValueError(
        f"jaxpyop.export: the size {value} is symbolic, and a Python call cannot have it in Tout, in a vmap or a loop "
        "around it, or in the transpose of a linear op; let Tout have a dtype alone, or export for known sizes"
    )


def unpacked(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the plan and the segments of a saved program.

    Raises:
        ValueError: these bytes are not a whole, undamaged program of this format.
    """
    if len(data) < _START.size + _LENGTH.size or not data.startswith(_MAGIC):
        raise ValueError("it is not a program that jaxpyop.export saved")
    _, number, checksum = _START.unpack_from(data)
    if number != FORMAT:
        raise ValueError(f"it has the format {number}, and this version of jaxpyop reads the format {FORMAT}")
    if hashlib.sha256(data[_START.size :]).digest() != checksum:
        raise ValueError("it is damaged: its checksum is not the one that was saved")
    at = _START.size + _LENGTH.size
    (length,) = _LENGTH.unpack_from(data, _START.size)
    reader = zlib.decompressobj()
    plan = json.loads(reader.decompress(data[at : at + length], _MOST_COMPRESSION * len(data)))
    blobs: list[bytes] = []
    at += length
    for size in plan["blobs"]:
        blobs.append(data[at : at + size])
        if len(blobs[-1]) != size:
            raise ValueError("its parts have other sizes than its plan says")
        at += size
    if not reader.eof or at != len(data):
        raise ValueError("its parts have other sizes than its plan says")
    return plan, blobs
