"""Reading a channel that several pipelines publish, each in its own work directory: what is taken from whom."""

import os
import shutil

import pytest

from anabranch import sources
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Producer
from anabranch.errors import Corrupt, PipelineError, SourceError
from anabranch.sources import replica
from anabranch.sources.source import Limit
from replicas_elsewhere import LIMIT, SCHEMA, Replica, source_of, taken, words


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def two(tmp_path):
    return Replica(tmp_path / "a"), Replica(tmp_path / "b")


def test_an_epoch_comes_from_whichever_has_it_first(two):
    """And each once, whoever publishes it later."""
    a, b = two
    planner = source_of(a, b).planner()
    assert not planner.waiting(0.0)
    b.publish("x")
    assert planner.waiting(0.0)
    assert taken(planner)[1][0]["word"] == "x"
    a.publish("x").publish("y", "z")
    planned, rows = taken(planner)
    assert (planned["epoch"], planned["replica"], words(rows)) == (1, 0, ["y", "z"])
    b.publish("y", "z")
    assert not planner.waiting(0.0)


def test_an_empty_epoch_is_an_epoch(two):
    """Else numbers would not be those of the replicas."""
    planner = source_of(*two).planner()
    two[0].publish()
    planned, rows = taken(planner)
    assert planned
    assert rows == []


def test_replicas_that_disagree_are_refused(two):
    """They read other epochs, or do not repeat."""
    a, b = two
    a.publish("x")
    b.publish("y")
    with pytest.raises(SourceError, match="not the same") as caught:
        source_of(a, b).planner().plan(0.0, LIMIT)
    assert "timestamp=" in caught.value.hint


def test_what_lacks_nothing_is_preferred(two):
    """Of a gap and an epoch that is whole, the whole one; of a gap alone, the gap, which stays named."""
    a, b = two
    a.publish(gap=True).publish(gap=True)
    b.publish("x")
    planner = source_of(a, b).planner()
    assert taken(planner)[0]["incomplete"] is False
    assert taken(planner)[0]["incomplete"] is True


def test_a_damaged_or_missing_replica_is_done_without(two, tmp_path):
    """Its files are checked as they are copied; it is asked again later."""
    a, b = two
    a.publish("x").publish("y")
    b.publish("x").publish("y")
    for path in a.channel.parts.iterdir():
        path.write_bytes(b"torn")
    planner = source_of(a, b).planner()
    assert taken(planner)[0]["replica"] == 1
    shutil.rmtree(b.work)
    assert taken(planner)[0] == {}
    assert not planner.waiting(0.5)
    assert not (tmp_path / "b").exists(), "nothing is made where somebody else's work directory was"
    a.channel.parts.joinpath("1-ra-0-0.arrow").unlink()
    shutil.copytree(a.work, b.work)
    assert planner.plan(0.5, LIMIT) == {}


def test_an_epoch_that_is_gone_everywhere_is_an_error(two):
    """Not a silent gap; while one still has it, it is taken from there."""
    a, b = two
    for one in two:
        one.publish("x").publish("y")
    a.channel.trim(0)
    planner = source_of(a, b).planner()
    assert taken(planner)[0]["replica"] == 1
    late = source_of(a, b).planner()
    b.channel.trim(0)
    with pytest.raises(SourceError, match="has epoch 0 any more"):
        late.waiting(5.0)


@pytest.mark.parametrize("timestamp", [None, "ts"])
def test_a_drain_takes_what_there_is(two, timestamp):
    """And ends, though more comes."""
    two[0].publish("x")
    two[1].publish("x").publish("y")
    planner = source_of(*two, timestamp=timestamp).planner()
    planner.close(0.0)
    two[1].publish("z")
    found = []
    while planner.waiting(0.0):
        found += words(taken(planner)[1])
    assert planner.ended(0.0)
    assert sorted(set(found)) == ["x", "y"]


