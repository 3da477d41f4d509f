"""Sinks: directories get every epoch exactly once through any crash, screens as long as someone looks (rule 14)."""

import contextlib
import errno
import functools
import io
import itertools
import json
import os
import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anabranch as ab
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Part, Producer
from anabranch.channel.parts import PartWriter
from anabranch.errors import Corrupt, PipelineError, SinkError
from anabranch.sinks.sink import Delivery

SCHEMA = pa.schema([("n", pa.int64())])
KINDS = {"parquet": ab.parquet, "jsonl": ab.jsonl}


class Crash(BaseException):
    """The process is gone: no handler of the code under test may catch this."""


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """No power is cut here; that flushes happen, and when, is looked at where it matters."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def channel(tmp_path):
    return Channel.create(tmp_path / "counts", ChannelSpec("counts", SCHEMA))


def publish(channel, epoch, *batches, claimed_rows=None):
    """Publish one part per batch; `claimed_rows` lets the manifest count other rows than the first part holds."""
    parts = []
    for task, batch in enumerate(batches):
        writer = PartWriter(channel.parts / f"{epoch}-r0-{task}-0.arrow", channel.spec.schema)
        writer.write(batch)
        part = writer.close()
        rows = claimed_rows if claimed_rows is not None and task == 0 else part.rows
        parts.append(Part(part.name, rows, part.size_bytes, part.crc))
    rows = sum(part.rows for part in parts)
    manifest = Manifest(epoch, Producer("counts", "r0", 0), 0.0, rows=rows, parts=tuple(parts))
    channel.release(manifest)
    return manifest


def numbers(*values):
    return pa.record_batch({"n": list(values)}, SCHEMA)


def delivery(channel, *, work_id="work-1", generation=0, spark=None):
    return Delivery(spark, channel, work_id, generation)


def read(directory, kind):
    """Return {file: its rows} of what a reader of the directory sees: hidden files are not data."""
    found = {}
    for name in sorted(os.listdir(directory)):
        if not name.startswith((".", "_")):
            path = directory / name
            rows = pq.read_table(path).to_pylist() if kind == "parquet" else json_lines(path)
            found[name] = [row["n"] for row in rows]
    return found


def json_lines(path, **options):
    *lines, rest = path.read_text().split("\n")
    assert rest == "", "the last line is whole"
    return [json.loads(line, **options) for line in lines]


# Directories


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_is_a_file(channel, tmp_path, kind):
    """Each epoch is one file under a name that sorts, with exactly its rows; delivering again changes nothing."""
    out = tmp_path / "out" / "deep"
    deliverer = KINDS[kind](out).deliverer(delivery(channel))
    manifests = [publish(channel, 9, numbers(1, 2), numbers(3)), publish(channel, 10, numbers(4))]
    for manifest in manifests:
        deliverer.deliver(manifest)
    assert read(out, kind) == {f"epoch-{9:012d}.{kind}": [1, 2, 3], f"epoch-{10:012d}.{kind}": [4]}
    before = changes(out)
    again = KINDS[kind](out).deliverer(delivery(channel, generation=1))
    for some in (deliverer, again):
        some.deliver(manifests[0])
    assert changes(out) == before


def changes(directory):
    """Return what tells a file that was touched from one that was not."""
    return {path: (path.stat().st_ino, path.stat().st_ctime_ns) for path in directory.glob("epoch-*")}


class Overtaken(Channel):
    """A channel in which another deliverer delivers the epoch that is about to be read."""

    def batches(self, manifest):
        self.rival.deliver(manifest)
        self.delivered = changes(self.out)
        yield from super().batches(manifest)


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_deliverers_the_first_wins(channel, tmp_path, kind):
    """A deposed node and its successor may deliver at the same time: there is one file, and it is not replaced."""
    overtaken = Overtaken(channel.path, channel.spec)
    overtaken.out = tmp_path / "out"
    overtaken.rival = KINDS[kind](tmp_path / "out").deliverer(delivery(channel, generation=1))
    manifest = publish(channel, 0, numbers(1))
    KINDS[kind](tmp_path / "out").deliverer(delivery(overtaken)).deliver(manifest)
    assert changes(tmp_path / "out") != {}
    (path,) = changes(tmp_path / "out")
    assert path.stat().st_ino == overtaken.delivered[path][0]
    assert not list((tmp_path / "out").glob(".tmp-*"))


OPERATIONS = ("open", "write", "fsync", "link", "unlink", "replace", "rename", "mkdir")


def crashing(patch, number):
    """Make the n-th file operation, and all after it, impossible; return the counter."""
    count = itertools.count(1)
    last = [0]

    def call(real, *given, **options):
        last[0] = next(count)
        if last[0] >= number:
            raise Crash
        return real(*given, **options)

    for name in OPERATIONS:
        patch.setattr(os, name, functools.partial(call, getattr(os, name)))
    # Parquet is written by Arrow, not through `os`: the reading of parts marks the moments in between.
    patch.setattr(pa, "memory_map", functools.partial(call, pa.memory_map))
    return last


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_anywhere_is_mended_by_delivering_again(channel, tmp_path, kind):
    """Whichever file operation was the last, a reader sees only whole epochs, and the next delivery completes them."""
    manifests = [publish(channel, 0, numbers(1, 2), numbers(3)), publish(channel, 1, numbers(4))]
    whole = {f"epoch-{0:012d}.{kind}": [1, 2, 3], f"epoch-{1:012d}.{kind}": [4]}
    for number in itertools.count(1):
        out = tmp_path / str(number)

        def deliver_all(out=out):
            deliverer = KINDS[kind](out).deliverer(delivery(channel))
            for manifest in manifests:
                deliverer.deliver(manifest)

        with pytest.MonkeyPatch.context() as patch:
            last = crashing(patch, number)
            with contextlib.suppress(Crash):
                deliver_all()
        if out.exists():
            assert read(out, kind).items() <= whole.items()
        deliver_all()
        assert read(out, kind) == whole
        if last[0] < number:
            assert number > 15
            return


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_flushed_before_they_get_their_name(channel, tmp_path, kind, monkeypatch):
    """Content before name, name before return: a power cut leaves no acknowledged epoch that is torn or gone."""
    deliverer = KINDS[kind](tmp_path / "out").deliverer(delivery(channel))
    manifest = publish(channel, 0, numbers(1))
    trace = traced(monkeypatch)
    deliverer.deliver(manifest)
    (temporary,) = [path for name, path in trace if name == "fsync" and ".tmp-" in path]
    link = ("link", str(tmp_path / "out" / f"epoch-{0:012d}.{kind}"))
    assert trace.index(("fsync", temporary)) < trace.index(link) < trace.index(("fsync", str(tmp_path / "out")))


def test_a_repeated_delivery_is_durable_too(channel, tmp_path, monkeypatch):
    """The first delivery may have died between the name and its flush: the second must not acknowledge before it."""
    deliverer = ab.jsonl(tmp_path / "out").deliverer(delivery(channel))
    manifest = publish(channel, 0, numbers(1))
    deliverer.deliver(manifest)
    trace = traced(monkeypatch)
    deliverer.deliver(manifest)
    assert ("fsync", str(tmp_path / "out")) in trace


def traced(monkeypatch):
    """Note every flush and link with the path it was about."""
    trace, names = [], {}
    real_open, real_fsync, real_link = os.open, os.fsync, os.link

    def opened(path, *given, **options):
        descriptor = real_open(path, *given, **options)
        names[descriptor] = str(path)
        return descriptor

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", lambda which: (trace.append(("fsync", names[which])), real_fsync(which)))
    monkeypatch.setattr(os, "link", lambda old, new: (trace.append(("link", str(new))), real_link(old, new)))
    return trace


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("claimed_rows", [1, 3])
def test_a_count_that_disagrees_is_an_error_and_no_file(channel, tmp_path, kind, claimed_rows):
    """Fewer or more rows than the manifest promises never become a file."""
    deliverer = KINDS[kind](tmp_path / "out").deliverer(delivery(channel))
    with pytest.raises(Corrupt, match="epoch 7 of 'counts'"):
        deliverer.deliver(publish(channel, 7, numbers(1, 2), claimed_rows=claimed_rows))
    assert os.listdir(tmp_path / "out") == ["_anabranch.json"]


def test_a_directory_with_foreign_files_is_refused(channel, tmp_path):
    """Output is not mixed with files of someone else; hidden files are nobody's output."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".keep").touch()
    ab.parquet(tmp_path / "out").deliverer(delivery(channel))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(SinkError, match=r"did not write, such as 'thesis\.tex'") as caught:
        ab.parquet(tmp_path / "mine").deliverer(delivery(channel))
    assert "empty directory" in caught.value.hint
    assert os.listdir(tmp_path / "mine") == ["thesis.tex"]


