"""What chaos decides and does without a cluster: schedules, means, input, damage, and the report."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Producer
from anabranch.chaos import damage
from anabranch.chaos.faults import CATALOGUE, chosen, schedule
from anabranch.chaos.history import History, read_history
from anabranch.chaos.judging import _holes
from anabranch.chaos.means import missing, possible
from anabranch.chaos.nemeses import NEMESES
from anabranch.chaos.recording import Lookout, Recorder
from anabranch.chaos.report import write_report
from anabranch.chaos.scene import NotInjected, Scene
from anabranch.chaos.workload import Workload
from anabranch.elsewhere import input_path, moved, output_path
from anabranch.errors import PipelineError, SourceError
from anabranch.node_options import NodeOptions
from anabranch.node_process import decode_options, encode_options
from anabranch.testing.wait import wait_until
from anabranch.work import Work

FAULTS = list(CATALOGUE.values())


def pipeline(tmp_path, files=20):
    """A pipeline over some text files."""
    (tmp_path / "lines").mkdir()
    for number in range(files):
        (tmp_path / "lines" / f"{number:03d}.txt").write_text(f"{number}\n")
    pipe = ab.Pipeline("some")
    lines = pipe.source("lines", ab.read_text(tmp_path / "lines"))
    words = pipe.source("words", ab.generate_words(rows=10))
    kept = pipe.step(lines, words, connector=True)(lambda_step)
    pipe.sink(kept, ab.jsonl(tmp_path / "out"))
    pipe.protect(strategy=ab.PassiveStandby(store=["log:here", "redis://localhost:1/0"]))
    return pipe.graph()


def lambda_step(lines, words):
    return lines.join(words)


# Schedules


@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(1.0, 1000.0))
def test_a_seed_is_a_schedule(seed, count, seconds):
    """Faults come in order, apart from each other, in time; every kind comes before one comes twice."""
    strikes = schedule(FAULTS, seed=seed, count=count, seconds=seconds)
    assert strikes == schedule(FAULTS, seed=seed, count=count, seconds=seconds)
    times = [strike.at_s for strike in strikes]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= seconds
    assert len(strikes) == count
    assert len({strike.fault.name for strike in strikes}) == min(count, len(FAULTS))


def test_faults_are_chosen_by_name_or_group():
    """All, a group, or one; what does not exist is refused with what does."""
    assert [fault.name for fault in chosen(["kill", "network", "kill"])] == ["kill", "cut", "deaf"]
    assert chosen(["all"]) == FAULTS
    with pytest.raises(PipelineError, match="no fault 'flood'") as refused:
        chosen(["flood"])
    assert "kill-in-takeover" in refused.value.hint


def test_every_fault_has_someone_to_carry_it_out():
    """And nobody carries out what is not in the catalogue."""
    assert set(NEMESES) == set(CATALOGUE)


def test_what_cannot_be_done_says_why(tmp_path):
    """A fault that needs what is not there is left out, by name."""
    graph = pipeline(tmp_path)
    lacking = missing(graph, [ab.ActiveStandby()], 1, "local[1]")
    able, unable = possible(FAULTS, lacking)
    assert "it takes --nodes 2 or more" in unable["cut"]
    assert unable["damage-store"] == "no segment is kept in a store"
    assert unable["kill-in-regating"] == "no segment has a gated standby"
    assert {fault.name for fault in able} | set(unable) == set(CATALOGUE)
    assert unable["kill-executors"].startswith("in local mode")
    there = missing(graph, [ab.PassiveStandby(store="log:x")], 2, "local-cluster[1,1,1024]")
    assert not {"standby", "store", "executors"} & set(there)


# The same pipeline, elsewhere


def test_a_pipeline_is_moved_as_a_whole(tmp_path):
    """Files, sinks and stores that are directories; what it makes itself, and other stores, stay."""
    graph, scratch = pipeline(tmp_path), tmp_path / "scratch"
    there = moved(graph, scratch)
    assert there.sources["lines"].source == replace(
        graph.sources["lines"].source, directory=str(input_path(scratch, "lines"))
    )
    assert there.sources["words"] == graph.sources["words"]
    (sink,) = there.sinks.values()
    assert (sink.sink.directory, sink.sink.kind) == (output_path(scratch, sink.name), "parquet")
    assert there.strategies[None].stores == (f"log:{scratch}/stores/0", "redis://localhost:1/0")
    assert there.steps == graph.steps


def test_options_of_a_node_survive_the_command_line(tmp_path):
    """Paths come back as paths, also the one that may be missing."""
    options = NodeOptions(file=tmp_path / "a.py", work=tmp_path / "w")
    for one in (options, replace(options, elsewhere=tmp_path, settings={"spark.a": "b"}, retain_epochs=3)):
        assert decode_options(encode_options(one)) == one


# Input


def test_files_come_bit_by_bit_and_all_of_them_in_the_end(tmp_path):
    """Each once, though some were held back; in the order that is told."""
    graph, scratch = pipeline(tmp_path), tmp_path / "scratch"
    workload = Workload(graph, scratch, seconds=1.0, seed=3)
    place = input_path(scratch, "lines")
    assert [path.name for path in place.iterdir()] == ["000.txt"]
    workload.start()
    workload.ready()
    wait_until(lambda: len(workload.order["lines"]) >= 8, 30.0, "eight files")
    assert workload.late(random.Random(0)) == f"lines: {workload.order['lines'][-1]}"
    assert workload.late(random.Random(0)) is None
    again = workload.duplicate(random.Random(0))
    assert again.startswith("lines: ")
    workload.finish()
    assert sorted(path.name for path in place.iterdir()) == sorted(workload.order["lines"])
    assert len(workload.order["lines"]) == 21
    assert workload.given() == {"lines": 21}


def test_a_burst_gives_at_once_what_was_saved_up(tmp_path):
    """Nothing comes while the input rests."""
    workload = Workload(pipeline(tmp_path), tmp_path / "scratch", seconds=0.5, seed=3)
    assert workload.rest()
    workload.start()
    workload.ready()
    wait_until(lambda: workload._due.get("lines", 0) >= 19, 5.0, "time to pass")
    assert workload.order["lines"] == ["000.txt"]
    workload.burst()
    wait_until(lambda: len(workload.order["lines"]) >= 19, 5.0, "everything at once")
    workload.finish()
    assert not workload.rest(), "nothing is left to give"


def test_little_input_comes_before_everyone_is_ready(tmp_path):
    """Or faults would meet a pipeline that has nothing to process any more."""
    workload = Workload(pipeline(tmp_path), tmp_path / "scratch", seconds=0.5, seed=3)
    with ExitStack() as stack:
        stack.callback(workload.finish)
        workload.start()
        wait_until(lambda: workload._due.get("lines", 0) >= 0.05, 5.0, "time to pass")
        workload._due["lines"] = 100.0
        wait_until(lambda: len(workload.order["lines"]) >= 3, 5.0, "what may come early")
        wait_until(lambda: workload._due["lines"] > 98.1, 5.0, "more time to pass")
        assert len(workload.order["lines"]) == 3
        workload.ready()
        wait_until(lambda: len(workload.order["lines"]) >= 19, 5.0, "the rest")


def test_lines_get_the_end_that_they_lack(tmp_path):
    """A stream waits for it, a batch query does not: the oracle would miss a row that was never taken."""
    graph, scratch = pipeline(tmp_path), tmp_path / "scratch"
    for path in (tmp_path / "lines").iterdir():
        path.write_text("one\ntwo")
    workload = Workload(graph, scratch, seconds=1.0, seed=3)
    workload.start()
    workload.finish()
    assert {path.read_text() for path in input_path(scratch, "lines").iterdir()} == {"one\ntwo\n"}


def test_what_was_planned_is_kept_and_tells_what_was_taken(tmp_path):
    """Also when the run has trimmed it; a file is taken when its last whole line, or its last row group, is."""
    work = Work.create(tmp_path / "work")
    source = ab.read_text(tmp_path)
    spec = ChannelSpec("lines", source.raw_schema(), source.spec())
    channel = Channel.create(work.channel_path("lines"), spec)
    recorder = Recorder(tmp_path / "work", tmp_path / "recorded", ["lines"])
    file = tmp_path / "000.txt"
    file.write_text("one\ntwo\nhalf")
    assert not recorder.took("lines", file)
    for epoch, end in enumerate((4, 8)):
        pieces = [{"file": "000.txt", "start": 0, "end": end, "crc": 0}]
        channel.release(Manifest(epoch, Producer("pacer", "n", 0), 0.0, planned={"pieces": pieces}))
        recorder.look()
        assert recorder.took("lines", file) == (end == 8)
    channel.trim(0)
    assert recorder.complete()
    assert recorder.recorded.channel("lines").manifest(0) is not None
    groups = [{"file": "a.parquet", "start": 0, "end": 2, "groups": 3}]
    channel.release(Manifest(2, Producer("pacer", "n", 0), 0.0, planned={"pieces": groups}))
    recorder.look()
    assert not recorder.took("lines", tmp_path / "a.parquet")
    assert recorder.missed is None
    for epoch in (3, 4):
        channel.release(Manifest(epoch, Producer("pacer", "n", 0), 0.0, planned={"pieces": []}))
    channel.trim(3)
    recorder.look()
    assert "plans of source 'lines' were forgotten before they were copied" in recorder.missed
    assert not recorder.complete()


def test_a_lookout_looks_all_the_time_and_once_more():
    """What came in the last moment is seen too."""
    seen = []
    lookout = Lookout(lambda: seen.append("one"), lambda: seen.append("other"))
    lookout.start()
    wait_until(lambda: len(seen) >= 4, 5.0, "some looks")
    lookout.end()
    so_far = len(seen)
    assert seen == ["one", "other"] * (so_far // 2)


def test_a_source_without_files_is_refused(tmp_path):
    """There is nothing to run the pipeline over."""
    graph = pipeline(tmp_path, files=0)
    with pytest.raises(SourceError, match="has no files"):
        Workload(graph, tmp_path / "scratch", seconds=1.0, seed=0)


# Damage


@pytest.mark.parametrize("seed", range(8))
def test_what_is_damaged_can_be_put_back(tmp_path, seed):
    """Deleted, cut short or with a bit turned; afterwards as before, in the same file where others have links to it."""
    files = [tmp_path / f"{number}" for number in range(3)]
    for path in files:
        path.write_bytes(bytes(range(100)))
    (tmp_path / "link").hardlink_to(files[0])
    scene = Scene(SimpleNamespace(scratch=tmp_path), ["unit"], [], {}, None)
    hit = damage._damage(scene, random.Random(seed), files, 2, of="unit")
    assert len(hit) == 2
    changed = [path for path in files if not path.exists() or path.read_bytes() != bytes(range(100))]
    assert len(changed) == 2
    scene.put_right()
    assert len(scene.undos) == 2
    scene.put_right(everything=True)
    assert scene.undos == []
    assert [path.read_bytes() for path in files] == [bytes(range(100))] * 3
    assert (tmp_path / "link").read_bytes() == bytes(range(100))


@pytest.mark.parametrize("seed", range(8))
def test_what_was_written_since_is_left_alone(tmp_path, seed):
    """Putting the old content back would be another fault, and nobody would know of it."""
    path = tmp_path / "log"
    path.write_bytes(bytes(range(100)))
    said = []
    scene = Scene(SimpleNamespace(scratch=tmp_path), ["unit"], [], {}, None, healed=said.append)
    damage._damage(scene, random.Random(seed), [path], 1, of="unit")
    assert scene.undos[0].names == ("'unit'", "log")
    path.write_bytes(b"something newer")
    scene.put_right(everything=True)
    assert path.read_bytes() == b"something newer"
    assert said == ["log put back: left alone, it was written since"]


def test_damage_without_files_is_none(tmp_path):
    """A fault that found nothing was not injected."""
    scene = Scene(SimpleNamespace(scratch=tmp_path), ["unit"], [], {}, None)
    with pytest.raises(NotInjected):
        damage._damage(scene, random.Random(0), [tmp_path / "gone"], 1, of="unit")


# The report


def test_the_report_shows_what_the_history_tells(tmp_path):
    """Faults, takeovers, output and verdict, with a picture; what users wrote is only text in it."""
    history = History(tmp_path / "history.jsonl")
    history.note("began", file="a<b>.py", seed=7, strategies={"counts": "ActiveStandby()"}, unable={"cut": "no root"})
    for epoch in range(5):
        history.note("delivered", sink="counts.parquet", epoch=epoch)
    history.note("fault", fault="kill", did="SIGKILL", node="node-1")
    history.note("took over", role="counts", reason="dead", **{"from": "node-1", "to": "node-2"})
    history.note("verdict", held=False, differing={"counts.parquet": [3]}, examples=["epoch 3 lost ('<x>', 1)"], lost=1)
    page = write_report(history.path, tmp_path / "report.html").read_text()
    assert [line["kind"] for line in read_history(history.path)][-1] == "verdict"
    for text in (
        "broken",
        "a&lt;b&gt;.py",
        "<svg",
        "SIGKILL",
        "node-1 → node-2",
        "epochs 3",
        "(&#x27;&lt;x&gt;&#x27;, 1)",
        "no root",
    ):
        assert text in page, text


def test_files_are_taken_whole(tmp_path):
    """A hole in what was planned of a file, or an overlap, is seen also where no batch query can be asked."""
    work = Work.create(tmp_path / "work")
    source = ab.read_text(tmp_path)
    channel = Channel.create(work.channel_path("lines"), ChannelSpec("lines", source.raw_schema(), source.spec()))
    for epoch, (name, start, end) in enumerate([("a", 0, 4), ("b", 0, 9), ("a", 4, 8), ("b", 7, 12), ("c", 2, 5)]):
        planned = {"pieces": [{"file": name, "start": start, "end": end, "crc": 0}]}
        channel.release(Manifest(epoch, Producer("pacer", "n", 0), 0.0, planned=planned))
    assert list(_holes(work, "lines")) == [
        "epoch 3 of lines takes b from 7 on, not from 9",
        "epoch 4 of lines takes c from 2 on, not from 0",
    ]