def test_rows_of_all_replicas_come_with_their_punctuations(two):
    """Each with the number of its replica; the newest watermark of a stretch follows it."""
    a, b = two
    a.publish("x", watermark_ms=3).publish("y", watermark_ms=5)
    b.publish("x", "y")
    planner = source_of(a, b, timestamp="ts").planner()
    planned, rows = taken(planner)
    assert [(row["replica"], row["word"]) for row in rows] == [(0, "x"), (0, "y"), (0, None), (1, "x"), (1, "y")]
    assert rows[2]["punctuation"].timestamp() == 0.005
    assert [(one["first"], one["last"], one["punctuation_ms"]) for one in planned["stretches"]] == [
        (0, 1, 5),
        (0, 0, None),
    ]
    again = source_of(a, b, timestamp="ts").planner(planner.snapshot())
    assert not again.waiting(0.0)
    b.publish("z")
    assert taken(again)[1][0]["word"] == "z"


def test_a_replica_that_trimmed_what_was_not_read_is_left_out(two):
    """Its punctuations would say that everything before came; it did not come from this one."""
    a, b = two
    a.publish("x").publish("y")
    a.channel.trim(0)
    b.publish("x")
    planner = source_of(a, b, timestamp="ts").planner()
    assert words(taken(planner)[1]) == ["x"]
    assert not planner.waiting(0.0)
    assert planner.without(0.0) == [f"{a.work}, for good"]
    lonely = source_of(a, timestamp="ts").planner()
    with pytest.raises(SourceError, match="trimmed what was not read yet"):
        lonely.waiting(0.0)


def test_rows_that_may_be_missing_are_refused_where_nobody_could_tell(two):
    """A filter of copies cannot know that a copy is missing."""
    two[0].publish("x", incomplete=True)
    with pytest.raises(SourceError, match="incomplete"):
        source_of(*two, timestamp="ts").planner().plan(0.0, LIMIT)


def test_columns_come_from_whichever_is_there(two, tmp_path):
    """Or are declared, before any of them is there."""
    source = sources.read_replicas("counts", tmp_path / "nobody", two[1].work)
    assert source.raw_schema().names == ["ts", "word"]
    missing = sources.read_replicas("counts", tmp_path / "nobody")
    with pytest.raises(SourceError, match="not known"):
        missing.raw_schema()
    assert sources.read_replicas("counts", "x", schema="a int").raw_schema().names == ["a"]
    assert source_of(two[0], timestamp="ts").raw_schema().names == ["ts", "word", "replica", "punctuation"]


@pytest.mark.parametrize(
    ("channel", "works"), [("counts", ()), ("counts", ("a", "a")), ("../x", ("a",)), ("", ("a",)), (".x", ("a",))]
)
def test_senseless_arguments_are_refused(channel, works):
    """When the source is made."""
    with pytest.raises(PipelineError):
        sources.read_replicas(channel, *works)


@pytest.mark.parametrize(
    ("published", "says"),
    [
        ({"at_us": 5_000}, "at or before the watermark"),
        ({"seen_ms": (), "watermark_ms": None}, "no watermark"),
        ({"gap": True, "words": ()}, "incomplete"),
    ],
)
def test_rows_of_which_copies_could_not_be_told_are_refused(two, published, says):
    """A time that the watermark has passed, such as the beginning of a window, would make all rows look like copies."""
    two[0].publish("x", watermark_ms=5)
    words = published.pop("words", ("y",))
    two[0].publish(*words, **{"watermark_ms": 6, **published})
    planner = source_of(*two, timestamp="ts").planner()
    with pytest.raises(SourceError, match=says):
        planner.plan(0.0, LIMIT)


