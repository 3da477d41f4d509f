"""A channel of other pipelines that do the same: replicas, each with its own work directory and ledger.

*Aligned*: every replica publishes the same rows in the same epochs, because it reads epochs that were decided upstream.
Epoch *n* is taken from whichever replica has it first, and becomes epoch *n* here too, so that whoever reads replicas
of this pipeline finds them aligned again. Where several have it, they must agree.

*Not aligned*: replicas cut epochs as they like, and order differs (Hwang 2009, §5.2). Everything that every replica
publishes is taken, each row with the number of its replica, and after it a punctuation, the replica's own watermark: no
later row of that replica is at or before it. `tuples.first_arrivals` makes one stream of them.

A replica may be gone by the time an epoch is executed again, so this source is an entry point: what is taken is copied
before the epoch is claimed. A replica that cannot be read is done without, and asked again later; one that has trimmed
what was never read from it is done without for good, because its punctuations would say more than is known.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from anabranch.channel.manifest import Manifest, decode
from anabranch.channel.parts import read_part
from anabranch.errors import Corrupt, PipelineError, SourceError, Trimmed
from anabranch.ledger.directory import DirectoryLedger
from anabranch.sources import ddl
from anabranch.sources.source import Limit, Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REPLICA, PUNCTUATION = "replica", "punctuation"
_ADDED = [pa.field(REPLICA, pa.int32()), pa.field(PUNCTUATION, pa.timestamp("us", tz="UTC"))]
# A replica that could not be read is asked again after this long.
_AWAY_S = 1.0


def read_replicas(
    channel: str, *works: str | os.PathLike[str], aligned: bool = True, schema: str | None = None
) -> ReplicaChannels:
    """Return a source of what pipelines that do the same publish in a channel, in work directories of their own.

    Aligned, an epoch is taken from whichever has it first. Otherwise the rows of all come, with the columns `replica`
    and `punctuation`: see `anabranch.tuples`. Without `schema` the columns are those of the first that is there.
    """
    found = tuple(os.path.abspath(work) for work in works)
    return ReplicaChannels(channel=channel, works=found, aligned=aligned, schema=schema)


@dataclass(frozen=True, kw_only=True)
class ReplicaChannels:
    """The source; made by `read_replicas`. Its `spec` always names the columns: once found, they are pinned there."""

    channel: str
    works: tuple[str, ...]
    aligned: bool = True
    schema: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "works", tuple(self.works))
        if not self.works or len(set(self.works)) != len(self.works):
            raise PipelineError(
                f"read_replicas({self.channel!r}) names {len(self.works)} work directories, or one twice",
                hint='name each replica once: ab.read_replicas("counts", "site-a/work", "site-b/work")',
            )
        if not self.channel or "/" in self.channel or self.channel.startswith("."):
            raise PipelineError(f"{self.channel!r} is no name of a channel", hint="give the name of a step")
        if self.schema is not None:
            ddl.parse(self.schema)

    def places(self) -> list[Path]:
        """Return the directories of the channel's replicas."""
        return [Path(work) / "channels" / self.channel for work in self.works]

    @cached_property
    def _declared(self) -> str:
        if self.schema is not None:
            return self.schema
        for place in self.places():
            try:
                fields = json.loads((place / "channel.json").read_bytes())
                found = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(fields["schema"])))
                return ddl.render(from_arrow_schema(found))
            except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
                continue
        raise SourceError(
            f"no replica of channel {self.channel!r} is there yet, so its columns are not known",
            hint='start one of them first, or declare the columns: schema="ts timestamp, …"',
        )

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "replicas",
            "version": 1,
            "channel": self.channel,
            "works": list(self.works),
            "aligned": self.aligned,
            "schema": self._declared,
        }

    def check(self) -> None:
        taken = {field.name for field in _ADDED} & set(self.own_schema().names)
        if taken and not self.aligned:
            raise PipelineError(
                f"channel {self.channel!r} has a column {min(taken)!r} of its own", hint="rename it in the step"
            )

    def own_schema(self) -> pa.Schema:
        """Return the schema of the channel itself."""
        return ddl.to_arrow(ddl.parse(self._declared))

    def raw_schema(self) -> pa.Schema:
        return self.own_schema() if self.aligned else pa.schema([*self.own_schema(), *_ADDED])

    def shape(self, raw: DataFrame) -> DataFrame:
        return raw

    def planner(self, snapshot: dict[str, Any] | None = None) -> AlignedPlanner | TuplePlanner:
        return AlignedPlanner(self, snapshot) if self.aligned else TuplePlanner(self, snapshot)

    def split(self, planned: Range, ways: int) -> list[Range]:
        """Return nothing: what was taken is in the channel's own parts, and a range without parts has no rows."""
        del planned, ways
        return []

    def read(self, planned: Range) -> Iterator[pa.RecordBatch]:
        """Return nothing; see `split`."""
        del planned
        return iter(())


