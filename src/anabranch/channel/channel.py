"""A channel: a numbered, durable, replayable log of epochs between segments.

    channel.json        name, kind, Arrow schema, source specification, event-time column
    ledger/             one manifest per epoch, claimed once
    parts/              Arrow IPC files that manifests name
    acks/UNIT/RUN.json  what a run of a consumer has received;  acks/UNIT/safe  what the unit will never need again
    positions/EPOCH     a source's position, so that its plans can be trimmed

Failure model: any process may die at any point. A part without a manifest is an orphan and is swept once its slot was
claimed without it; a manifest's parts are durable before the claim. Slots are trimmed only below what every consumer
has declared safe, above a durable floor.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from anabranch import sources
from anabranch.channel.manifest import Manifest, Producer, decode
from anabranch.channel.parts import read_part
from anabranch.durable import fsync_directory, write_advisory, write_atomic
from anabranch.errors import Corrupt, IdentityChanged, Trimmed
from anabranch.ledger.directory import DirectoryLedger
from anabranch.ledger.ledger import NO_FLOOR

FORMAT = 1


@dataclass(frozen=True)
class ChannelSpec:
    """What a channel carries. `source` is the specification of a replayable source, None for a channel of parts."""

    name: str
    schema: pa.Schema
    source: dict[str, Any] | None = None

    def encode(self) -> bytes:
        """Return the content of channel.json."""
        fields = {
            "format": FORMAT,
            "name": self.name,
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "schema_text": str(self.schema.remove_metadata()).splitlines(),
            "source": self.source,
        }
        return json.dumps(fields, indent=1, sort_keys=True).encode()


def _decode_spec(content: bytes, where: str) -> ChannelSpec:
    try:
        fields = json.loads(content)
        if fields["format"] != FORMAT:
            raise Corrupt(f"{where} has format {fields['format']}, this version reads {FORMAT}")
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(fields["schema"])))
        return ChannelSpec(fields["name"], schema, fields["source"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{where} is not a channel description: {error}") from error


@dataclass(frozen=True)
class Outcome:
    """What a release found: whether this manifest was published, and the one that is."""

    won: bool
    manifest: Manifest


class Channel:
    """One channel directory. Cheap to open; many processes may have it open."""

    def __init__(self, path: Path, spec: ChannelSpec) -> None:
        self.path = path
        self.spec = spec
        self.ledger = DirectoryLedger(path / "ledger")
        self.parts = path / "parts"
        self._source = sources.from_spec(spec.source) if spec.source is not None else None

    # Opening

    @classmethod
    def create(cls, path: Path, spec: ChannelSpec) -> Channel:
        """Make the channel, or open it if it is there with the same schema; `IdentityChanged` if with another."""
        for name in ("ledger", "parts", "acks", "positions"):
            (path / name).mkdir(parents=True, exist_ok=True)
        description = path / "channel.json"
        if not description.exists():
            write_atomic(description, spec.encode())
            fsync_directory(path.parent)
        found = cls.open(path)
        if not found.spec.schema.equals(spec.schema):
            raise IdentityChanged(
                f"channel {spec.name!r} was written with columns {_columns(found.spec.schema)}, "
                f"the pipeline now gives {_columns(spec.schema)}",
                hint="restore the old schema, or start over with another --work directory",
            )
        if found.spec.source != spec.source and sources.may_become(found.spec.source, spec.source):
            write_atomic(description, spec.encode())
            return cls.open(path)
        if found.spec.source != spec.source:
            raise IdentityChanged(
                f"source {spec.name!r} was {_changed(found.spec.source, spec.source)} in this work directory",
                hint="restore the old arguments, or start over with another --work directory",
            )
        return found

    @classmethod
    def open(cls, path: Path) -> Channel:
        """Open an existing channel."""
        description = path / "channel.json"
        return cls(path, _decode_spec(description.read_bytes(), str(description)))

    # Epochs

    def manifest(self, epoch: int) -> Manifest | None:
        """Return the manifest of an epoch, None if it is not published; `Trimmed` at or below the floor."""
        record = self.ledger.read(epoch)
        if record is None:
            return None
        where = f"epoch {epoch} of channel {self.spec.name!r}"
        manifest = decode(record, where)
        if manifest.epoch != epoch:
            raise Corrupt(f"{where} holds the manifest of epoch {manifest.epoch}")
        return manifest

    def last_epoch(self) -> int:
        """Return the newest epoch, -1 if there is none."""
        last = self.ledger.last()
        return -1 if last is None else last

    def release(self, manifest: Manifest) -> Outcome:
        """Publish an epoch, once: the first manifest claimed at its slot is the epoch, forever.

        The parts must be written and flushed; their names are made durable here, before the claim. The loser's own
        parts that the winner does not name are removed.
        """
        if manifest.parts:
            fsync_directory(self.parts)
        claim = self.ledger.claim(manifest.epoch, manifest.encode())
        if claim.won:
            return Outcome(won=True, manifest=manifest)
        winner = decode(claim.record, f"epoch {manifest.epoch} of channel {self.spec.name!r}")
        kept = {part.name for part in winner.parts}
        for part in manifest.parts:
            if part.name not in kept:
                (self.parts / part.name).unlink(missing_ok=True)
        return Outcome(won=False, manifest=winner)

    def batches(self, manifest: Manifest) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an epoch; a source's raw rows are read again from the source."""
        if manifest.planned is not None and not manifest.parts:
            if manifest.planned and self._source is not None:
                yield from self._source.read(manifest.planned)
            return
        for part in manifest.parts:
            yield from read_part(self.parts, part)

    def table(self, epoch: int) -> pa.Table | None:
        """Return one epoch as an Arrow table, None if it is not published."""
        manifest = self.manifest(epoch)
        if manifest is None:
            return None
        try:
            return pa.Table.from_batches(list(self.batches(manifest)), self.spec.schema)
        except Corrupt:
            self.ledger.read(epoch)  # Says `Trimmed` if the epoch went away while it was read
            raise

    def begin_after(self, epoch: int, producer: Producer, now_s: float) -> None:
        """Let a new channel begin after an epoch instead of at zero: that epoch is empty, and those before are gone."""
        if epoch >= 0 and self.ledger.last() is None:
            self.release(Manifest(epoch=epoch, producer=producer, released_s=now_s, rows=0))
        if epoch > 0:
            self.ledger.trim(epoch - 1)

    # Acknowledgements

    def acknowledge(self, unit: str, run: str, received: int) -> None:
        """Note that a run has received everything up to an epoch; a hint, lost in a crash without harm."""
        directory = self.path / "acks" / unit
        directory.mkdir(exist_ok=True)
        write_advisory(directory / f"{run}.json", json.dumps({"received": received}).encode())

    def received(self, unit: str) -> int:
        """Return the newest epoch that any run of a unit has received, `NO_FLOOR` if none."""
        return max(self.received_by_run(unit).values(), default=NO_FLOOR)

    def received_by_run(self, unit: str, since_s: float = 0.0) -> dict[str, int]:
        """Return the newest epoch that each run of a unit has received, of those that have said so since some time."""
        found = {}
        for entry in _entries(self.path / "acks" / unit):
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat().st_mtime >= since_s:
                        found[entry.name.removesuffix(".json")] = _received(Path(entry.path))
        return found

    def forget_runs(self, unit: str, keep: str) -> None:
        """Remove the acknowledgements of a unit's former runs, once a new one has taken its place."""
        for entry in _entries(self.path / "acks" / unit):
            if entry.name.endswith(".json") and entry.name != f"{keep}.json":
                Path(entry.path).unlink(missing_ok=True)

    def declare_safe(self, unit: str, epoch: int) -> None:
        """Declare, durably, that a unit will never again need epochs up to this one; never goes back."""
        if epoch > self.safe(unit):
            directory = self.path / "acks" / unit
            directory.mkdir(exist_ok=True)
            write_atomic(directory / "safe", str(epoch).encode())

    def safe(self, unit: str) -> int:
        """Return what a unit has declared safe, `NO_FLOOR` if nothing."""
        try:
            return int((self.path / "acks" / unit / "safe").read_text())
        except FileNotFoundError:
            return NO_FLOOR

    # Positions of a source

    def note_position(self, epoch: int, position: dict[str, Any]) -> None:
        """Note, durably, where a source stands after an epoch; older notes but one go."""
        directory = self.path / "positions"
        write_atomic(directory / f"{epoch:012d}", json.dumps(position).encode())
        for old in self._positions()[:-2]:
            (directory / f"{old:012d}").unlink(missing_ok=True)

    def noted_position(self) -> int:
        """Return the newest epoch after which a source's position is noted; slots up to it may be trimmed."""
        return max(self._positions(), default=NO_FLOOR)

    def position(self, epoch: int) -> dict[str, Any]:
        """Return a position that was noted."""
        found: dict[str, Any] = json.loads((self.path / "positions" / f"{epoch:012d}").read_bytes())
        return found

    def _positions(self) -> list[int]:
        return sorted(int(name) for name in os.listdir(self.path / "positions") if name.isdigit())

    # Keeping it bounded

    def trim(self, floor: int) -> None:
        """Remove epochs up to `floor` and their parts, but never the newest; `sweep` finds what a crash leaves."""
        last = self.ledger.last()
        if last is None:
            return
        before, floor = self.ledger.floor(), min(floor, last - 1)
        if floor <= before:
            return
        names = [name for epoch in range(before + 1, floor + 1) for name in self._part_names(epoch) or ()]
        self.ledger.trim(floor)
        for name in names:
            (self.parts / name).unlink(missing_ok=True)

    def sweep(self) -> int:
        """Remove parts that no reader can ever need; return how many.

        A part goes if its slot lies at or below the floor, or is claimed without naming it. A part of an unclaimed
        slot stays: its writer may be about to claim.
        """
        floor = self.ledger.floor()
        named: dict[int, set[str] | None] = {}
        swept = 0
        for entry in _entries(self.parts):
            epoch_text = entry.name.partition("-")[0]
            if not epoch_text.isdigit():
                continue
            epoch = int(epoch_text)
            if epoch > floor:
                if epoch not in named:
                    named[epoch] = self._part_names(epoch)
                names = named[epoch]
                if names is None or entry.name in names:
                    continue
            Path(entry.path).unlink(missing_ok=True)
            swept += 1
        return swept

    def _part_names(self, epoch: int) -> set[str] | None:
        try:
            manifest = self.manifest(epoch)
        except Trimmed:
            return set()
        return None if manifest is None else {part.name for part in manifest.parts}


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(directory))
    except FileNotFoundError:
        return []


def _received(path: Path) -> int:
    """Read a hint that was never flushed: after a power cut it may be empty or gone."""
    try:
        return int(json.loads(path.read_bytes())["received"])
    except (FileNotFoundError, ValueError, KeyError):
        return NO_FLOOR


def _columns(schema: pa.Schema) -> str:
    return "(" + ", ".join(f"{field.name} {field.type}" for field in schema) + ")"


def _changed(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    before, after = before or {}, after or {}
    changed = [
        f"{key}={before.get(key)!r} (now {after.get(key)!r})"
        for key in sorted(before | after)
        if before.get(key) != after.get(key)
    ]
    return ", ".join(changed)
