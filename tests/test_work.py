"""The work directory: what it was made with is pinned, and whatever no longer fits is refused by name (rule 16)."""

import copy
import json
import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.errors import Corrupt, IdentityChanged, WorkDirectoryError
from anabranch.sources import may_become
from anabranch.work import Work, differences

IDENTITY = {
    "pipeline": "orders",
    "spark": "4.3.0",
    "timezone": "UTC",
    "state_partitions": 2,
    "sources": {"lines": {"kind": "words", "version": 1, "seed": 3}},
    "segments": {
        "clean": {
            "inputs": ["lines"],
            "output_mode": "append",
            "columns": ["ts timestamp[us]", "word string"],
            "stateful": False,
            "plan": ["Project [ts, word]", "+- Input lines"],
        },
        "counts": {
            "inputs": ["clean"],
            "output_mode": "update",
            "columns": ["word string", "count int64"],
            "stateful": True,
            "plan": ["Aggregate [word], [count(1)]", "+- Input clean"],
        },
    },
    "sinks": {"counts.parquet": "counts"},
    "retain_epochs": 1000,
}
MISSING = object()


def changed(*path, to):
    """Return the identity with one field changed, added or, with MISSING, taken out."""
    identity = copy.deepcopy(IDENTITY)
    place = identity
    for name in path[:-1]:
        place = place[name]
    if to is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return identity


REFUSED = {
    "pipeline": (changed("pipeline", to="returns"), "pipeline was 'orders', is 'returns'"),
    "Spark version": (changed("spark", to="4.3.1"), "spark was '4.3.0', is '4.3.1'"),
    "time zone": (changed("timezone", to="Asia/Tokyo"), "timezone was 'UTC', is 'Asia/Tokyo'"),
    "state partitions": (changed("state_partitions", to=4), "state_partitions was 2, is 4"),
    "source arguments": (changed("sources", "lines", "seed", to=4), "source 'lines': seed was 3, is 4"),
    "source kind": (changed("sources", "lines", "kind", to="text"), "source 'lines': kind was 'words', is 'text'"),
    "an argument more": (changed("sources", "lines", "rows", to=9), "source 'lines': rows was None, is 9"),
    "source gone": (changed("sources", "lines", to=MISSING), "source 'lines' is gone"),
    "source new": (changed("sources", "more", to={"kind": "text"}), "source 'more' is new"),
    "schema": (
        changed("segments", "counts", "columns", to=["word string", "count int32"]),
        "segment 'counts': columns was ['word string', 'count int64'], is ['word string', 'count int32']",
    ),
    "schema without state": (
        changed("segments", "clean", "columns", to=["word string"]),
        "segment 'clean': columns was",
    ),
    "inputs": (changed("segments", "counts", "inputs", to=["lines"]), "segment 'counts': inputs was ['clean']"),
    "output mode": (changed("segments", "counts", "output_mode", to="append"), "'counts': output_mode was 'update'"),
    "state gone": (changed("segments", "counts", "stateful", to=False), "'counts': stateful was True, is False"),
    "segment gone": (changed("segments", "counts", to=MISSING), "segment 'counts' is gone"),
    "segment new": (changed("segments", "more", to={}), "segment 'more' is new"),
    "stateful plan": (
        changed("segments", "counts", "plan", 0, to="Aggregate [word], [sum(1)]"),
        "segment 'counts' keeps state and its plan changed from 'Aggregate [word], [count(1)]' to 'Aggr",
    ),
    "stateful plan, longer": (
        changed("segments", "counts", "plan", to=[*IDENTITY["segments"]["counts"]["plan"], "   +- Filter"]),
        "'counts' keeps state and its plan changed from '' to '+- Filter'",
    ),
    "a plan that gets state": (
        changed("segments", "clean", to={**IDENTITY["segments"]["clean"], "stateful": True, "plan": ["Distinct"]}),
        "'clean' keeps state and its plan changed from 'Project [ts, word]' to 'Distinct'",
    ),
}
ALLOWED = {
    "nothing": IDENTITY,
    "stateless plan": changed("segments", "clean", "plan", to=["Project [ts, upper(word)]", "+- Input lines"]),
    "sinks": changed("sinks", to={}),
    "retention": changed("retain_epochs", to=None),
    "rejects": changed("segments", "lines.rejects", to={"plan": []}),
}