def test_late_rows_that_a_step_without_state_passed_on_are_left_out(two):
    """As every step with state leaves them out; a row without a time is no later and no earlier than anything."""
    stateless = {"seen_ms": (), "watermark_ms": 5}
    two[0].publish("x", event_time_us=(10_000, 10_000), **stateless)
    two[0].publish("late", "y", "timeless", at_us=(5_000, 5_001, None), event_time_us=(5_000, 5_001), **stateless)
    planner = source_of(*two, timestamp="ts").planner()
    planned, rows = taken(planner)
    assert words(rows) == ["x", "y", "timeless"]
    assert planned["stretches"][0]["late"] == 1
    two[0].publish("late", at_us=1_000, event_time_us=(1_000, 1_000), **stateless)
    planned, rows = taken(planner)
    assert (planned["stretches"][0]["late"], rows) == (1, [])
    two[0].publish("other", at_us=1_000, event_time_us=(9_000, 9_000), **stateless)
    with pytest.raises(SourceError, match="at or before the watermark"):
        planner.plan(0.0, LIMIT)


@pytest.mark.parametrize(
    ("works", "aligned", "by_rows"),
    [
        (["a", "b"], True, True),
        (["a", "b", "c"], True, True),
        (["elsewhere", "b"], True, True),
        (["b", "a"], True, False),
        (["c", "a", "b"], True, False),
        (["a"], False, False),
    ],
)
def test_replicas_keep_their_numbers(works, aligned, by_rows):
    """How far each was read is noted by number where rows are taken; epochs have numbers of their own."""
    for timestamp, expected in ((None, aligned), ("ts", by_rows)):
        before = {"kind": "replicas", "channel": "counts", "timestamp": timestamp, "works": ["a", "b"]}
        assert sources.may_become(before, {**before, "works": works}) is expected
    assert not sources.may_become(before, {"kind": "text"})


def test_a_drain_of_what_nobody_can_read_is_no_success(two):
    """One was made anew, the other is gone: nothing is known of what they have."""
    a, b = two
    a.publish("x")
    b.publish("x")
    planner = source_of(a, b, timestamp="ts").planner()
    taken(planner)
    for one in (a, b):
        shutil.rmtree(one.work)
    Replica(a.work).publish("y").publish("z")
    with pytest.raises(SourceError, match=r"nothing can be drained: without .*a, for good and .*b"):
        planner.close(5.0)


def test_a_wrong_name_is_told_from_a_replica_that_is_not_there(two, tmp_path):
    """Else people would wait for it, or declare columns for it."""
    with pytest.raises(SourceError, match="no channel 'wrong'") as caught:
        sources.read_replicas("wrong", two[0].work).raw_schema()
    assert "counts" in caught.value.hint
    (tmp_path / "link").symlink_to(two[0].work)
    with pytest.raises(PipelineError, match="link twice"):
        sources.read_replicas("counts", two[0].work, tmp_path / "link")


def test_a_replica_that_was_made_anew_is_another(two, tmp_path):
    """Its numbers do not mean what they meant: of what it published under those that were taken, nobody would know."""
    a, b = two
    a.publish("x").publish("y")
    b.publish("x")
    planner = source_of(a, b, timestamp="ts").planner()
    taken(planner)
    shutil.rmtree(a.work)
    assert not planner.waiting(2.0), "it may only not be mounted"
    again = Replica(tmp_path / "a").publish("x", "y").publish("u").publish("v")
    assert again.channel.last_epoch() == 2
    assert not planner.waiting(5.0)
    b.publish("y")
    resumed = source_of(a, b, timestamp="ts").planner(planner.snapshot())
    assert words(taken(resumed, 10.0)[1]) == ["y"]
    shutil.rmtree(b.work)
    Replica(tmp_path / "b")
    with pytest.raises(SourceError, match="made anew"):
        resumed.waiting(20.0)


def test_an_aligned_replica_that_was_made_anew_is_refused(two, tmp_path):
    """It has the next epoch, but not the one before it."""
    a, b = two
    a.publish("x").publish("y")
    planner = source_of(a, b).planner()
    taken(planner)
    taken(planner)
    shutil.rmtree(a.work)
    Replica(tmp_path / "a").publish("x").publish("u").publish("v")
    with pytest.raises(SourceError, match="not the same"):
        planner.waiting(5.0)


