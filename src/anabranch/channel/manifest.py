"""The manifest: what one epoch of a channel holds, decided once.

A manifest is the record that is claimed at slot *e* of a channel's ledger. It names the part files (or, for a source,
the planned range), counts rows, and carries an order-independent digest of them, so that every race and every
re-execution checks that it agrees with what was published. The ledger frames records with a checksum, and `decode`
checks every field again, so an altered or foreign record never reaches a query.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from anabranch.errors import Corrupt

FORMAT = 1
PART_NAME = re.compile(r"^(\d+)-[A-Za-z0-9_.]+-\d+-\d+\.arrow\Z", re.ASCII)
_DIGEST = re.compile(r"^[0-9a-f]{32}\Z")
NO_ROWS_DIGEST = "0" * 32


@dataclass(frozen=True)
class Part:
    """One Arrow IPC file of an epoch."""

    name: str
    rows: int
    size_bytes: int
    crc: int

    def __post_init__(self) -> None:
        if not PART_NAME.match(self.name):
            msg = f"part name {self.name!r} is not one that Anabranch writes"
            raise ValueError(msg)
        if min(self.rows, self.size_bytes, self.crc) < 0:
            msg = f"part {self.name} has a negative count"
            raise ValueError(msg)


@dataclass(frozen=True)
class Producer:
    """Who published an epoch."""

    segment: str
    run: str
    generation: int


@dataclass(frozen=True)
class Manifest:
    """One epoch. `rows` is None where a source only knows byte ranges; `planned` is None for a channel of parts.

    A range with parts is one whose rows were copied when it was taken, because they may be gone later.

    `seen_ms` is the newest event time that each watermark of the segment saw in the epoch, `highest_ms` the newest that
    any of them ever saw. A `gap` was lost as a whole; of an `incomplete` epoch some rows may be missing or may have
    counted too little.
    """

    epoch: int
    producer: Producer
    released_s: float
    rows: int | None = None
    digest: str = NO_ROWS_DIGEST
    parts: tuple[Part, ...] = ()
    planned: dict[str, Any] | None = None
    event_time_us: tuple[int, int] | None = None
    watermark_ms: int | None = None
    seen_ms: tuple[int | None, ...] = ()
    highest_ms: int | None = None
    late_rows: int = 0
    gap: bool = False
    incomplete: bool = False

    def __post_init__(self) -> None:
        if self.epoch < 0 or self.late_rows < 0:
            msg = "a manifest counts from zero"
            raise ValueError(msg)
        if not self.planned and self.planned is not None and self.parts:
            msg = "a manifest of an empty range has no parts"
            raise ValueError(msg)
        if (self.planned is None or self.parts) and self.rows != sum(part.rows for part in self.parts):
            msg = f"manifest of epoch {self.epoch} counts {self.rows} rows, its parts hold another number"
            raise ValueError(msg)

    @property
    def empty(self) -> bool:
        """Whether the epoch is known to hold no rows."""
        return not self.planned if self.planned is not None else not self.parts

    def encode(self) -> bytes:
        """Return the record for the ledger: JSON with sorted keys."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, separators=(",", ":")).encode()


def decode(record: bytes, where: str) -> Manifest:
    """Read a record; `Corrupt`, naming `where`, if it is not a manifest of a known format."""
    try:
        fields = json.loads(record)
        version = fields.pop("format")
        if version != FORMAT:
            raise Corrupt(
                f"{where} has manifest format {version}, this version reads {FORMAT}",
                hint="use the version of Anabranch that wrote it",
            )
        fields["producer"] = Producer(**fields["producer"])
        fields["parts"] = tuple(Part(**part) for part in fields["parts"])
        if fields["event_time_us"] is not None:
            low, high = fields["event_time_us"]
            fields["event_time_us"] = (int(low), int(high))
        fields["seen_ms"] = tuple(fields.get("seen_ms", ()))
        _check_fields(fields)
        return Manifest(**fields)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise Corrupt(
            f"{where} does not hold a manifest: {error}", hint="restore the file from a copy; do not delete the slot"
        ) from error


def _check_fields(fields: dict[str, Any]) -> None:
    """Check what the constructors do not: that every field has the type it is used as."""
    if not _DIGEST.match(fields["digest"]):
        raise ValueError("the digest is not 32 hexadecimal digits")
    whole = [fields["epoch"], fields["late_rows"], fields["producer"].generation]
    whole += [
        value for value in (fields["rows"], fields["watermark_ms"], fields.get("highest_ms")) if value is not None
    ]
    whole += [value for value in fields["seen_ms"] if value is not None]
    whole += [count for part in fields["parts"] for count in (part.rows, part.size_bytes, part.crc)]
    if not all(type(value) is int for value in whole):
        raise ValueError("a count is not a whole number")
    if not isinstance(fields["released_s"], int | float) or not math.isfinite(fields["released_s"]):
        raise ValueError("the time of release is not a time")
    if not all(type(fields[flag]) is bool for flag in ("gap", "incomplete")):
        raise ValueError("gap and incomplete are true or false")
    if not isinstance(fields["planned"], dict | None):
        raise TypeError("the planned range is not an object")
