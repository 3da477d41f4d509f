"""A value with its checksum: how the simple backends keep it."""

from __future__ import annotations

import zlib

from anabranch.errors import Corrupt

_CRC_BYTES = 4


def framed(value: bytes) -> bytes:
    """Return a value behind its CRC-32."""
    return zlib.crc32(value).to_bytes(_CRC_BYTES, "little") + value


def unframed(content: bytes, where: str) -> bytes:
    """Return the value of a frame; `Corrupt` if it is not what was framed."""
    value = content[_CRC_BYTES:]
    if len(content) < _CRC_BYTES or zlib.crc32(value) != int.from_bytes(content[:_CRC_BYTES], "little"):
        raise Corrupt(f"{where} was altered: its checksum does not fit", hint="restore it from a copy")
    return value
