"""A channel of other pipelines that do the same: replicas, each with its own work directory and ledger.

*Aligned*: every replica publishes the same rows in the same epochs, because it reads epochs that were decided upstream.
Epoch *n* is taken from whichever replica has it first, and becomes epoch *n* here too, so that whoever reads replicas
of this pipeline finds them aligned again. Where several have it, they must agree.

*By rows*: replicas cut epochs as they like, and order differs (Hwang 2009, §5.2). Everything that every replica
publishes is taken, each row with the number of its replica, and after it a punctuation, the replica's own watermark: no
later row of that replica is at or before it. `tuples.first_arrivals` makes one stream of them.

A replica may be gone by the time an epoch is executed again, so this source is an entry point: what is taken is copied
before the epoch is claimed. Who takes what is in replica_planners.py.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from anabranch.errors import PipelineError, SourceError
from anabranch.sources import ddl
from anabranch.sources.replica import Replica
from anabranch.sources.replica_planners import ADDED, AlignedPlanner, TuplePlanner
from anabranch.sources.source import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def read_replicas(
    channel: str, *works: str | os.PathLike[str], timestamp: str | None = None, schema: str | None = None
) -> ReplicaChannels:
    """Return a source of what pipelines that do the same publish in a channel, in work directories of their own.

    They have the same epochs, and each is taken from whichever has it first. With `timestamp`, the column of their
    event time, they need not: the rows of all come, with the columns `replica` and `punctuation`; see
    `anabranch.tuples`. Without `schema` the columns are those of the first that is there.
    """
    found = tuple(os.path.abspath(work) for work in works)
    return ReplicaChannels(channel=channel, works=found, timestamp=timestamp, schema=schema)


@dataclass(frozen=True, kw_only=True)
class ReplicaChannels:
    """The source; made by `read_replicas`. Its `spec` always names the columns: once found, they are pinned there."""

    channel: str
    works: tuple[str, ...]
    timestamp: str | None = None
    schema: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "works", tuple(self.works))
        real = [os.path.realpath(work) for work in self.works]
        twice = [work for number, work in enumerate(self.works) if real[number] in real[:number]]
        if not real or twice:
            what = f"{twice[0]} twice" if twice else "no work directory"
            raise PipelineError(
                f"read_replicas({self.channel!r}) names {what}",
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
        known = {path.name for place in self.places() for path in place.parent.glob("*") if path.is_dir()}
        if known:
            raise SourceError(
                f"the replicas have no channel {self.channel!r}", hint=f"they have {', '.join(sorted(known))}"
            )
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
            "timestamp": self.timestamp,
            "schema": self._declared,
        }

    def check(self) -> None:
        for place in self.places():
            with contextlib.suppress(OSError, ValueError):
                made_of = json.loads((place / "channel.json").read_bytes()).get("source")
                if made_of is not None and made_of.get("kind") != "replicas":
                    raise PipelineError(
                        f"{self.channel!r} is a source of {place.parent.parent}: its rows are where it has them from",
                        hint="read what a step publishes",
                    )
        names = self.own_schema().names
        taken = {field.name for field in ADDED} & set(names)
        if taken and not self.aligned:
            raise PipelineError(
                f"channel {self.channel!r} has a column {min(taken)!r} of its own", hint="rename it in the step"
            )
        times = [field.name for field in self.own_schema() if field.type == ADDED[1].type]
        if self.timestamp is not None and self.timestamp not in times:
            raise PipelineError(
                f"channel {self.channel!r} has no timestamp {self.timestamp!r}",
                hint=f"name the column of its event time: timestamp=… ({', '.join(times) or 'it has none'})",
            )

    @property
    def aligned(self) -> bool:
        """Whether epochs are taken, not rows."""
        return self.timestamp is None

    def own_schema(self) -> pa.Schema:
        """Return the schema of the channel itself."""
        return ddl.to_arrow(ddl.parse(self._declared))

    def raw_schema(self) -> pa.Schema:
        return self.own_schema() if self.aligned else pa.schema([*self.own_schema(), *ADDED])

    def shape(self, raw: DataFrame) -> DataFrame:
        return raw

    def planner(self, snapshot: dict[str, Any] | None = None) -> AlignedPlanner | TuplePlanner:
        replicas = [Replica(place, self.own_schema()) for place in self.places()]
        if self.timestamp is None:
            return AlignedPlanner(self.channel, replicas, snapshot)
        return TuplePlanner(self.channel, replicas, self.raw_schema(), self.timestamp, snapshot)

    def split(self, planned: Range, ways: int) -> list[Range]:
        """Return nothing: what was taken is in the channel's own parts, and a range without parts has no rows."""
        del planned, ways
        return []

    def read(self, planned: Range) -> Iterator[pa.RecordBatch]:
        """Return nothing; see `split`."""
        del planned
        return iter(())
