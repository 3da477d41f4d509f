r"""The bytes of one slot in a directory: an ASCII header line, then the record.

    anabranch-slot 1 <blake2b-128, hex> <record length in bytes>\n<record>

The digest covers the file's name and the record. So a torn file, an altered one and one that was copied to another
slot's name are all told from a whole one. A reader builds the only header that fits name and record and compares the
bytes; it parses a header only to say what is wrong.

Rejected: a CRC (a manifest decides what everyone reads; chance is no adversary, but 12 more bytes cost nothing), and a
JSON envelope (records are bytes, and would have to be escaped).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from anabranch.errors import Corrupt

MAGIC = b"anabranch-slot"
VERSION = b"1"
_HEADER_FIELDS = 4


def encode(name: str, record: bytes) -> bytes:
    """Return the content of the slot file `name` that holds `record`."""
    digest = hashlib.blake2b(name.encode() + b"\n" + record, digest_size=16).hexdigest()
    return b"%s %s %s %d\n%s" % (MAGIC, VERSION, digest.encode(), len(record), record)


def decode(path: Path, content: bytes) -> bytes:
    """Return the record in a slot file's content; `Corrupt`, naming the file, if it is not whole and unaltered."""
    header, _, record = content.partition(b"\n")
    if content == encode(path.name, record):
        return record
    raise Corrupt(
        f"slot file {path} {_fault(header, record)}",
        hint="bring this file back from a copy or a store; do not delete it: what was decided would be decided again",
    )


def _fault(header: bytes, record: bytes) -> str:
    """Say what is wrong with a slot file that is known to be damaged."""
    fields = header.split(b" ")
    if len(fields) != _HEADER_FIELDS or fields[0] != MAGIC:
        return "has no valid header: it is torn or was not written by Anabranch"
    if fields[1] != VERSION:
        return f"has format version {fields[1].decode(errors='replace')}; this Anabranch reads version 1 only"
    if fields[3] != str(len(record)).encode():
        return f"is torn: {len(record)} bytes where its header says {fields[3].decode(errors='replace')}"
    return "is altered, or belongs to another slot: its checksum does not fit"
