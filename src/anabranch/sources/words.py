"""Words without end: a source for demonstrations, tests and benchmarks that needs no input at all.

Row number *n* is a pure function of the seed and *n*: its word is drawn by a hash of both, so any stretch of rows can
be made anywhere, in any number of pieces, and is always the same. Words follow Zipf's law, as in a language: a few are
frequent and most are rare.

At a pace, row *n* falls at `origin + n / rate`; the origin is the wall time of the first plan, and every range
carries it, so that reading needs no clock. Without a pace, rows come as fast as they are asked for and event time
runs at 100,000 rows a second from a fixed origin.

Speed: a table over the top bits of the hash gives the word for nearly every row, and only a hash that falls between
two words is looked up in the distribution. Time is computed in blocks of fixed position: exact in any year, and the
same however a range was cut. Rejected: a random generator (its state would tie a row to the rows before it).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.errors import Corrupt, PipelineError, SourceError
from anabranch.sources.source import Limit, Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIXED_ORIGIN_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
UNPACED_ROWS_PER_SECOND = 100_000.0
BLOCK_ROWS = 65_536
_LARGEST_VOCABULARY = 1_000_000
_EXPONENT = 1.1
# So that a row number, and its time in microseconds, stay far inside 64 bits.
_MOST_ROWS = 10**15
_SLOWEST, _FASTEST = 1e-3, 1e9
_SECOND_US = 1_000_000
# Steps and multipliers of splitmix64, a counter-based hash with full avalanche.
_GAMMA = 0x9E3779B97F4A7C15
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_SCHEMA = pa.schema([pa.field("ts", pa.timestamp("us", tz="UTC")), pa.field("word", pa.string())])
_AMBIGUOUS = -1


def generate_words(
    rows_per_second: float | None = None,
    *,
    vocabulary: int = 1000,
    rows: int | None = None,
    seed: int = 0,
    start: datetime | str | None = None,
) -> Words:
    """Return a source of `ts timestamp, word string`.

    `rows_per_second=None` gives rows as fast as they are asked for. `rows` ends the source after that many. `start` is
    the time of row 0 (a datetime or ISO 8601 text, UTC if it names no zone); with a pace, rows whose time has passed
    wait, so a start in the past is a backlog.
    """
    return Words(
        rows_per_second=rows_per_second,
        vocabulary=vocabulary,
        rows=rows,
        seed=seed,
        start_us=None if start is None else _microseconds(start),
    )


@dataclass(frozen=True)
class Words:
    """The source; made by `generate_words`."""

    rows_per_second: float | None
    vocabulary: int
    rows: int | None
    seed: int
    start_us: int | None

    def __post_init__(self) -> None:
        if self.rows_per_second is not None:
            _check_rate(self.rows_per_second)
        _check_whole("vocabulary", self.vocabulary, 1, _LARGEST_VOCABULARY)
        _check_whole("seed", self.seed, 0, _MASK)
        if self.rows is not None:
            _check_whole("rows", self.rows, 1, _MOST_ROWS)
        if self.start_us is not None:
            _check_whole("start_us", self.start_us, -(2**62), 2**62)

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "words",
            "version": 1,
            "rows_per_second": self.rows_per_second,
            "vocabulary": self.vocabulary,
            "rows": self.rows,
            "seed": self.seed,
            "start_us": self.start_us,
        }

    def check(self) -> None:
        """Nothing outside can be wrong."""

    def raw_schema(self) -> pa.Schema:
        return _SCHEMA

    def shape(self, raw: DataFrame) -> DataFrame:
        return raw

    def planner(self, snapshot: dict[str, Any] | None = None) -> WordsPlanner:
        return WordsPlanner(self, snapshot)

    def split(self, planned: Range, ways: int) -> list[Range]:
        if not planned:
            return []
        start, end, origin_us = planned["start"], planned["end"], planned["origin_us"]
        ways = max(1, min(ways, end - start))
        edges = [start + (end - start) * way // ways for way in range(ways + 1)]
        return [{"start": first, "end": last, "origin_us": origin_us} for first, last in pairwise(edges)]

    def read(self, planned: Range) -> Iterator[pa.RecordBatch]:
        start, end = planned.get("start", 0), planned.get("end", 0)
        if start >= end:
            return
        for block in range(start // BLOCK_ROWS, -(-end // BLOCK_ROWS)):
            first = max(start - block * BLOCK_ROWS, 0)
            last = min(end - block * BLOCK_ROWS, BLOCK_ROWS)
            times = self._times(block, first, last, planned["origin_us"])
            words = self._words(block * BLOCK_ROWS + first, last - first)
            yield pa.RecordBatch.from_arrays([times, words], schema=_SCHEMA)

    @property
    def rate(self) -> float:
        """Rows per second of event time."""
        return self.rows_per_second or UNPACED_ROWS_PER_SECOND

    def _times(self, block: int, first: int, last: int, origin_us: int) -> pa.Array:
        """Return the times of some rows of a block; the block's own start is exact, whatever the rate."""
        step_us = _SECOND_US / self.rate
        begin_us = Fraction(block * BLOCK_ROWS) * _SECOND_US / Fraction(self.rate)
        whole_us = math.floor(begin_us)
        times = _positions()[first:last] * step_us
        times += float(begin_us - whole_us)
        micros = times.astype(np.int64)
        micros += origin_us + whole_us
        return pa.Array.from_buffers(_SCHEMA.field("ts").type, last - first, [None, pa.py_buffer(micros)])

    def _words(self, start: int, rows: int) -> pa.Array:
        table = _table(self.vocabulary)
        hashes = _hashes(self.seed, start, rows)
        # Positions in a table are at most 2**22: a signed index spares numpy a conversion.
        index = table.slots.take((hashes >> table.shift).view(np.int64))
        between = np.flatnonzero(index == _AMBIGUOUS)
        if len(between):
            draws = hashes[between] >> np.uint64(32)
            index[between] = np.searchsorted(table.ends, draws, side="right")
        letters = table.words.take(index)
        offsets = _word_offsets(table.words.itemsize)
        return pa.Array.from_buffers(pa.string(), rows, [None, offsets, pa.py_buffer(letters)])


