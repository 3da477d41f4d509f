"""Which runs of a unit are gone on from: whole, readable, of this boot if there is a store."""

import json
import shutil

import pytest

from anabranch.channel.manifest import Manifest, Producer
from anabranch.errors import Corrupt
from anabranch.runs import RunDirectory, doubt, newest_commit
from unit_lives import Life


def test_a_state_that_is_not_whole_is_not_gone_on_from(home):
    """A run that began without state, in the middle, counts only once it has seen what the right state is made of."""
    first = Life(home)
    for epoch in range(4):
        first.whole(epoch, epoch)
    shutil.rmtree(first.unit.directory)
    second = Life(home, after=0, compare_from=3)
    for epoch in (1, 2):
        second.whole(epoch, epoch)
        assert newest_commit(home.directory) is None
    second.whole(3, 3)
    assert newest_commit(home.directory)[0] == second.unit.run


def test_damaged_files_are_gone_on_from_only_if_there_are_no_others(home):
    """A run whose last entry cannot be read, or on which a query failed, gives way to an older one, or to a store."""
    old = Life(home)
    old.whole(0, 1)
    new = Life(home)
    new.whole(1, 1)
    entry = new.checkpoint / "offsets" / "1"
    entry.unlink()  # the link in the older run, if there is one, stays whole
    entry.write_text("v1\nhalf")
    assert home.unit().prepare() == 0
    entry.write_text(json.dumps("v1"))
    with pytest.raises(Corrupt):
        newest_commit(home.directory)
    shutil.rmtree(old.unit.directory)
    for run in set(home.runs()) - {new.unit.run}:
        shutil.rmtree(home.directory / "runs" / run)
    assert home.unit().prepare() == -1, "nothing is trimmed: it begins anew"
    for channel in home.inputs.values():
        for epoch in range(3):
            channel.release(Manifest(epoch, Producer("pacer", "n", 0), 1.0, 0, planned={}))
        channel.trim(0)
    with pytest.raises(Corrupt):
        home.unit().prepare()


def test_a_run_that_could_not_be_begun_with_is_doubted(home):
    """A query that failed at once may have failed because of the files it began with; one that ran did not."""
    first = Life(home)
    first.whole(0, 1)
    second = Life(home)
    second.whole(1, 1)
    second.unit.doubt_base()
    assert newest_commit(home.directory, sure=True)[0] == second.unit.run, "it has run"
    third = Life(home)
    third.unit.doubt_base()
    assert newest_commit(home.directory, sure=True)[0] == first.unit.run
    assert newest_commit(home.directory)[0] == third.unit.run
    first.unit.directory.joinpath("doubted").write_text("0")
    assert home.unit().prepare() == -1, "nothing is trimmed: it begins anew"
    third.whole(2, 1)
    assert newest_commit(home.directory, sure=True)[0] == third.unit.run, "it has gone on since"


def test_files_of_an_earlier_boot_are_not_trusted(home, monkeypatch):
    """After the system crashed a unit goes on from a store's version, though its own files, here torn, go further."""
    life = Life(home)
    life.whole(0, 1)
    life.whole(1, 1)
    kept = home.directory.parent / "kept"
    shutil.copytree(life.checkpoint.parent, kept)
    (kept / "boot").unlink()  # a store keeps no notes of a run
    life.whole(2, 1)
    (life.checkpoint / "offsets" / "2").write_bytes(b"")
    monkeypatch.setattr("anabranch.runs.boot_id", lambda: "another")
    heir = home.unit()
    assert heir.prepare(lambda directory, _: shutil.copytree(kept, directory)) == 1
    assert newest_commit(home.directory, boot="another")[0] == heir.run


def test_without_a_store_files_of_an_earlier_boot_are_all_there_is(home, monkeypatch):
    """They are used: most crashes of a system take nothing that is older than half a minute."""
    Life(home).whole(0, 1)
    monkeypatch.setattr("anabranch.runs.boot_id", lambda: "another")
    assert home.unit().prepare() == 0


def test_what_is_linked_from_files_that_are_not_trusted_is_not_trusted_either(home, monkeypatch):
    """Else a standby, which waits and runs nothing, would make torn files look like new ones for everybody else."""
    life = Life(home)
    life.whole(0, 1)
    monkeypatch.setattr("anabranch.runs.boot_id", lambda: "another")
    standby = home.unit()
    standby.prepare()
    assert newest_commit(home.directory, boot="another") is None
    doubt(standby.directory, 0)
    doubt(life.unit.directory, 0)
    heir = home.unit()
    heir.prepare(lambda *_: None)
    assert newest_commit(home.directory, sure=True) is None


@pytest.mark.parametrize("left", [b"", b"r0000", b"\0\0\0\0"])
def test_notes_that_a_crash_of_the_system_has_emptied_stop_nobody(home, left):
    """They are not flushed: what lies on disk afterwards may be a file with nothing in it."""
    life = Life(home)
    life.whole(0, 1)
    for note in ("origin", "version", "doubted", "scratch_", "owner"):
        (life.unit.directory / note).write_bytes(b"" if note == "doubted" else left)
    assert newest_commit(home.directory)[1].epoch == 0
    assert RunDirectory(life.unit.directory).version is None
    assert RunDirectory(life.unit.directory).origin == (life.unit.run, -1)