def test_a_directory_belongs_to_one_work_directory_and_step(channel, tmp_path):
    """Epoch 7 of another run, step or format would pass for already delivered."""
    ab.parquet(tmp_path / "out").deliverer(delivery(channel))
    other = Channel.create(tmp_path / "other", ChannelSpec("other", SCHEMA))
    for sink, context in [
        (ab.parquet, delivery(channel, work_id="work-2")),
        (ab.parquet, delivery(other)),
        (ab.jsonl, delivery(channel)),
    ]:
        with pytest.raises(SinkError, match="another run or another step") as caught:
            sink(tmp_path / "out").deliverer(context)
        assert "continue with the work directory" in caught.value.hint
    ab.parquet(tmp_path / "out").deliverer(delivery(channel, generation=5))


def test_an_unusable_directory_is_found_before_anything_runs(tmp_path):
    """A path that leads through a file is refused, and nothing is created by asking."""
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="file is a file") as caught:
        ab.jsonl(tmp_path / "file" / "out").check()
    assert caught.value.hint
    ab.jsonl(tmp_path / "new" / "out").check()
    assert os.listdir(tmp_path) == ["file"]


def test_json_lines_hold_every_type(tmp_path):
    """Times are ISO 8601, bytes hexadecimal, decimals text; nulls, nesting, quotes and any script survive."""
    moment = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    rows = [
        {
            "ts": moment,
            "day": date(2026, 2, 3),
            "raw": b"\x00\xff",
            "price": Decimal("1.50"),
            "deep": {"at": moment, "tags": ["a", None], "inner": {"raw": b"\x01"}},
            "text": 'größe "東京" \n \u2028 𝄞',
            "none": None,
            "flag": True,
        },
        dict.fromkeys(["ts", "day", "raw", "price", "deep", "text", "none", "flag"]),
    ]
    batch = pa.RecordBatch.from_pylist(rows)
    channel = Channel.create(tmp_path / "counts", ChannelSpec("counts", batch.schema))
    ab.jsonl(tmp_path / "out").deliverer(delivery(channel)).deliver(publish(channel, 0, batch))
    iso = "2026-02-03T04:05:06.000789+00:00"
    assert json_lines(tmp_path / "out" / f"epoch-{0:012d}.jsonl") == [
        {
            **rows[0],
            "ts": iso,
            "day": "2026-02-03",
            "raw": "00ff",
            "price": "1.50",
            "deep": {"at": iso, "tags": ["a", None], "inner": {"raw": "01"}},
        },
        rows[1],
    ]


