"""Whether a state file of a checkpoint is as Spark wrote it, as far as the file itself can tell.

Changelogs and deltas are streams of LZ4 blocks, each with a checksum of its content, closed by an empty block;
snapshots are zip files, whose entries have checksums. Of files that were compressed otherwise it can only be said that
they are there.
"""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

import pyarrow as pa
import xxhash

from anabranch.keeper.contents import state_version

_MAGIC = b"LZ4Block"
# Magic, token, compressed and original length, checksum of the original.
_HEADER = struct.Struct("<8sBiiI")
_RAW = 0x10
_SEED = 0x9747B28C
_CHECKSUM_MASK = 0xFFFFFFF


def state_file_problem(path: Path) -> str | None:
    """Say what is wrong with a state file, None if nothing is to be seen."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if not content:
        return "is empty"
    if path.suffix == ".zip":
        return _zip_problem(path)
    return _blocks_problem(content) if content.startswith(_MAGIC) else None


def _zip_problem(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
        return f"is not a whole snapshot: {error}"
    return None if damaged is None else f"was altered: {damaged} in it does not fit its checksum"


def _blocks_problem(content: bytes) -> str | None:
    codec = pa.Codec("lz4_raw")
    position = 0
    while position + _HEADER.size <= len(content):
        magic, token, packed, size, checksum = _HEADER.unpack_from(content, position)
        start, position = position, position + _HEADER.size + packed
        if magic != _MAGIC or packed < 0 or size < 0 or position > len(content):
            return f"was altered or cut off at byte {start}"
        if size == 0:
            return None if position == len(content) else f"goes on after its end at byte {position}"
        original = content[start + _HEADER.size : position]
        if token & 0xF0 != _RAW:
            try:
                original = bytes(codec.decompress(original, decompressed_size=size))
            except (OSError, ValueError):
                return f"was altered at byte {start} or after"
        if len(original) != size or xxhash.xxh32_intdigest(original, seed=_SEED) & _CHECKSUM_MASK != checksum:
            return f"was altered: the block at byte {start} does not fit its checksum"
    return f"is cut off at byte {len(content)}"


def newest_state_version(checkpoint: Path) -> int:
    """Return the newest version of any state store, 0 if there is none."""
    found = [0]
    for _, _, names in os.walk(checkpoint / "state"):
        found += filter(None, map(state_version, names))
    return max(found)
