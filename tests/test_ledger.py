"""Every ledger keeps the contract; the directory ledger also keeps its promises about damage, order and speed."""

import functools
import os
import shutil

import pytest

from anabranch.errors import Corrupt, Trimmed, WorkDirectoryError
from anabranch.ledger import DirectoryLedger, MemoryLedger, directory
from anabranch.testing.ledger_suite import LedgerContract


class TestMemoryLedger(LedgerContract):
    def make_ledger(self, directory):
        return MemoryLedger()


class TestDirectoryLedger(LedgerContract):
    processes = True

    def make_ledger(self, directory):
        return DirectoryLedger(directory)

    def open_again(self, ledger):
        return DirectoryLedger(ledger.path)

    def opener(self, ledger):
        return functools.partial(DirectoryLedger, ledger.path)

    def claim_asleep(self, ledger, slot, record, meanwhile):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(directory, "link_first", around_link(ledger, slot, patch, before=meanwhile))
            return ledger.claim(slot, record)


def around_link(ledger, slot, patch, *, before=lambda: None, after=lambda: None):
    """Return a `link_first` that lets things happen around the link of one slot, once."""
    real = directory.link_first

    def link_first(path, data):
        if path != ledger.path / f"{slot:012d}":
            return real(path, data)
        patch.setattr(directory, "link_first", real)
        before()
        won = real(path, data)
        after()
        return won

    return link_first


@pytest.fixture
def ledger(tmp_path):
    return DirectoryLedger(tmp_path / "ledger")


def slot_file(ledger, slot):
    return ledger.path / f"{slot:012d}"


# Rule 3, where only a directory can show it


def test_a_claimer_that_sleeps_after_its_link_has_lost(ledger, monkeypatch):
    """A trim between the link and the look at the floor counts too, and the file goes."""
    for slot in (0, 2, 3):
        ledger.claim(slot, b"")
    other = DirectoryLedger(ledger.path)
    monkeypatch.setattr(directory, "link_first", around_link(ledger, 1, monkeypatch, after=lambda: other.trim(2)))
    with pytest.raises(Trimmed):
        ledger.claim(1, b"zombie")
    assert not slot_file(ledger, 1).exists()


def test_a_slot_that_was_brought_back_is_invisible(ledger):
    """While a sleeper's link stands below the floor, nobody sees it, and the next trim removes it."""
    for slot in range(5):
        ledger.claim(slot, b"")
    zombie = slot_file(ledger, 1).read_bytes()
    ledger.trim(2)
    slot_file(ledger, 1).write_bytes(zombie)
    for handle in (ledger, DirectoryLedger(ledger.path)):
        assert (handle.slots(), handle.last()) == ([3, 4], 4)
        with pytest.raises(Trimmed):
            handle.read(1)
        with pytest.raises(Trimmed):
            handle.claim(1, b"again")
    slot_file(ledger, 1).write_bytes(zombie)
    ledger.trim(3)
    assert not slot_file(ledger, 1).exists()


def test_a_reader_that_sleeps_between_floor_and_file_is_not_fooled(ledger, monkeypatch):
    """A reader judges what it read by the floor it finds afterwards, never by an older one."""
    for slot in range(4):
        ledger.claim(slot, b"history")
    real, other = directory.Path.read_bytes, DirectoryLedger(ledger.path)
    zombie = slot_file(ledger, 0).read_bytes()

    def read_late(path):
        if path == slot_file(ledger, 0):
            other.trim(2)
            path.write_bytes(zombie)
        return real(path)

    monkeypatch.setattr(directory.Path, "read_bytes", read_late)
    with pytest.raises(Trimmed):
        ledger.read(0)


@pytest.mark.parametrize("planted", [False, True], ids=["first floor", "later floor"])
@pytest.mark.parametrize("sleeper", [3, 5], ids=["lower", "higher"])
def test_a_trimmer_that_slept_cannot_put_the_floor_back(ledger, monkeypatch, planted, sleeper):
    """Of two trimmers at the same moment the higher floor stays, whoever moves last."""
    for slot in range(9):
        ledger.claim(slot, b"")
    if planted:
        ledger.trim(1)
    other, real = DirectoryLedger(ledger.path), os.rename

    def rename_late(source, target):
        monkeypatch.setattr(os, "rename", real)
        other.trim(4)
        real(source, target)

    monkeypatch.setattr(os, "rename", rename_late)
    ledger.trim(sleeper)
    assert ledger.floor() == other.floor() == max(4, sleeper)
    assert ledger.slots() == list(range(max(4, sleeper) + 1, 9))
    assert {path.name for path in ledger.path.iterdir()} == {"floor", *(f"{slot:012d}" for slot in ledger.slots())}


def test_a_listing_that_a_trim_overtakes_is_repeated(ledger, monkeypatch):
    """A handle that lists, sleeps through claims and a trim, and only then sees the floor, is not fooled."""
    for slot in range(3):
        ledger.claim(slot, b"")
    other, real = DirectoryLedger(ledger.path), ledger._listed

    def list_early():
        listed = real()
        monkeypatch.setattr(ledger, "_listed", real)
        for slot in range(3, 8):
            other.claim(slot, b"")
        other.trim(6)
        return listed

    monkeypatch.setattr(ledger, "_listed", list_early)
    assert ledger.slots() == [7]


# Damage