def test_json_lines_are_json(tmp_path):
    """Numbers that JSON has no word for are written as text, at any depth, which every JSON reader takes."""
    batch = pa.record_batch({"x": [float("nan"), float("inf")], "deep": [{"x": [-float("inf")]}, {"x": [0.5]}]})
    channel = Channel.create(tmp_path / "counts", ChannelSpec("counts", batch.schema))
    ab.jsonl(tmp_path / "out").deliverer(delivery(channel)).deliver(publish(channel, 0, batch))
    refuse = lambda word: pytest.fail(f"{word} is not JSON")  # noqa: E731
    assert json_lines(tmp_path / "out" / f"epoch-{0:012d}.jsonl", parse_constant=refuse) == [
        {"x": "NaN", "deep": {"x": ["-Infinity"]}},
        {"x": "Infinity", "deep": {"x": [0.5]}},
    ]


# Screens


def test_the_console_shows_some_rows(channel, capsys):
    """An epoch is announced, its first rows are shown across parts, and the rest is counted."""
    deliverer = ab.console(rows=3).deliverer(delivery(channel))
    deliverer.deliver(publish(channel, 0, numbers(1, 2), numbers(3, 4)))
    deliverer.deliver(publish(channel, 1, numbers(5)))
    assert capsys.readouterr().out.splitlines() == [
        "-- counts epoch 0, 4 rows", "n=1", "n=2", "n=3", "   … 1 more", "-- counts epoch 1, 1 rows", "n=5",
    ]  # fmt: skip
    with pytest.raises(PipelineError):
        ab.console(rows=0).check()


class BrokenPipe(io.StringIO):
    """A stream whose reader is gone: what is written stays in its buffer and no flush gets rid of it."""

    def flush(self):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def closed_file():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(BrokenPipe, id="its reader is gone"),
        pytest.param(closed_file, id="closed"),
        pytest.param(lambda: None, id="there is none"),
        pytest.param(lambda: io.TextIOWrapper(io.BytesIO(), "ascii"), id="takes no …"),
    ],
)
def test_a_screen_that_is_gone_does_not_stop_the_pipeline(channel, monkeypatch, stream):
    """Nobody is left to read: delivering goes on, quietly."""
    deliverer = ab.console(rows=1).deliverer(delivery(channel))
    manifest = publish(channel, 0, numbers(1, 2))
    screen = stream()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        deliverer.deliver(manifest)
        again = io.StringIO()
        patch.setattr(sys, "stdout", again)
        deliverer.deliver(manifest)
    assert again.getvalue() == ""


def test_a_directory_of_another_run_is_refused_before_anything_is_made(channel, tmp_path):
    """Whose it is can be asked without creating anything; the run that fills it may go on."""
    sink = ab.jsonl(tmp_path / "out")
    sink.check(None)
    sink.deliverer(delivery(channel))
    sink.check(delivery(channel).work_id)
    for other in (None, "other"):
        with pytest.raises(SinkError, match="filled by another run"):
            sink.check(other)
