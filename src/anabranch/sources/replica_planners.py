"""What is taken from which replica of a channel, and its rows. Nothing is ever written where replicas are.

A replica that cannot be read is done without, and asked again later. One that has trimmed what was never read from it
is done without for good where rows are taken: its punctuations would say that everything came before them. So is one
that has become another: its newest epoch that was taken is gone or not the same, because its directory was made anew or
set back, and numbers do not mean what they meant.

Rows that a step without state passed on though they were late are left out, as steps with state leave them out, and
counted: a punctuation says that no more such rows come.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.channel.manifest import Manifest
from anabranch.errors import Corrupt, SourceError, Trimmed
from anabranch.sources.replica import Replica, mark_of
from anabranch.sources.source import Limit, Range

REPLICA, PUNCTUATION = "replica", "punctuation"
ADDED = [pa.field(REPLICA, pa.int32()), pa.field(PUNCTUATION, pa.timestamp("us", tz="UTC"))]


class AlignedPlanner:
    """Takes epoch after epoch, each from the first replica that has it."""

    def __init__(self, channel: str, replicas: list[Replica], snapshot: dict[str, Any] | None) -> None:
        self._channel = channel
        self._replicas = replicas
        self._next = int((snapshot or {}).get("next", 0))
        # What the last epoch was, where it lacked nothing: whoever has another does not have this one's successor.
        self._digest: str | None = (snapshot or {}).get("digest")
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
        self._refuse_differing(self._next, having)
        # One that says that something is missing gives way to one that does not.
        for number, manifest in sorted(having.items(), key=lambda item: (_lossy(item[1]), item[0])):
            try:
                rows = self._replicas[number].rows(manifest)
            except (OSError, Corrupt):
                self._replicas[number].away(now_s)
                continue
            planned = {
                "epoch": self._next,
                "replica": number,
                "rows": manifest.rows,
                "incomplete": _lossy(manifest),
                "digest": None if _lossy(manifest) else manifest.digest,
            }
            self._taken = planned, rows
            return planned
        return {}

    def taken(self, planned: Range) -> list[pa.RecordBatch]:
        """Return the rows of the range that was planned last."""
        return _just_taken(self._taken, planned)

    def without(self, now_s: float) -> list[str]:
        return [str(replica) for replica in self._replicas if replica.is_away(now_s)]

    def apply(self, planned: Range) -> None:
        if not planned:
            return
        if planned["epoch"] != self._next:
            raise Corrupt(f"epoch {planned['epoch']} of the replicas was taken, but {self._next} is next")
        self._next += 1
        self._digest = planned.get("digest")
        self._taken = None

    def close(self, now_s: float) -> None:
        if self._last is None:
            _ask_all(self._channel, self._replicas)
            epoch = self._next
            while self._having(now_s, epoch):
                epoch += 1
            self._last = epoch - 1

    def ended(self, now_s: float) -> bool:
        del now_s
        return self._last is not None and self._next > self._last

    def snapshot(self) -> dict[str, Any]:
        return {"next": self._next, "digest": self._digest}

    def _having(self, now_s: float, epoch: int | None = None) -> dict[int, Manifest]:
        """Return the replicas that have an epoch, by default the next; `SourceError` if it is gone everywhere."""
        found, gone = {}, 0
        epoch = self._next if epoch is None else epoch
        for number, replica in enumerate(self._replicas):
            try:
                manifest = replica.manifest(epoch, now_s)
                before = (
                    replica.manifest(epoch - 1, now_s) if manifest is not None and epoch == self._next > 0 else None
                )
            except Trimmed:
                # An epoch whose predecessor is trimmed is the newest, or cannot be compared: it is taken at its word.
                manifest, before = _untrimmed(replica, epoch, now_s), None
                gone += manifest is None
            if before is not None and self._digest not in (None, before.digest) and not _lossy(before):
                raise _differ(self._channel, epoch - 1, [str(replica), "what was taken"])
            if manifest is not None:
                found[number] = manifest
        if gone == len(self._replicas):
            raise SourceError(
                f"no replica of {self._channel!r} has epoch {epoch} any more",
                hint="let them retain more epochs (settings: retain_epochs), and read from the beginning",
            )
        return found

    def _refuse_differing(self, epoch: int, having: dict[int, Manifest]) -> None:
        whole = {number: (one.digest, one.rows) for number, one in having.items() if not _lossy(one)}
        if len(set(whole.values())) > 1:
            raise _differ(self._channel, epoch, [str(self._replicas[number]) for number in whole])


class TuplePlanner:
    """Takes what every replica has published since, whatever its epochs are."""

    def __init__(
        self,
        channel: str,
        replicas: list[Replica],
        schema: pa.Schema,
        timestamp: str,
        snapshot: dict[str, Any] | None,
    ) -> None:
        self._channel = channel
        self._replicas = replicas
        self._schema = schema
        self._timestamp = timestamp
        noted = (snapshot or {}).get("replicas", [])
        self._next = dict.fromkeys(range(len(replicas)), 0)
        self._marks: dict[int, str | None] = dict.fromkeys(self._next)
        self._until_ms: dict[int, int | None] = dict.fromkeys(self._next)
        for number, (epoch, mark, until_ms) in enumerate(noted):
            self._next[number], self._marks[number], self._until_ms[number] = epoch, mark, until_ms
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
            stretch, taken = self._stretch(number, now_s, limit)
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

    def without(self, now_s: float) -> list[str]:
        lost = {number: f"{self._replicas[number]}, for good" for number in self._lost}
        away = {number: str(one) for number, one in enumerate(self._replicas) if one.is_away(now_s)}
        return [(away | lost)[number] for number in sorted(away | lost)]

    def apply(self, planned: Range) -> None:
        for stretch in planned.get("stretches", []):
            number = stretch["replica"]
            if stretch["first"] != self._next[number]:
                raise Corrupt(
                    f"epoch {stretch['first']} of replica {number} was taken, but {self._next[number]} is next"
                )
            self._next[number] = stretch["last"] + 1
            self._marks[number], self._until_ms[number] = stretch["mark"], stretch["punctuation_ms"]
        self._taken = None

    def close(self, now_s: float) -> None:
        if self._last is None:
            _ask_all(self._channel, self._replicas)
            last = {}
            for number, epoch in self._next.items():
                end = epoch
                while self._manifest(number, end, now_s) is not None:
                    end += 1
                last[number] = end - 1
            if all(number in self._lost or self._replicas[number].is_away(now_s) for number in last):
                raise SourceError(
                    f"of {self._channel!r} nothing can be drained: without {' and '.join(self.without(now_s))}",
                    hint="one that was lost for good has trimmed what was not read yet, or was made anew",
                )
            self._last = last

    def ended(self, now_s: float) -> bool:
        """Say whether all that was there is taken; one that went away since is done without if another is done."""
        if self._last is None:
            return False
        done = {number for number, last in self._last.items() if self._next[number] > last}
        return bool(done) and all(
            number in done or number in self._lost or self._replicas[number].is_away(now_s) for number in self._last
        )

    def snapshot(self) -> dict[str, Any]:
        numbers = sorted(self._next)
        return {"replicas": [[self._next[n], self._marks[n], self._until_ms[n]] for n in numbers]}

    def _manifest(self, number: int, epoch: int, now_s: float) -> Manifest | None:
        if number in self._lost or (self._last is not None and epoch > self._last[number]):
            return None
        replica = self._replicas[number]
        try:
            if epoch == self._next[number] and replica.became_another(epoch - 1, self._marks[number], now_s):
                self._do_without(number)
                return None
            return replica.manifest(epoch, now_s)
        except Trimmed:
            self._do_without(number)
            return None

    def _do_without(self, number: int) -> None:
        """Do without a replica from now on."""
        self._lost.add(number)
        if len(self._lost) == len(self._replicas):
            raise SourceError(
                f"every replica of {self._channel!r} has trimmed what was not read yet, or was made anew",
                hint="let them retain more epochs (settings: retain_epochs), and read from the beginning",
            )

    def _stretch(self, number: int, now_s: float, limit: Limit) -> tuple[Range | None, list[pa.RecordBatch]]:
        """Return what a replica has published since, as far as it can be read at once, and its punctuation."""
        replica, first = self._replicas[number], self._next[number]
        last, count, size, late, rows = first - 1, 0, 0, 0, []
        until_ms, mark = self._until_ms[number], self._marks[number]
        while (
            count < limit.rows
            and size < limit.size_bytes
            and (manifest := self._manifest(number, last + 1, now_s)) is not None
        ):
            try:
                taken = replica.rows(manifest)
            except (OSError, Corrupt):
                replica.away(now_s)
                break
            in_time = self._in_time(replica, manifest, taken, until_ms)
            late += _count(taken) - _count(in_time)
            rows += [_marked(batch, number) for batch in in_time]
            last, mark = last + 1, mark_of(manifest)
            count, size = count + _count(taken), size + sum(batch.nbytes for batch in taken)
            until_ms = until_ms if manifest.watermark_ms is None else manifest.watermark_ms
        if last < first:
            return None, []
        if until_ms is not None and until_ms != self._until_ms[number]:
            rows.append(_punctuation(self._schema, number, until_ms))
        stretch: Range = {"replica": number, "first": first, "last": last, "mark": mark, "punctuation_ms": until_ms}
        return (stretch | {"late": late} if late else stretch), rows

    def _in_time(
        self, replica: Replica, manifest: Manifest, rows: list[pa.RecordBatch], until_ms: int | None
    ) -> list[pa.RecordBatch]:
        """Return an epoch without its late rows; `SourceError` for rows of which copies could not be told."""
        where = f"epoch {manifest.epoch} of {self._channel!r} in {replica}"
        if _lossy(manifest):
            raise SourceError(
                f"{where} is incomplete: nobody knows which rows it lacks",
                hint="protect the replicas with a strategy that loses nothing",
            )
        # The first epochs of a step with a watermark have none yet; with state it tells what times its watermarks saw,
        # without state what times its rows have.
        watermarked = manifest.watermark_ms is not None or manifest.event_time_us is not None or manifest.seen_ms
        if manifest.rows and not watermarked:
            raise SourceError(
                f"{where} has no watermark, so it could never be told up to when all rows have come",
                hint="give the step one: withWatermark(…)",
            )
        times = [pc.min(batch.column(self._timestamp)).cast(pa.int64()).as_py() for batch in rows]
        earliest_us = min((time for time in times if time is not None), default=None)
        if until_ms is None or earliest_us is None or earliest_us > until_ms * 1000:
            return rows
        # A step without state passes late rows on, which steps with state leave out. With state, or with another time
        # than that of the watermark, every row may be at or before it.
        if manifest.seen_ms or manifest.event_time_us is None or manifest.event_time_us[0] != earliest_us:
            raise SourceError(
                f"{where} has rows whose {self._timestamp!r} is at or before the watermark that it had before",
                hint="publish a time that the watermark has not passed, such as the end of a window",
            )
        return [_after(batch, self._timestamp, until_ms * 1000) for batch in rows]


def _after(batch: pa.RecordBatch, timestamp: str, us: int) -> pa.RecordBatch:
    """Return the rows that are later than that, or have no time."""
    later = pc.greater(batch.column(timestamp).cast(pa.int64()), us)
    return batch.filter(pc.fill_null(later, True))


def _count(rows: list[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in rows)


def _lossy(manifest: Manifest) -> bool:
    return manifest.gap or manifest.incomplete


def _untrimmed(replica: Replica, epoch: int, now_s: float) -> Manifest | None:
    try:
        return replica.manifest(epoch, now_s)
    except Trimmed:
        return None


def _differ(channel: str, epoch: int, who: list[str]) -> SourceError:
    return SourceError(
        f"epoch {epoch} of {channel!r} is not the same in {who[0]} and {', '.join(who[1:])}",
        hint="they do not read the same epochs, or a step does not repeat; read their rows instead: timestamp=…",
    )


def _ask_all(channel: str, replicas: list[Replica]) -> None:
    there = [replica.ask_again() for replica in replicas]
    if not any(there):
        raise SourceError(
            f"no replica of {channel!r} is there, so there is nothing to drain", hint="start one of them first"
        )


def _just_taken(taken: tuple[Range, list[pa.RecordBatch]] | None, planned: Range) -> list[pa.RecordBatch]:
    if taken is None or taken[0] != planned:
        raise Corrupt(f"the rows of {planned} are asked for, but something else was taken")
    return taken[1]


def _marked(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """Add the number of the replica, and no punctuation."""
    added = [pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows), pa.nulls(batch.num_rows, ADDED[1].type)]
    return pa.RecordBatch.from_arrays([*batch.columns, *added], schema=pa.schema([*batch.schema, *ADDED]))


def _punctuation(schema: pa.Schema, number: int, until_ms: int) -> pa.RecordBatch:
    """Return a punctuation as a row that has nothing else."""
    values: dict[str, Any] = {REPLICA: number, PUNCTUATION: until_ms * 1000}
    return pa.RecordBatch.from_arrays(
        [pa.array([values.get(field.name)], type=field.type) for field in schema], schema=schema
    )