@pytest.mark.parametrize(("identity", "says"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_the_state_is_refused_by_name(tmp_path, identity, says):
    """The error names what changed, from what to what; the pinned identity stays as it was, byte for byte."""
    work = Work.create(tmp_path)
    work.pin(IDENTITY)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(IdentityChanged) as caught:
        work.pin(identity)
    assert says in caught.value.message
    assert str(tmp_path) in caught.value.message
    assert "--work" in caught.value.hint
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("identity", ALLOWED.values(), ids=ALLOWED)
def test_what_fits_is_taken_and_the_id_stays(tmp_path, identity):
    """A stateless plan, sinks and retention may change; the directory keeps its id and remembers the new identity."""
    work = Work.create(tmp_path)
    first = work.pin(IDENTITY)
    assert Work.open(tmp_path).pin(identity) == first
    assert work.identity() == {"format": 1, "id": first, **identity}
    assert work.pin(identity) == first


def test_all_changes_are_named_at_once():
    """Whoever changed several things hears of all of them."""
    after = changed("spark", to="4.4.0")
    after["segments"]["counts"]["output_mode"] = "complete"
    after["sources"] = {}
    assert len(differences(IDENTITY, after)) == 3
    assert differences(IDENTITY, copy.deepcopy(IDENTITY)) == []


def test_every_directory_has_an_id_of_its_own(tmp_path):
    """Sinks tell work directories apart by their ids."""
    assert Work.create(tmp_path / "a").pin(IDENTITY) != Work.create(tmp_path / "b").pin(IDENTITY)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 2}', b"\xff"])
def test_an_unreadable_identity_is_corrupt(tmp_path, content):
    """An identity that cannot be read is not taken for a new directory."""
    work = Work.create(tmp_path)
    (tmp_path / "identity.json").write_bytes(content)
    with pytest.raises(Corrupt, match=r"identity\.json"):
        work.pin(IDENTITY)
    assert (tmp_path / "identity.json").read_bytes() == content


def test_a_new_directory_has_no_identity(tmp_path):
    """Nothing is pinned before something is."""
    assert Work.create(tmp_path).identity() is None


# The token


@pytest.mark.parametrize("mask", [0o022, 0o000, 0o077])
def test_the_token_is_for_its_owner_only(tmp_path, mask):
    """Whatever the process's mask, nobody else can read it; it is long, stays the same, and differs elsewhere."""
    previous = os.umask(mask)
    try:
        token = Work.create(tmp_path / "a").token()
    finally:
        assert os.umask(previous) == mask, "the mask is given back"
    assert stat.S_IMODE((tmp_path / "a" / "token").stat().st_mode) == 0o600
    assert len(token) == 64
    assert Work.open(tmp_path / "a").token() == token
    assert Work.create(tmp_path / "b").token() != token


def test_a_token_that_was_opened_to_others_is_closed_again(tmp_path):
    """A copied directory may have lost the mode of its files."""
    work = Work.create(tmp_path)
    (tmp_path / "token").chmod(0o644)
    work.token()
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


# Places


def test_a_token_that_cannot_be_used_is_refused(tmp_path):
    """An empty one would let everyone in."""
    work = Work.create(tmp_path)
    (tmp_path / "token").write_text("")
    with pytest.raises(WorkDirectoryError, match="holds no token"):
        work.token()
    (tmp_path / "token").unlink()
    (tmp_path / "token").mkdir()
    with pytest.raises(WorkDirectoryError, match="cannot be read"):
        work.token()


def test_a_token_is_read_where_nothing_can_be_written(tmp_path, monkeypatch):
    """Whoever looks at a directory on a disk that became read-only needs it."""
    work = Work.create(tmp_path)

    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "chmod", refuse)
    assert len(work.token()) == 64
    os.chmod(tmp_path / "token", 0o644)
    with pytest.raises(WorkDirectoryError, match="Read-only"):
        work.token()


def test_a_work_directory_must_be_one(tmp_path):
    """A place that no run made, or where none can be made, is named with a hint."""
    with pytest.raises(WorkDirectoryError, match="is not a work directory") as caught:
        Work.open(tmp_path)
    assert "--work" in caught.value.hint
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(WorkDirectoryError, match=r"cannot use .*file") as caught:
            Work.create(path)
        assert "--work" in caught.value.hint


def test_an_unknown_channel_is_answered_with_the_known_ones(tmp_path):
    """A misspelt channel gets the list of those there are; a channel that is half made is not one."""
    work = Work.create(tmp_path)
    for name in ("lines", "counts"):
        Channel.create(work.channel_path(name), ChannelSpec(name, pa.schema([("n", pa.int64())])))
    (tmp_path / "channels" / "unfinished").mkdir()
    assert work.channel_names() == ["counts", "lines"]
    assert work.channel("lines").spec.name == "lines"
    for name in ("count", "unfinished"):
        with pytest.raises(WorkDirectoryError, match=f"no channel '{name}'") as caught:
            work.channel(name)
        assert caught.value.hint == "there are: counts, lines"


def test_history_is_kept_in_order(tmp_path):
    """Events come back as they were noted; a line torn by a crash is left out."""
    work = Work.create(tmp_path)
    assert work.history() == []
    work.note("started", node="node-1", at=1.5)
    work.note("failed", unit="counts", error="naïve\nerror")
    with (tmp_path / "history.jsonl").open("a") as history:
        history.write('{"kind": "star')
    assert [event["kind"] for event in work.history()] == ["started", "failed"]
    assert work.history()[1]["error"] == "naïve\nerror"
    assert json.loads((tmp_path / "history.jsonl").read_text().splitlines()[0])["node"] == "node-1"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"kind": "jsonl", "malformed": "fail"}, {"kind": "jsonl", "malformed": "divert"}, True),
        ({"kind": "jsonl", "malformed": "divert"}, {"kind": "jsonl", "malformed": "fail"}, False),
        ({"kind": "jsonl", "malformed": "fail"}, {"kind": "csv", "malformed": "divert"}, False),
        ({"kind": "text"}, {"kind": "text", "malformed": "divert"}, False),
        ({"kind": "text"}, {"kind": "text"}, True),
        (None, {"kind": "text"}, False),
        (None, None, True),
    ],
)
def test_malformed_rows_may_be_diverted_from_now_on(before, after, expected):
    """Until now there were none, so nothing that was taken changes; the other way round it might."""
    assert may_become(before, after) is expected


def test_a_stop_is_known_to_whoever_is_started_later(tmp_path):
    """Of the same session, and no other: the next run begins anew. Once it is to be at once, it stays so."""
    work = Work.create(tmp_path / "work")
    assert work.stopping("one") is None
    work.stop("one", now=False)
    assert (work.stopping("one"), work.stopping("two")) == ("drain", None)
    work.stop("one", now=True)
    work.stop("one", now=False)
    assert work.stopping("one") == "now"
    work.stop("", now=False)
    assert work.stopping("") is None, "nodes that were not launched together have no session"
