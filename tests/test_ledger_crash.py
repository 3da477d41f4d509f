"""A directory ledger through crashes: at every file operation, at random moments of real processes, and in power cuts.

A crash at operation n means that n and everything after it, clean-up included, does not happen. For n = 1, 2, 3 … until
the call gets through, the ledger is opened again and must keep its contract.
"""

import functools
import os
import random
import signal

import pytest

from anabranch.errors import Trimmed
from anabranch.ledger import NO_FLOOR, Claim, DirectoryLedger, directory
from anabranch.testing.ledger_race import check_sightings, sightings, start_advancing
from anabranch.testing.wait import wait_until
from faulty_disk import OPERATIONS, REAL, fail_everywhere, traced


def crash_everywhere(tmp_path, prepare, act, **how):
    """Yield, for every operation of `act`, a ledger that was prepared and then acted on up to that operation."""
    handles = {}

    def attempt(path):
        prepare(DirectoryLedger(path))
        handles[path] = DirectoryLedger(path)
        return lambda: act(handles[path])

    for path, _ in fail_everywhere(tmp_path, attempt, **how):
        yield handles[path], DirectoryLedger(path)


def fill(*slots, floor=NO_FLOOR):
    def prepare(ledger):
        for slot in slots:
            ledger.claim(slot, b"%d" % slot)
        ledger.trim(floor)

    return prepare


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "one error"])
@pytest.mark.parametrize("slot", [3, 5], ids=["in order", "out of order"])
@pytest.mark.parametrize("floor", [NO_FLOOR, 0])
def test_a_claim_that_crashes_is_whole_or_absent(tmp_path, crash, slot, floor):
    """Wherever a claim stops, the slot is empty or holds the whole record, and the ledger goes on for every handle."""
    outcomes = set()
    watcher = None

    def prepare(ledger):
        nonlocal watcher
        fill(0, 1, 2, floor=floor)(ledger)
        watcher = DirectoryLedger(ledger.path)
        assert watcher.last() == 2

    for handle, ledger in crash_everywhere(tmp_path, prepare, lambda ledger: ledger.claim(slot, b"new"), crash=crash):
        found = ledger.read(slot)
        outcomes.add(found)
        assert found in (None, b"new")
        assert (ledger.floor(), ledger.read(1), ledger.read(2)) == (floor, b"1", b"2")
        assert ledger.last() == watcher.last() == handle.last() == (2 if found is None else slot)
        assert ledger.claim(slot, b"later") == Claim(found is None, found or b"later")
        assert ledger.claim(slot + 1, b"next").won
        assert watcher.last() == handle.last() == slot + 1
    assert outcomes == {None, b"new"}


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "one error"])
@pytest.mark.parametrize("before", [NO_FLOOR, 1], ids=["first floor", "later floor"])
def test_a_trim_that_crashes_loses_no_decision(tmp_path, crash, before):
    """Wherever a trim stops, every slot is as before or trimmed for good, and the floor does not fall."""
    floors = set()
    act = functools.partial(DirectoryLedger.trim, floor=4)
    for handle, ledger in crash_everywhere(tmp_path, fill(*range(8), floor=before), act, crash=crash):
        floor = ledger.floor()
        floors.add(floor)
        assert floor in (before, 4)
        for reader in (handle, ledger):
            assert (reader.slots(), reader.last()) == (list(range(floor + 1, 8)), 7)
        for slot in range(8):
            if slot <= floor:
                with pytest.raises(Trimmed):
                    ledger.read(slot)
                with pytest.raises(Trimmed):
                    ledger.claim(slot, b"again")
            else:
                assert ledger.claim(slot, b"again") == Claim(won=False, record=b"%d" % slot)
        ledger.trim(5)
        assert {path.name for path in ledger.path.iterdir() if not path.name.startswith(".tmp-")} == {
            "floor",
            f"{6:012d}",
            f"{7:012d}",
        }
    assert floors == {before, 4}


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "one error"])
def test_a_sleeper_that_crashes_brings_nothing_back(tmp_path, monkeypatch, crash):
    """A claimer that slept through a trim and then dies anywhere in its claim leaves nothing that can be seen."""
    real = directory.link_first

    def sleep_and_claim(ledger):
        def link_first(path, data):
            monkeypatch.setattr(directory, "link_first", real)
            with pytest.MonkeyPatch.context() as patch:
                for name in OPERATIONS:
                    patch.setattr(os, name, REAL[name])
                DirectoryLedger(ledger.path).trim(2)
            return real(path, data)

        monkeypatch.setattr(directory, "link_first", link_first)
        ledger.claim(1, b"zombie")

    for handle, ledger in crash_everywhere(tmp_path, fill(0, 1, 2, 3), sleep_and_claim, crash=crash, ends=Trimmed):
        for reader in (handle, ledger):
            if reader.floor() == NO_FLOOR:  # it died before it fell asleep
                assert reader.read(1) == b"1"
                continue
            assert (reader.slots(), reader.last(), reader.floor()) == ([3], 3, 2)
            with pytest.raises(Trimmed):
                reader.read(1)