@pytest.mark.parametrize("record", [b"", b"a record\nof two lines"], ids=["empty", "two lines"])
def test_a_torn_record_is_named(ledger, record):
    """A slot file cut off at any length is never taken for a record, by reader or loser."""
    ledger.claim(0, record)
    path = slot_file(ledger, 0)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        check_damage_is_named(ledger, 0)
    path.write_bytes(whole + b"\x00")
    check_damage_is_named(ledger, 0)


def test_an_altered_record_is_named(ledger):
    """A slot file with any one bit flipped is never taken for a record."""
    ledger.claim(0, b"small")
    path = slot_file(ledger, 0)
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in range(8):
            altered = bytearray(whole)
            altered[position] ^= 1 << bit
            path.write_bytes(altered)
            with pytest.raises(Corrupt, match=path.name):
                ledger.read(0)
    check_damage_is_named(ledger, 0)


def check_damage_is_named(ledger, slot):
    with pytest.raises(Corrupt, match=str(slot_file(ledger, slot))) as read:
        ledger.read(slot)
    assert read.value.hint
    with pytest.raises(Corrupt, match=str(slot_file(ledger, slot))):
        ledger.claim(slot, b"other")


def test_an_unknown_format_version_is_said(ledger):
    """A record of a later format is refused with its version, not called torn."""
    ledger.claim(0, b"x")
    path = slot_file(ledger, 0)
    path.write_bytes(path.read_bytes().replace(b"anabranch-slot 1 ", b"anabranch-slot 2 "))
    with pytest.raises(Corrupt, match="format version 2"):
        ledger.read(0)


def test_a_record_under_another_slots_name_is_named(ledger):
    """A slot file that was copied to another slot's name is damage there."""
    ledger.claim(0, b"x")
    shutil.copy(slot_file(ledger, 0), slot_file(ledger, 1))
    with pytest.raises(Corrupt, match="another slot"):
        ledger.read(1)


@pytest.mark.parametrize("name", ["000000000001-00000000", "floor", "000000000001", "-00000000001-00000000"])
def test_a_damaged_floor_is_named(ledger, name):
    """A floor that cannot be trusted stops everyone, with the name of the file."""
    for slot in range(4):
        ledger.claim(slot, b"")
    ledger.trim(1)
    (mark,) = (ledger.path / "floor").iterdir()
    mark.rename(mark.with_name(name))
    for call in (ledger.floor, ledger.slots, ledger.last, lambda: ledger.read(3), lambda: ledger.claim(9, b"")):
        with pytest.raises(Corrupt, match=name):
            call()


def test_a_lost_floor_is_an_error(ledger):
    """An empty floor directory is damage, not a ledger that was never trimmed."""
    for slot in range(4):
        ledger.claim(slot, b"")
    ledger.trim(1)
    (mark,) = (ledger.path / "floor").iterdir()
    mark.unlink()
    with pytest.raises(Corrupt, match="floor"):
        ledger.floor()


def test_a_removed_newest_slot_is_an_error(ledger):
    """Above a floor there is always a slot; if not, someone took it away, and that is said."""
    for slot in range(4):
        ledger.claim(slot, b"")
    ledger.trim(2)
    slot_file(ledger, 3).unlink()
    with pytest.raises(Corrupt, match="newest slot was removed"):
        DirectoryLedger(ledger.path).last()


def test_a_slot_that_vanishes_under_a_loser_is_an_error(ledger, monkeypatch):
    """A loser whose winner's file is gone without a trim is told so, not told that it won."""
    monkeypatch.setattr(directory, "link_first", lambda *_: False)
    with pytest.raises(Corrupt, match="vanished"):
        ledger.claim(0, b"x")


# Order of operations, speed, places


def test_last_does_not_list_a_ledger_claimed_in_order(ledger, monkeypatch):
    """Asking for the newest slot costs the same with ten slots and with ten thousand, while they come in order."""
    reader = DirectoryLedger(ledger.path)
    ledger.claim(0, b"")
    assert reader.last() == 0

    def no_listing():
        raise AssertionError("listed")

    monkeypatch.setattr(reader, "_listed", no_listing)
    for slot in range(1, 20):
        ledger.claim(slot, b"")
        assert reader.last() == slot
    ledger.trim(10)
    assert reader.last() == 19
    assert not (ledger.path / "unordered").exists()


def test_a_claim_after_a_trimmed_slot_is_in_order(ledger):
    """The successor of the floor is in order though its predecessor's file is gone."""
    for slot in range(3):
        ledger.claim(slot, b"")
    ledger.trim(1)
    ledger.claim(3, b"")
    assert not (ledger.path / "unordered").exists()
    ledger.claim(5, b"")
    assert (ledger.path / "unordered").exists()


def test_slots_beyond_twelve_digits_are_refused(ledger):
    """File names sort as numbers, so a slot that would need a longer name is refused."""
    assert ledger.claim(10**12 - 1, b"x").won
    with pytest.raises(ValueError, match="12 digits"):
        ledger.claim(10**12, b"x")


def test_foreign_files_are_ignored(ledger):
    """What is no slot by its name is no slot."""
    ledger.claim(0, b"x")
    for name in (".tmp-left-over", "7", "notes.txt", "0000000000012"):
        (ledger.path / name).write_bytes(b"")
    assert (DirectoryLedger(ledger.path).slots(), DirectoryLedger(ledger.path).last()) == ([0], 0)


def test_the_directory_is_made_with_its_parents(tmp_path):
    """A ledger makes its own directory; a file in its place is refused with a hint."""
    assert DirectoryLedger(tmp_path / "a" / "b" / "c").claim(0, b"x").won
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WorkDirectoryError, match="is a file"):
        DirectoryLedger(tmp_path / "file")
