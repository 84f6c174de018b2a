"""The bytes of a saved program: a magic, a format number, a header in JSON, and the segments, all with checksums.

The header holds the plan, and the length and checksum of each segment. A segment is compared with its checksum before
JAX reads it. Nothing here is pickled.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from typing import Any

FORMAT = 1
_MAGIC = b"jaxpyop\0"
# The magic, the format, the length of the header, and its checksum.
_START = struct.Struct("<8sIQ32s")


def packed(plan: dict[str, Any], blobs: Sequence[bytes]) -> bytes:
    """Return the bytes of a plan and of the segments that it names by number."""
    plan = {**plan, "blobs": [[len(blob), _checksum(blob).hex()] for blob in blobs]}
    header = json.dumps(plan, separators=(",", ":")).encode()
    return b"".join([_START.pack(_MAGIC, FORMAT, len(header), _checksum(header)), header, *blobs])


def unpacked(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the plan and the segments of a saved program.

    Raises:
        ValueError: these bytes are not a whole, undamaged program of this format.
    """
    if len(data) < _START.size or not data.startswith(_MAGIC):
        raise ValueError("it is not a program that jaxpyop.export saved")
    _, number, length, checksum = _START.unpack_from(data)
    if number != FORMAT:
        raise ValueError(f"it has the format {number}, and this version of jaxpyop reads the format {FORMAT}")
    header = data[_START.size : _START.size + length]
    if len(header) != length or _checksum(header) != checksum:
        raise ValueError("it is damaged: its header is not the one that was saved")
    plan, at = json.loads(header), _START.size + length
    blobs: list[bytes] = []
    for size, expected in plan["blobs"]:
        blob = data[at : at + size]
        if len(blob) != size or _checksum(blob).hex() != expected:
            raise ValueError(f"it is damaged: part {len(blobs)} is not the one that was saved")
        blobs.append(blob)
        at += size
    if at != len(data):
        raise ValueError("it is damaged: something follows its end")
    return plan, blobs


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
