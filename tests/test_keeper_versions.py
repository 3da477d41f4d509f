"""What the keeper decides without doing anything: which files a commit needs, what a record says, when one is due."""

import os
from dataclasses import replace

import pytest

from anabranch.errors import Corrupt
from anabranch.keeper.calibration import Trigger, due, rest_s
from anabranch.keeper.contents import CommitContents
from anabranch.keeper.version import PIECE_BYTES, KeptFile, Version, decode
from fake_checkpoint import FakeCheckpoint


def names(paths, *, state_only=True):
    """Return what kinds of files there are: version and kind of state files, logs as they are."""
    found = []
    for path in paths:
        name = os.path.basename(path)
        if name.endswith((".changelog", ".zip")):
            found.append(f"{name.partition('_')[0]}{os.path.splitext(name)[1]}")
        elif name.endswith(".sst"):
            found.append(f"{int(name[:6])}.sst")
        elif not state_only:
            found.append(path)
    return sorted(found)


# What a commit needs


@pytest.fixture
def checkpoint(tmp_path):
    return FakeCheckpoint(tmp_path / "run" / "checkpoint", partitions=1)


def test_without_a_snapshot_all_changelogs_are_needed(checkpoint):
    """From the first version on: every changelog, the schemas, the last two plans and every commit of the chain."""
    for epoch in range(3):
        checkpoint.commit(epoch)
    found = CommitContents(checkpoint.path).files(2)
    assert names(found) == ["1.changelog", "2.changelog", "3.changelog"]
    assert {path for path in found if "state" not in path} == {
        *("metadata", "offsets/1", "offsets/2", "commits/0", "commits/1", "commits/2")
    }
    assert {path for path in found if "/_" in path} == {*("state/0/_metadata/metadata", "state/0/0/_metadata/schema")}


def test_commits_that_spark_forgot_are_not_missed(checkpoint):
    """Where snapshots are slow to come, state is needed of which the commit is gone: what is there once is it."""
    for epoch in range(4):
        checkpoint.commit(epoch)
    for batch_id in range(2):
        (checkpoint.path / "commits" / str(batch_id)).unlink()
    found = CommitContents(checkpoint.path).files(3)
    assert names(found) == ["1.changelog", "2.changelog", "3.changelog", "4.changelog"]
    assert {path for path in found if path.startswith("commits")} == {"commits/2", "commits/3"}
    other = checkpoint.stores[0] / "1_00000000-0000-0000-0000-000000000000.changelog"
    other.write_bytes(b"of a batch that was never committed")
    with pytest.raises(Corrupt, match="commits/0 is missing"):
        CommitContents(checkpoint.path).files(3)


def test_a_snapshot_ends_the_chain(checkpoint):
    """Behind the newest snapshot nothing is needed; it brings its own files."""
    for epoch in range(5):
        checkpoint.commit(epoch)
        if epoch in (1, 3):
            checkpoint.snapshot()
    files = CommitContents(checkpoint.path).files
    assert names(files(4)) == ["4.sst", "4.zip", "5.changelog"]
    assert names(files(3)) == ["4.sst", "4.zip"]
    assert names(files(2)) == ["2.sst", "2.zip", "3.changelog"]


def test_a_snapshot_without_its_files_is_not_used(checkpoint):
    """A snapshot that is not whole is passed over: the changelogs lead to the one before."""
    for epoch in range(4):
        checkpoint.commit(epoch)
        if epoch in (0, 2):
            checkpoint.snapshot(missing=epoch == 2)
    assert names(CommitContents(checkpoint.path).files(3)) == [
        *("1.sst", "1.zip", "2.changelog", "3.changelog", "4.changelog")
    ]


def test_files_of_another_attempt_are_left_out(checkpoint):
    """A state file whose id no commit names belongs to an execution that was repeated."""
    checkpoint.commit(0)
    store = checkpoint.stores[0]
    (store / "1_00000000-0000-0000-0000-000000000000.changelog").write_bytes(b"other")
    (store / "2_00000000-0000-0000-0000-000000000000.changelog").write_bytes(b"later")
    assert [path for path in CommitContents(checkpoint.path).files(0) if "00000000-" in path] == []


