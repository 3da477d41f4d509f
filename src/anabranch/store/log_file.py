"""The files of the indexed log: blocks of items, appended and flushed one block at a time.

    file    8 bytes magic and format, 8 bytes file number, blocks
    block   4 bytes magic, 4 bytes CRC-32 of the payload, 8 bytes length, payload
    payload items, one after the other:
            2 bytes key length, 1 byte kind (0 value, 1 removed), 1 byte zero, 4 bytes value length, 4 bytes CRC-32 of
            the value, key, value
    (numbers are little-endian)

A block is the unit of atomicity: it counts once its checksum fits. A block is flushed before the next one is begun, so
a crash can tear only the last block of the last file. A block that does not fit with another one after it, or in an
earlier file, was damaged later: that is an error, never a tail to cut off.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from anabranch.errors import Corrupt

MAGIC = b"ABLOG\x00\x00"
FORMAT = 1
FILE_HEADER = struct.Struct("<7sBQ")
BLOCK_HEADER = struct.Struct("<4sIQ")
BLOCK_MAGIC = b"\xabBLK"
ITEM_HEADER = struct.Struct("<HBBII")
VALUE, REMOVED = 0, 1


class Item(NamedTuple):
    """One item of a block, and where its value is; `offset` is from the start of the file."""

    key: str
    removed: bool
    offset: int
    length: int
    crc: int


class Encoded(NamedTuple):
    """A batch as bytes, and its items with offsets from the start of the bytes."""

    content: bytes
    items: tuple[Item, ...]


def file_name(number: int) -> str:
    """Return the name of a log file; names sort by number."""
    return f"{number:012d}.log"


def file_header(number: int) -> bytes:
    """Return the first bytes of a log file."""
    return FILE_HEADER.pack(MAGIC, FORMAT, number)


def encode(batch: Mapping[str, bytes | None]) -> Encoded:
    """Return a batch as items of a payload."""
    pieces: list[bytes] = []
    items: list[Item] = []
    position = 0
    for key, value in batch.items():
        name = key.encode()
        content = b"" if value is None else value
        crc = zlib.crc32(content)
        pieces += [
            ITEM_HEADER.pack(len(name), REMOVED if value is None else VALUE, 0, len(content), crc),
            name,
            content,
        ]
        offset = position + ITEM_HEADER.size + len(name)
        items.append(Item(key, value is None, offset, len(content), crc))
        position = offset + len(content)
    return Encoded(b"".join(pieces), tuple(items))


def block(payloads: list[bytes]) -> bytes:
    """Return a block of one or more encoded batches."""
    payload = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    return BLOCK_HEADER.pack(BLOCK_MAGIC, zlib.crc32(payload), len(payload)) + payload


def check_header(content: memoryview, number: int, path: Path) -> bool:
    """Say whether a file has its whole header; `Corrupt` if it is another's."""
    if len(content) < FILE_HEADER.size:
        return False
    magic, version, stated = FILE_HEADER.unpack_from(content)
    if magic != MAGIC:
        raise Corrupt(f"{path} is not a log file of a store")
    if version != FORMAT:
        raise Corrupt(
            f"{path} has format {version}, this version reads {FORMAT}", hint="use a newer version of Anabranch"
        )
    if stated != number:
        raise Corrupt(f"{path} says that it is file {stated}", hint="files of a store must not be renamed")
    return True


def blocks(content: memoryview, start: int) -> Iterator[tuple[int, int]]:
    """Yield where the payloads of whole blocks begin and end, up to the first that does not fit."""
    position = start
    while position + BLOCK_HEADER.size <= len(content):
        magic, crc, length = BLOCK_HEADER.unpack_from(content, position)
        begin = position + BLOCK_HEADER.size
        end = begin + length
        if magic != BLOCK_MAGIC or end > len(content) or zlib.crc32(content[begin:end]) != crc:
            return
        yield begin, end
        position = end


def items(content: memoryview, begin: int, end: int, path: Path) -> Iterator[Item]:
    """Yield the items of a payload whose checksum fits."""
    position = begin
    while position < end:
        key_length, kind, _, length, crc = ITEM_HEADER.unpack_from(content, position)
        offset = position + ITEM_HEADER.size + key_length
        position = offset + length
        if position > end or kind not in (VALUE, REMOVED):
            raise Corrupt(f"{path} holds an item at byte {offset} that this version cannot read")
        key = bytes(content[offset - key_length : offset]).decode()
        yield Item(key, kind == REMOVED, offset, length, crc)


def block_after(content: memoryview, position: int) -> bool:
    """Say whether a whole block begins anywhere after a position: then what is before it was damaged, not torn."""
    data = bytes(content[position:])
    found = data.find(BLOCK_MAGIC, 1)
    while found >= 0:
        if next(blocks(content, position + found), None) is not None:
            return True
        found = data.find(BLOCK_MAGIC, found + 1)
    return False