def test_a_claim_is_durable_before_it_returns(tmp_path):
    """The bytes are flushed before they get their name, and the name before the caller hears of it, also by a loser."""
    ledger = DirectoryLedger(tmp_path)
    slot = str(tmp_path / f"{0:012d}")
    for expected in (True, False):
        trace = traced(lambda expected=expected: check_won(ledger, expected))
        names = [name for name, _ in trace]
        flushed = names.index("fsync")
        assert names[flushed - 1] == "write"
        if expected:
            assert trace.index(("link", slot)) > flushed
            assert ("fsync", str(tmp_path)) in trace[trace.index(("link", slot)) :]
        assert ("fsync", str(tmp_path)) in trace[flushed:]


def check_won(ledger, expected):
    assert ledger.claim(0, b"x").won is expected


@pytest.mark.parametrize("before", [NO_FLOOR, 0], ids=["first floor", "later floor"])
def test_the_floor_is_durable_before_a_slot_goes(tmp_path, before):
    """Between raising the floor and removing the first slot, the directories that hold the floor are flushed."""
    ledger = DirectoryLedger(tmp_path)
    fill(*range(4), floor=before)(ledger)
    trace = traced(lambda: ledger.trim(2))
    raised = [name for name, _ in trace].index("rename")
    removed = trace.index(("unlink", str(tmp_path / f"{before + 1:012d}")))
    assert ("fsync", str(tmp_path)) in trace[:raised], "the newest slot must outlive the ones it lets go"
    assert {("fsync", str(tmp_path)), ("fsync", str(tmp_path / "floor"))} <= set(trace[raised:removed])


def test_a_sleeper_flushes_the_floor_before_it_unlinks(tmp_path, monkeypatch):
    """A floor that its trimmer has not flushed may be taken back by a power cut: the sleeper must not rely on it."""
    ledger = DirectoryLedger(tmp_path)
    fill(0, 2, 3)(ledger)
    real = directory.link_first

    def link_first(path, data):
        won = real(path, data)
        if path.name == f"{1:012d}":
            DirectoryLedger(tmp_path)._raise_floor(2)
        return won

    def sleep_and_claim():
        with pytest.raises(Trimmed):
            ledger.claim(1, b"zombie")

    monkeypatch.setattr(directory, "link_first", link_first)
    trace = traced(sleep_and_claim)
    raised = trace.index(("rename", str(tmp_path / "floor")))
    removed = trace.index(("unlink", str(tmp_path / f"{1:012d}")))
    assert {("fsync", str(tmp_path)), ("fsync", str(tmp_path / "floor"))} <= set(trace[raised:removed])


@pytest.mark.parametrize("trim_lag", [None, 2], ids=["claiming", "claiming and trimming"])
def test_killed_processes_leave_a_whole_ledger(tmp_path, trim_lag):
    """Whatever killed processes were told stays true, and others go on from there."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    moments = random.Random(seed)
    path, logs, floor = tmp_path / "ledger", [], NO_FLOOR
    for life in range(3):
        new = [tmp_path / f"life-{life}-{number}.log" for number in range(3)]
        logs += new
        children = [start_advancing(functools.partial(DirectoryLedger, path), log, trim_lag) for log in new]
        for child, log in zip(children, new, strict=True):
            enough = moments.randint(1, 60)
            wait_until(lambda log=log, enough=enough: len(sightings([log])) >= enough, 120, f"{enough} claims in {log}")
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        ledger = DirectoryLedger(path)
        check_sightings(ledger, sightings(logs))
        assert ledger.floor() >= floor
        floor = ledger.floor()
        assert ledger.slots() == list(range(floor + 1, ledger.last() + 1))
    assert ledger.claim(ledger.last() + 1, b"after").won