def test_every_store_of_a_join_is_kept(tmp_path):
    """A join has several stores in a partition; all of them are needed."""
    stores = ("left-keyToNumValues", "right-keyToNumValues")
    checkpoint = FakeCheckpoint(tmp_path / "checkpoint", partitions=2, stores=stores)
    checkpoint.commit(0)
    found = [path for path in CommitContents(checkpoint.path).files(0) if path.endswith(".changelog")]
    assert sorted(os.path.dirname(path) for path in found) == [
        f"state/0/{partition}/{store}" for partition in (0, 1) for store in stores
    ]


@pytest.mark.parametrize("lost", ["changelog", "commit", "plan", "metadata", "partition"])
def test_a_broken_chain_is_found_out(checkpoint, lost):
    """A commit that cannot be restored is an error that names what is missing."""
    for epoch in range(3):
        checkpoint.commit(epoch)
    if lost == "changelog":
        next(checkpoint.stores[0].glob("2_*.changelog")).unlink()
    elif lost == "partition":
        checkpoint.stores[0].rename(checkpoint.path / "elsewhere")
    else:
        path = {"commit": "commits/1", "plan": "offsets/1", "metadata": "metadata"}[lost]
        (checkpoint.path / path).unlink()
    with pytest.raises(Corrupt):
        CommitContents(checkpoint.path).files(2)


# Records


def test_a_record_comes_back_or_is_refused():
    """A version's record is read as it was written; any changed byte is noticed, and so is another format."""
    version = Version("counts", "r000001.0a1b2c3d", 7, 3, 5.5, (KeptFile("checkpoint/metadata", 10, 99),))
    record = version.encode()
    assert decode(record, "here") == version
    for position in range(len(record)):
        altered = bytearray(record)
        altered[position] ^= 1
        with pytest.raises(Corrupt):
            decode(bytes(altered), "here")


@pytest.mark.parametrize(
    ("size_bytes", "pieces"), [(0, 1), (1, 1), (PIECE_BYTES, 1), (PIECE_BYTES + 1, 2), (3 * PIECE_BYTES, 3)]
)
def test_large_files_are_cut_into_pieces(size_bytes, pieces):
    """A file has a piece per mebibyte, and an empty one has one."""
    assert len(KeptFile("a", size_bytes, 0).keys()) == pieces


def test_which_version_is_restored_first():
    """The newest; of the same epoch, that of the run that came to the state, whose files were whole when it kept it."""

    def version(epoch, run, origin=""):
        return Version("counts", run, epoch, 0, 0.0, (), origin)

    older, own, linked, linked_later, another = (
        version(5, "r3"),
        version(6, "r1"),
        version(6, "r2", "r1"),
        version(6, "r3", "r1"),
        version(6, "r4"),
    )
    some = [linked, older, linked_later, another, own]
    found = sorted(some, key=lambda one: one.preference, reverse=True)
    assert found == [another, own, linked_later, linked, older]


# When


@pytest.mark.parametrize(
    ("trigger", "epochs", "seconds", "expected"),
    [
        (Trigger(), 1, 0.0, True),
        (Trigger(), 0, 99.0, False),
        (Trigger(5), 4, 99.0, False),
        (Trigger(5), 5, 0.0, True),
        (Trigger(None, 2.0), 1, 1.9, False),
        (Trigger(None, 2.0), 1, 2.0, True),
        (Trigger(5, 2.0), 1, 2.0, True),
    ],
)
def test_when_a_version_is_due(trigger, epochs, seconds, expected):
    """Every n epochs or t seconds, and never without anything new."""
    assert due(trigger, epochs=epochs, seconds=seconds) is expected


@pytest.mark.parametrize("trigger", [Trigger(), Trigger(5), Trigger(None, 2.0)])
def test_what_a_run_began_with_is_not_due(trigger):
    """Nobody knows whether it can be gone on from; unless something waits for it."""
    assert not due(trigger, epochs=9, seconds=9.0, inherited=True)
    assert due(replace(trigger, inherited=True), epochs=9, seconds=9.0, inherited=True)


@pytest.mark.parametrize(("busy_s", "expected_s"), [(0.0, 0.0), (0.02, 0.005), (4.0, 1.0), (3600.0, 10.0)])
def test_a_store_rests_after_a_version(busy_s, expected_s):
    """A quarter of the time it was busy, so that a slow one works at most four fifths of the time; never for long."""
    assert rest_s(busy_s) == expected_s