@pytest.mark.parametrize("timestamp", [None, "ts"])
def test_a_record_of_another_version_does_not_end_the_reader(two, timestamp, monkeypatch):
    """The other replica is whole."""
    a, b = two
    a.publish("x")
    b.publish("x")
    real = replica.decode

    def decode(record, where):
        if str(a.work) in where:
            raise Corrupt("an unexpected field")
        return real(record, where)

    monkeypatch.setattr(replica, "decode", decode)
    planner = source_of(a, b, timestamp=timestamp).planner()
    assert words(taken(planner)[1]) == ["x"]


def test_sources_of_other_pipelines_are_refused(tmp_path):
    """Their rows are not in the channel."""
    path = tmp_path / "a" / "channels" / "counts"
    Channel.create(path, ChannelSpec("counts", SCHEMA, sources.generate_words().spec()))
    with pytest.raises(PipelineError, match="is a source of"):
        sources.read_replicas("counts", tmp_path / "a").check()


def test_a_source_that_comes_to_be_later_gives_no_rows_in_silence(two):
    """When this pipeline began, it was not there to be looked at."""
    planned = Manifest(0, Producer("pacer", "n0", 0), 0.0, rows=100, planned={"start": 0, "end": 100})
    two[0].channel.release(planned)
    with pytest.raises(SourceError, match="is a source of"):
        source_of(*two).planner().plan(0.0, LIMIT)


def test_a_timestamp_must_be_there(two):
    """And be one."""
    for column in ("when", "word"):
        with pytest.raises(PipelineError, match="no timestamp"):
            source_of(*two, timestamp=column).check()
    source_of(*two, timestamp="ts").check()


@pytest.mark.parametrize("timestamp", [None, "ts"])
def test_a_drain_of_replicas_that_are_not_there_is_an_error(tmp_path, timestamp):
    """Nothing was taken, and nobody would know."""
    planner = sources.read_replicas("counts", tmp_path / "no", timestamp=timestamp, schema="ts timestamp").planner()
    with pytest.raises(SourceError, match="nothing to drain"):
        planner.close(0.0)


def test_a_drain_ends_though_a_replica_went_away(two):
    """If another was read to its end."""
    a, b = two
    a.publish("x")
    b.publish("x")
    planner = source_of(a, b, timestamp="ts").planner()
    planner.close(0.0)
    shutil.rmtree(a.work)
    while planner.waiting(0.0):
        taken(planner)
    assert planner.ended(0.5)


def test_replicas_may_move_and_become_more(two, tmp_path):
    """A site that is lost for good can be replaced; fewer would lose their places."""
    before = source_of(*two).spec()
    moved = {**before, "works": [str(tmp_path / "c"), *before["works"][1:]]}
    assert sources.may_become(before, moved)
    assert sources.may_become(before, {**before, "works": [*before["works"], "x"]})
    assert not sources.may_become(before, {**before, "works": before["works"][:1]})
    assert not sources.may_become(before, {**before, "channel": "other"})
    snapshot = source_of(two[0], timestamp="ts").planner().snapshot()
    assert not source_of(*two, timestamp="ts").planner(snapshot).waiting(0.0)


@pytest.mark.parametrize("limit", [Limit(2, 1 << 20), Limit(1000, 20)], ids=["rows", "bytes"])
def test_no_more_is_taken_at_once_than_fits(two, limit):
    """Whole epochs of a replica, until there are rows or bytes enough for an epoch; the rest comes next."""
    a, b = two
    for number in range(6):
        a.publish("one", "two", at_us=(10_000 + number, 20_000 + number), watermark_ms=1)
    b.publish("one", at_us=10_000, watermark_ms=1)
    planner = source_of(a, b, timestamp="ts").planner()
    for number in range(6):
        planned, rows = taken(planner, limit=limit)
        assert (planned["stretches"][0]["first"], planned["stretches"][0]["last"]) == (number, number)
        assert words(rows).count("two") == 1
    assert taken(planner)[0] == {}