class WordsPlanner:
    """Where the source stands: the number of the next row, and the origin once rows were planned."""

    def __init__(self, source: Words, snapshot: dict[str, Any] | None) -> None:
        self._source = source
        self._next = 0
        # At a pace without a start, the first question sets it; a decided range overrules it.
        self._origin_us = source.start_us
        if source.rows_per_second is None and self._origin_us is None:
            self._origin_us = FIXED_ORIGIN_US
        self._closed_rows: int | None = None
        if snapshot is not None:
            try:
                self._next = int(snapshot["next"])
                self._origin_us = self._origin_us if snapshot["origin_us"] is None else int(snapshot["origin_us"])
            except (KeyError, TypeError, ValueError) as error:
                raise Corrupt(f"the position of a words source is {snapshot!r}: {error!r}") from error

    def waiting(self, now_s: float) -> bool:
        return self._available(now_s) > self._next

    def backlogged(self, now_s: float, limit: Limit) -> bool:
        wanted = self._next + max(limit.rows, 0)
        return self._available(now_s, at_most=wanted) >= wanted

    def plan(self, now_s: float, limit: Limit) -> Range:
        end = self._next + max(limit.rows, 0)
        end = min(end, self._available(now_s, at_most=end))
        if end <= self._next:
            return {}
        return {"start": self._next, "end": end, "origin_us": self._origin_us}

    def apply(self, planned: Range) -> None:
        if not planned:
            return
        if planned["start"] != self._next:
            raise Corrupt(
                f"a words range starts at row {planned['start']}, but rows up to {self._next} are decided",
                hint="restore the source's ledger from a copy",
            )
        self._next = planned["end"]
        self._origin_us = planned["origin_us"]

    def close(self, now_s: float) -> None:
        source = self._source
        if source.rows_per_second is None and source.rows is None:
            raise SourceError(
                "generate_words() has no end, so it cannot be drained",
                hint="give it rows=…, or a pace: rows_per_second=…",
            )
        if self._closed_rows is None:
            self._closed_rows = self._available(now_s)

    def ended(self, now_s: float) -> bool:
        total = self._closed_rows if self._closed_rows is not None else self._source.rows
        return total is not None and self._next >= total

    def snapshot(self) -> dict[str, Any]:
        """Return the position. Before the first decided range the origin is open: whoever goes on may set it anew."""
        return {"next": self._next, "origin_us": self._origin_us if self._next else None}

    def _available(self, now_s: float, at_most: int | None = None) -> int:
        """Return how many rows there are by now, from row 0; an endless source without a pace has as many as asked."""
        if self._closed_rows is not None:
            return self._closed_rows
        source = self._source
        if source.rows_per_second is None:
            if source.rows is not None:
                return source.rows
            return self._next + 1 if at_most is None else at_most
        now_us = math.floor(now_s * _SECOND_US)
        if self._origin_us is None:
            self._origin_us = now_us
        passed = max(0, math.floor(Fraction(now_us - self._origin_us) * Fraction(source.rows_per_second) / _SECOND_US))
        return passed if source.rows is None else min(passed, source.rows)


