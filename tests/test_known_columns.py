"""Sources that find out their columns by themselves keep those that the work directory was made with."""

import pyarrow as pa

import anabranch as ab
from anabranch.assembly import with_known_columns
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.work import Work

SCHEMA = pa.schema([("word", pa.string())])


def test_replicas_that_are_out_of_reach_are_not_asked(tmp_path):
    """A node that starts again while no replica is there goes on with what was taken from them."""
    work = Work.create(tmp_path / "work")
    pipe = ab.Pipeline("p")
    seen = pipe.source("seen", ab.read_replicas("seen", tmp_path / "gone"))

    @pipe.step(seen)
    def words(seen):
        return seen

    pipe.sink(words, ab.parquet(str(tmp_path / "out")))
    graph = pipe.graph()
    assert with_known_columns(graph, work).sources["seen"].source.schema is None
    known = ab.read_replicas("seen", tmp_path / "gone", schema="word string")
    Channel.create(work.channel_path("seen"), ChannelSpec("seen", SCHEMA, known.spec()))
    assert with_known_columns(graph, work).sources["seen"].source == known