class _Replica:
    """One replica as its files show it; nothing is ever written there."""

    def __init__(self, place: Path, schema: pa.Schema) -> None:
        self.place = place
        self._schema = schema
        self._ledger: DirectoryLedger | None = None
        self._away_until_s = float("-inf")

    def away(self, now_s: float) -> None:
        """Take note that it could not be read."""
        self._away_until_s = now_s + _AWAY_S

    def manifest(self, epoch: int, now_s: float) -> Manifest | None:
        """Return the manifest of an epoch, None if it is not there, or nobody knows; `Trimmed` if it is gone."""
        if now_s < self._away_until_s:
            return None
        try:
            if self._ledger is None:
                # Making a ledger makes its directory; this one is somebody else's.
                if not (self.place / "ledger").is_dir():
                    self.away(now_s)
                    return None
                self._ledger = DirectoryLedger(self.place / "ledger")
            record = self._ledger.read(epoch)
        except (OSError, Corrupt):
            self.away(now_s)
            return None
        return None if record is None else decode(record, f"epoch {epoch} of {self.place}")

    def rows(self, manifest: Manifest) -> list[pa.RecordBatch]:
        """Return the rows of an epoch, checked."""
        read = [batch for part in manifest.parts for batch in read_part(self.place / "parts", part)]
        return [_fitted(batch, self._schema, self.place) for batch in read]


class AlignedPlanner:
    """Takes epoch after epoch, each from the first replica that has it."""

    def __init__(self, source: ReplicaChannels, snapshot: dict[str, Any] | None) -> None:
        self._source = source
        self._replicas = [_Replica(place, source.own_schema()) for place in source.places()]
        self._next = int((snapshot or {}).get("next", 0))
        self._last: int | None = None
        self._taken: tuple[Range, list[pa.RecordBatch]] | None = None

    def waiting(self, now_s: float) -> bool:
        if self._last is not None and self._next > self._last:
            return False
        return bool(self._having(now_s))

    def backlogged(self, now_s: float, limit: Limit) -> bool:
        del now_s, limit
        return False

    def plan(self, now_s: float, limit: Limit) -> Range:
        del limit
        having = self._having(now_s)
        self._refuse_differing(having)
        # One that says that something is missing gives way to one that does not.
        for number, manifest in sorted(having.items(), key=lambda item: (item[1].gap or item[1].incomplete, item[0])):
            try:
                rows = self._replicas[number].rows(manifest)
            except (OSError, Corrupt):
                self._replicas[number].away(now_s)
                continue
            lossy = manifest.gap or manifest.incomplete
            planned = {"epoch": self._next, "replica": number, "rows": manifest.rows, "incomplete": lossy}
            self._taken = planned, rows
            return planned
        return {}

    def taken(self, planned: Range) -> list[pa.RecordBatch]:
        """Return the rows of the range that was planned last."""
        return _just_taken(self._taken, planned)

    def apply(self, planned: Range) -> None:
        if not planned:
            return
        if planned["epoch"] != self._next:
            raise Corrupt(f"epoch {planned['epoch']} of the replicas was taken, but {self._next} is next")
        self._next += 1
        self._taken = None

    def close(self, now_s: float) -> None:
        if self._last is None:
            epoch = self._next
            while self._having(now_s, epoch):
                epoch += 1
            self._last = epoch - 1

    def ended(self, now_s: float) -> bool:
        del now_s
        return self._last is not None and self._next > self._last

    def snapshot(self) -> dict[str, Any]:
        return {"next": self._next}

    def _having(self, now_s: float, epoch: int | None = None) -> dict[int, Manifest]:
        """Return the replicas that have an epoch, by default the next; `SourceError` if it is gone everywhere."""
        found, gone = {}, 0
        epoch = self._next if epoch is None else epoch
        for number, replica in enumerate(self._replicas):
            try:
                manifest = replica.manifest(epoch, now_s)
            except Trimmed:
                gone += 1
                continue
            if manifest is not None:
                found[number] = manifest
        if gone == len(self._replicas):
            raise SourceError(
                f"no replica of {self._source.channel!r} has epoch {epoch} any more",
                hint="let them retain more epochs (settings: retain_epochs), and read from the beginning",
            )
        return found

    def _refuse_differing(self, having: dict[int, Manifest]) -> None:
        whole = {n: (m.digest, m.rows) for n, m in having.items() if not (m.gap or m.incomplete)}
        if len(set(whole.values())) > 1:
            one, *others = [self._source.works[number] for number in whole]
            raise SourceError(
                f"epoch {self._next} of {self._source.channel!r} is not the same in {one} and {', '.join(others)}",
                hint="they do not read the same epochs, or a step does not repeat; read them with aligned=False",
            )