@dataclass(frozen=True)
class _Table:
    """A vocabulary with its distribution. `ends[i]` is where word *i* ends on a scale of 2**32."""

    words: npt.NDArray[Any]
    ends: npt.NDArray[np.uint64]
    slots: npt.NDArray[np.int32]
    shift: np.uint64


@functools.lru_cache(maxsize=4)
def _table(vocabulary: int) -> _Table:
    """Make the tables of a vocabulary; they depend on nothing else, so a process makes them once."""
    weights = np.arange(1, vocabulary + 1, dtype=np.float64) ** -_EXPONENT
    # On a scale of whole numbers, the last bit of a machine's arithmetic decides nothing.
    ends = np.round(np.cumsum(weights) / weights.sum() * 2.0**32).astype(np.uint64)
    ends[-1] = 2**32
    bits = min(max(16, (16 * vocabulary).bit_length()), 22)
    edges = np.arange(2**bits + 1, dtype=np.uint64) << np.uint64(32 - bits)
    lowest = np.searchsorted(ends, edges[:-1], side="right")
    highest = np.searchsorted(ends, edges[1:] - np.uint64(1), side="right")
    slots = np.where(lowest == highest, lowest, _AMBIGUOUS).astype(np.int32)
    digits = max(4, len(str(vocabulary - 1)))
    words = np.array([f"word{rank:0{digits}d}" for rank in range(vocabulary)], dtype=f"S{4 + digits}")
    # Eight bytes are one machine word, which numpy picks far faster than a text.
    words = words.view(np.uint64) if words.itemsize == np.dtype(np.uint64).itemsize else words
    return _Table(words, ends, slots, np.uint64(64 - bits))


def _hashes(seed: int, start: int, rows: int) -> npt.NDArray[np.uint64]:
    """Return the hash of (seed, row number) for consecutive rows: splitmix64 with the seed as its stream."""
    begin = (_mix(seed) + (start + 1) * _GAMMA) & _MASK
    state = _steps()[:rows] + np.uint64(begin)
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


def _mix(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@functools.cache
def _steps() -> npt.NDArray[np.uint64]:
    return np.arange(BLOCK_ROWS, dtype=np.uint64) * np.uint64(_GAMMA)


@functools.cache
def _positions() -> npt.NDArray[np.float64]:
    return np.arange(BLOCK_ROWS, dtype=np.float64)


@functools.lru_cache(maxsize=4)
def _word_offsets(width: int) -> pa.Buffer:
    return pa.py_buffer(np.arange(0, (BLOCK_ROWS + 1) * width, width, dtype=np.int32))


def _check_rate(value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _SLOWEST <= value <= _FASTEST:
        raise PipelineError(
            f"generate_words: rows_per_second is {value!r}", hint=f"a number, {_SLOWEST:g} to {_FASTEST:g}, or None"
        )


def _check_whole(name: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise PipelineError(f"generate_words: {name} is {value!r}", hint=f"a whole number, {least} to {most}")


def _microseconds(start: datetime | str) -> int:
    try:
        moment = start if isinstance(start, datetime) else datetime.fromisoformat(start)
    except (TypeError, ValueError):
        raise PipelineError(
            f"generate_words: start is {start!r}", hint="give a datetime, or text as in '2026-01-01T00:00:00Z'"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    passed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * _SECOND_US + passed.microseconds
