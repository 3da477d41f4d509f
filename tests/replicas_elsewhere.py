"""Pipelines elsewhere, as the channels in their work directories show them."""

from dataclasses import replace

import pyarrow as pa

from anabranch import sources
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Producer
from anabranch.channel.parts import PartWriter
from anabranch.sources.source import Limit

SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("word", pa.string())])
LIMIT = Limit(1000, 1 << 20)


class Replica:
    """A pipeline elsewhere, as its channel shows it."""

    def __init__(self, work):
        self.work = work
        (work / "channels").mkdir(parents=True)
        self.channel = Channel.create(work / "channels" / "counts", ChannelSpec("counts", SCHEMA))

    def publish(self, *words, epoch=None, at_us=10_000, **fields):
        """Publish the next epoch with some rows, all of one time or each of its own."""
        epoch = self.channel.last_epoch() + 1 if epoch is None else epoch
        parts = ()
        if words:
            writer = PartWriter(self.channel.parts / f"{epoch}-r{self.work.name}-0-0.arrow", SCHEMA)
            each_us = list(at_us) if isinstance(at_us, tuple) else [at_us] * len(words)
            times = pa.array(each_us, SCHEMA[0].type)
            writer.write(pa.record_batch([times, list(words)], schema=SCHEMA))
            parts = (writer.close(),)
        digest = f"{sum(hash(word) for word in words) & (1 << 64) - 1:032x}"
        manifest = Manifest(
            epoch, Producer("counts", "r", 0), 0.0, rows=len(words), parts=parts, digest=digest, seen_ms=(0,)
        )
        self.channel.release(replace(manifest, **fields))
        return self


def source_of(*replicas, **options):
    return sources.read_replicas("counts", *(replica.work for replica in replicas), **options)


def taken(planner, now_s=0.0, limit=LIMIT):
    """Let a planner take what is next; return the range and its rows."""
    planned = planner.plan(now_s, limit)
    rows = [row for batch in planner.taken(planned) for row in batch.to_pylist()] if planned else []
    planner.apply(planned)
    return planned, rows


def words(rows):
    return [row["word"] for row in rows if row["word"] is not None]