class TuplePlanner:
    """Takes what every replica has published since, whatever its epochs are."""

    def __init__(self, source: ReplicaChannels, snapshot: dict[str, Any] | None) -> None:
        self._source = source
        self._replicas = [_Replica(place, source.own_schema()) for place in source.places()]
        noted = (snapshot or {}).get("next", [0] * len(self._replicas))
        self._next = {number: int(epoch) for number, epoch in enumerate(noted)}
        self._lost: set[int] = set()
        self._last: dict[int, int] | None = None
        self._taken: tuple[Range, list[pa.RecordBatch]] | None = None

    def waiting(self, now_s: float) -> bool:
        return any(self._manifest(number, self._next[number], now_s) is not None for number in self._next)

    def backlogged(self, now_s: float, limit: Limit) -> bool:
        del now_s, limit
        return False

    def plan(self, now_s: float, limit: Limit) -> Range:
        stretches, rows = [], []
        for number in self._next:
            stretch, taken = self._stretch(number, now_s, limit.rows)
            if stretch is not None:
                stretches.append(stretch)
                rows.extend(taken)
        if not stretches:
            return {}
        planned = {"stretches": stretches}
        self._taken = planned, rows
        return planned

    def taken(self, planned: Range) -> list[pa.RecordBatch]:
        """Return the rows of the range that was planned last."""
        return _just_taken(self._taken, planned)

    def apply(self, planned: Range) -> None:
        for stretch in planned.get("stretches", []):
            number = stretch["replica"]
            if stretch["first"] != self._next[number]:
                raise Corrupt(
                    f"epoch {stretch['first']} of replica {number} was taken, but {self._next[number]} is next"
                )
            self._next[number] = stretch["last"] + 1
        self._taken = None

    def close(self, now_s: float) -> None:
        if self._last is None:
            last = {}
            for number, epoch in self._next.items():
                end = epoch
                while self._manifest(number, end, now_s) is not None:
                    end += 1
                last[number] = end - 1
            self._last = last

    def ended(self, now_s: float) -> bool:
        del now_s
        return self._last is not None and all(
            self._next[number] > last or number in self._lost for number, last in self._last.items()
        )

    def snapshot(self) -> dict[str, Any]:
        return {"next": [self._next[number] for number in sorted(self._next)]}

    def _manifest(self, number: int, epoch: int, now_s: float) -> Manifest | None:
        if number in self._lost or (self._last is not None and epoch > self._last[number]):
            return None
        try:
            return self._replicas[number].manifest(epoch, now_s)
        except Trimmed as error:
            self._lost.add(number)
            if len(self._lost) == len(self._replicas):
                raise SourceError(
                    f"every replica of {self._source.channel!r} has trimmed what was not read yet",
                    hint="let them retain more epochs (settings: retain_epochs), and read from the beginning",
                ) from error
            return None

    def _stretch(self, number: int, now_s: float, most_rows: int) -> tuple[Range | None, list[pa.RecordBatch]]:
        """Return what a replica has published since, as far as it can be read, and its punctuation."""
        replica, first = self._replicas[number], self._next[number]
        last, count, until_ms, rows = first - 1, 0, None, []
        while count < most_rows and (manifest := self._manifest(number, last + 1, now_s)) is not None:
            if manifest.gap or manifest.incomplete:
                raise SourceError(
                    f"epoch {last + 1} of {self._source.works[number]} is incomplete: nobody knows which rows it lacks",
                    hint="protect the replicas with a strategy that loses nothing",
                )
            try:
                taken = replica.rows(manifest)
            except (OSError, Corrupt):
                replica.away(now_s)
                break
            rows += [_marked(batch, number) for batch in taken]
            last, count = last + 1, count + (manifest.rows or 0)
            until_ms = until_ms if manifest.watermark_ms is None else manifest.watermark_ms
        if last < first:
            return None, []
        if until_ms is not None:
            rows.append(_punctuation(self._source.raw_schema(), number, until_ms))
        return {"replica": number, "first": first, "last": last, "punctuation_ms": until_ms}, rows


def _just_taken(taken: tuple[Range, list[pa.RecordBatch]] | None, planned: Range) -> list[pa.RecordBatch]:
    if taken is None or taken[0] != planned:
        raise Corrupt(f"the rows of {planned} are asked for, but something else was taken")
    return taken[1]


def _fitted(batch: pa.RecordBatch, schema: pa.Schema, place: Path) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_arrays(
            [batch.column(field.name).cast(field.type) for field in schema], schema=schema
        )
    except (KeyError, pa.ArrowException) as error:
        raise SourceError(
            f"the rows of {place} do not fit the columns of this source: {error}",
            hint="replicas of a channel have the same columns",
        ) from error


def _marked(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """Add the number of the replica, and no punctuation."""
    added = [pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows), pa.nulls(batch.num_rows, _ADDED[1].type)]
    return pa.RecordBatch.from_arrays([*batch.columns, *added], schema=pa.schema([*batch.schema, *_ADDED]))


def _punctuation(schema: pa.Schema, number: int, until_ms: int) -> pa.RecordBatch:
    """Return a punctuation as a row that has nothing else."""
    values: dict[str, Any] = {REPLICA: number, PUNCTUATION: until_ms * 1000}
    return pa.RecordBatch.from_arrays(
        [pa.array([values.get(field.name)], type=field.type) for field in schema], schema=schema
    )
