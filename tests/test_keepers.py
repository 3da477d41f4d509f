"""The keepers of a node: whose versions they may touch, and what a failing store may not do to the pipeline."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from anabranch import keeping
from anabranch.clock import SystemClock
from anabranch.errors import StoreError, StoreUnavailable, WorkDirectoryError
from anabranch.keeper import restoring
from anabranch.keeper.restoring import Accept, find_versions, restore_unit
from anabranch.keeper.version import run_path
from anabranch.keeping import Keepers
from anabranch.rebuilding import rebuild
from anabranch.store.opening import namespaces, open_store
from anabranch.strategies import PassiveStandby
from anabranch.testing.wait import wait_until
from fake_checkpoint import FakeCheckpoint

TIMEOUT_S = 60.0
NOTHING_AROUND = SimpleNamespace(files=lambda _epoch: [])


@pytest.fixture
def url(tmp_path):
    return f"log:{tmp_path / 'store'}"


@dataclass
class KeptRun:
    """A run that notes what it was told to publish."""

    name: str
    run: str
    settled: bool = True
    released: list[int] = field(default_factory=list)
    at: int = 0

    def committed(self):
        return self.at

    def release_shipped(self, up_to):
        self.released.append(up_to)
        return self.settled


class Home:
    """A work directory with one protected unit."""

    def __init__(self, directory, url, work_id, **options):
        self.path, self.url = directory, url
        self.notes = []
        self.around = NOTHING_AROUND
        strategy = {"counts": PassiveStandby(store=url, **options)}
        self.keepers = Keepers(directory, strategy, SystemClock(), lambda kind, **_: self.notes.append(kind))
        self.keepers.belong_to("orders", work_id)

    def run(self, run, epochs):
        """Run some epochs, and end in order once they are kept."""
        checkpoint = FakeCheckpoint(self.path / run_path("counts", run) / "checkpoint")
        self.keepers.begin(KeptRun("counts", run), (), self.around)
        for epoch in range(epochs):
            checkpoint.commit(epoch)
            wait_until(lambda epoch=epoch: self.keepers.kept_epoch("counts") == epoch, TIMEOUT_S, f"version {epoch}")
        assert self.keepers.failure() is None
        self.keepers.finish(in_order=True)


def test_a_run_takes_the_place_of_former_ones_of_its_own_directory(tmp_path, url):
    """A second run drops the first; another directory with a unit of the same name is not touched."""
    mine, other = Home(tmp_path / "mine", url, "1" * 32), Home(tmp_path / "other", url, "2" * 32)
    other.run("r000000.00000001", 3)
    mine.run("r000000.00000002", 2)
    mine.run("r000001.00000003", 4)
    assert namespaces(url, "") == [
        "orders-111111111111/counts/r000001.00000003",
        "orders-222222222222/counts/r000000.00000001",
    ]
    restored = mine.keepers.restore("counts", tmp_path / "restored")
    assert (restored.run, restored.epoch) == ("r000001.00000003", 3)
    with pytest.raises(StoreError, match="several work directories") as caught:
        rebuild([url], tmp_path / "rebuilt")
    assert "--of orders-111111111111" in caught.value.hint


def test_a_store_that_is_not_mounted_is_away_not_empty(tmp_path, url):
    """A unit that has lost its own files waits for the store; a first start finds nothing there, and may."""
    home = Home(tmp_path / "home", url, "1" * 32)
    assert home.keepers.restore("counts", tmp_path / "nothing") is None
    home.run("r000000.00000001", 3)
    home.keepers.know(set(), lambda _: 2)
    (tmp_path / "store").rename(tmp_path / "unmounted")
    (tmp_path / "store").mkdir()
    with pytest.raises(StoreUnavailable, match="nothing of 'counts', though epoch 2 was kept there"):
        home.keepers.restore("counts", tmp_path / "restored")
    (tmp_path / "store").rmdir()
    (tmp_path / "unmounted").rename(tmp_path / "store")
    assert home.keepers.restore("counts", tmp_path / "restored").epoch == 2


def test_a_newer_version_of_another_run_is_not_dropped(tmp_path, url):
    """A run that is behind another, such as one that was thought dead, does not remove what is newer."""
    home = Home(tmp_path / "home", url, "1" * 32)
    home.run("r000000.00000001", 5)
    home.run("r000001.00000002", 2)
    assert len(namespaces(url, "")) == 2
    assert find_versions([url])["counts"][0].version.epoch == 4


def test_a_store_that_cannot_be_tidied_does_not_stop_the_pipeline(tmp_path, url, monkeypatch):
    """Former runs stay until the store lets them be removed; keeping goes on meanwhile."""
    home = Home(tmp_path / "home", url, "1" * 32)
    home.run("r000000.00000001", 1)
    real, failures = keeping.drop, [StoreUnavailable("not now"), StoreUnavailable("not now")]

    def drop(*place):
        if failures:
            raise failures.pop()
        real(*place)

    monkeypatch.setattr(keeping, "drop", drop)
    home.run("r000001.00000002", 4)
    assert home.notes == ["not tidied", "not tidied"]
    assert namespaces(url, "") == ["orders-111111111111/counts/r000001.00000002"]


def test_a_store_that_failed_once_is_opened_again(tmp_path, url, monkeypatch):
    """A log whose flush failed refuses every later write; keeping goes on with another handle on it."""
    opened, real = [], keeping.open_store

    class FailsOnce:
        """A store that does not know, after one failure, what is on its disk."""

        def __init__(self, store):
            self._store = store
            self.broken = False

        def write(self, batch):
            self.broken = self.broken or len(opened) == 1
            if self.broken:
                raise StoreError("a flush failed")
            self._store.write(batch)

        def read(self, key):
            return self._store.read(key)

        def close(self):
            self._store.close()

    def open_store(*place):
        opened.append(FailsOnce(real(*place)))
        return opened[-1]

    monkeypatch.setattr(keeping, "open_store", open_store)
    Home(tmp_path / "home", url, "1" * 32).run("r000000.00000001", 3)
    assert len(opened) == 2


@pytest.mark.parametrize(("units", "every"), [(1, 40), (3, 20), (9, 8)])
def test_versions_are_due_before_a_row_of_units_waits_for_itself(units, every):
    """A version waits for those of the units before it: each adds an interval to what the last one is behind."""
    strategy = PassiveStandby(store="log:x", every=40, most_behind=80)
    assert strategy.trigger(units).every_epochs == every
    assert (units + 1) * every <= 80


def test_a_younger_run_is_never_dropped(tmp_path, url):
    """It may lead by now, also if what it has kept is no newer: a run that was thought dead goes on for a while."""
    home = Home(tmp_path / "home", url, "1" * 32)
    home.run("r000001.00000002", 2)
    home.run("r000000.00000001", 4)
    assert len(namespaces(url, "")) == 2


def test_what_a_run_left_that_kept_nothing_whole_is_dropped(tmp_path, url):
    """It was killed before its first version was complete: pieces without a record."""
    home = Home(tmp_path / "home", url, "1" * 32)
    store = open_store(url, "orders-111111111111/counts/r000000.00000001")
    store.write({"files/half": b"of it"})
    store.close()
    home.run("r000001.00000002", 1)
    assert namespaces(url, "") == ["orders-111111111111/counts/r000001.00000002"]


def test_a_namespace_that_cannot_be_opened_hides_no_other(tmp_path, url):
    """Neither when versions are looked for, nor when former runs are dropped, which goes on."""
    home = Home(tmp_path / "home", url, "1" * 32)
    home.run("r000000.00000001", 2)
    place = tmp_path / "store" / "orders-111111111111" / "counts" / "r000000.00000001"
    for path in place.glob("*.log"):
        path.unlink()
    home.run("r000001.00000002", 3)
    assert find_versions([url])["counts"][0].version.epoch == 2
    restored = home.keepers.restore("counts", tmp_path / "restored")
    assert (restored.run, restored.epoch) == ("r000001.00000002", 2)


def test_a_damaged_version_gives_way_to_the_one_before(tmp_path, url):
    """And if no whole one is left, that is noted, and there may be files on disk to go on from."""
    home = Home(tmp_path / "home", url, "1" * 32)
    home.run("r000000.00000001", 3)
    newest, before = find_versions([url])["counts"][:2]
    old = {file.path for file in before.version.files}
    own = [file for file in newest.version.files if file.path not in old]
    store = open_store(url, newest.namespace)
    store.write(dict.fromkeys(key for file in own for key in file.keys()))  # noqa: SIM118  a method
    store.close()
    assert home.keepers.restore("counts", tmp_path / "restored").epoch == before.version.epoch
    store = open_store(url, newest.namespace)
    store.write(dict.fromkeys(key for key in store.keys() if key.startswith("files/")))  # noqa: SIM118  a method
    store.close()
    assert home.keepers.restore("counts", tmp_path / "again") is None
    assert home.notes == ["not restored"]
    assert not (tmp_path / "again").exists()


def test_a_new_run_is_not_behind_what_former_ones_kept(tmp_path, url):
    """Its own first version may take long; input is not held for what the store has already."""
    home = Home(tmp_path / "home", url, "1" * 32, most_behind=3)
    home.keepers.know(set(), lambda _: 5000)
    home.keepers.begin(KeptRun("counts", "r000000.00000001"), (), NOTHING_AROUND)
    assert home.keepers.kept_epoch("counts") == 5000
    assert home.keepers.unkept({"counts": 5003}) is None
    assert home.keepers.unkept({"counts": 5004}) == "counts"
    home.keepers.finish(in_order=False)


def test_a_pipeline_that_begins_is_told_that_its_store_is_of_no_use(tmp_path, url, monkeypatch):
    """It might ship nothing for hours; one that goes on does so without it."""
    home = Home(tmp_path / "home", url, "1" * 32)

    def open_store(*_, **__):
        raise StoreError("read-only")

    monkeypatch.setattr(keeping, "open_store", open_store)
    with pytest.raises(StoreError, match="read-only"):
        home.keepers.begin(KeptRun("counts", "r000000.00000001", at=-1), (), NOTHING_AROUND)
    home.keepers.begin(KeptRun("counts", "r000000.00000002", at=7), (), NOTHING_AROUND)
    assert home.notes == ["store away"]
    home.keepers.finish(in_order=False)


def test_a_store_that_is_away_is_opened_later(tmp_path, url, monkeypatch):
    """A run with its state on disk starts without its store, holds what the store lacks, and ships when it is back."""
    home = Home(tmp_path / "home", url, "1" * 32, most_behind=3)
    away, real = [True], keeping.open_store

    def open_store(*place, **options):
        if away:
            raise StoreUnavailable("not there")
        return real(*place, **options)

    monkeypatch.setattr(keeping, "open_store", open_store)
    checkpoint = FakeCheckpoint(tmp_path / "home" / run_path("counts", "r000000.00000001") / "checkpoint")
    home.keepers.begin(KeptRun("counts", "r000000.00000001"), (), NOTHING_AROUND)
    for epoch in range(4):
        checkpoint.commit(epoch)
    wait_until(lambda: home.keepers.status("counts")[0]["error"] == "not there", TIMEOUT_S, "the error in the status")
    assert home.keepers.unkept({"counts": 2}) is None
    assert home.keepers.unkept({"counts": 3}) == "counts"
    away.clear()
    wait_until(lambda: home.keepers.kept_epoch("counts") == 3, TIMEOUT_S, "version 3")
    assert home.keepers.unkept({"counts": 3}) is None
    home.keepers.finish(in_order=True)


def test_nothing_is_restored_while_the_store_that_may_have_it_is_away(tmp_path, url, monkeypatch):
    """Of two stores one has only what is of no use, and the other does not answer: that is no loss yet."""
    home = Home(tmp_path / "home", url, "1" * 32)
    home.run("r000000.00000001", 1)
    real = restoring.namespaces

    def namespaces(asked, prefix):
        if asked != url:
            raise StoreUnavailable("not now")
        return real(asked, prefix)

    monkeypatch.setattr(restoring, "namespaces", namespaces)
    both, of = [url, "redis://elsewhere"], "orders-111111111111"
    assert restore_unit(both, of, "counts", tmp_path / "restored").epoch == 0
    with pytest.raises(StoreUnavailable):
        restore_unit(both, of, "counts", tmp_path / "again", Accept(lambda version: version.epoch > 0))
    assert restore_unit([url], of, "counts", tmp_path / "again", Accept(lambda version: version.epoch > 0)) is None


def test_a_record_that_cannot_be_read_hides_no_other(tmp_path, url):
    """The newest version that can be read is found."""
    home = Home(tmp_path / "home", url, "1" * 32)
    home.run("r000000.00000001", 3)
    store = open_store(url, "orders-111111111111/counts/r000000.00000001")
    store.write({"versions/000000000002": b"torn"})
    assert find_versions([url])["counts"][0].version.epoch == 1
    store.close()


@pytest.mark.parametrize("what", ["a file", "no right to write"])
def test_a_place_that_cannot_be_made_is_refused(tmp_path, url, what):
    """With a clear error, and nothing left behind."""
    home = Home(tmp_path / "home", url, "1" * 32)
    identity = tmp_path / "home" / "identity.json"
    identity.parent.mkdir()
    identity.write_text(json.dumps({"segments": {"counts": {"inputs": []}}}))
    home.around = SimpleNamespace(files=lambda _epoch: ["identity.json"])
    home.run("r000000.00000001", 1)
    (tmp_path / "here").write_text("")
    target = tmp_path / "here" if what == "a file" else Path("/proc/nothing/here")
    with pytest.raises(WorkDirectoryError, match=r"not an empty directory|cannot be made"):
        rebuild([url], target)


def test_a_wrong_name_is_told_from_an_empty_store(tmp_path, url):
    """Whoever restores is told what the store keeps."""
    with pytest.raises(StoreError, match="nothing in"):
        rebuild([url], tmp_path / "rebuilt")
    home = Home(tmp_path / "home", url, "1" * 32)
    home.run("r000000.00000001", 1)
    with pytest.raises(StoreError, match="keeps nothing of 'orders'") as caught:
        rebuild([url], tmp_path / "rebuilt", of="orders")
    assert caught.value.hint == "it keeps orders-111111111111"


def test_a_directory_that_cannot_be_listed_is_not_empty(tmp_path):
    """A store that may not be read, or is no directory, is an error: a backup that seems gone would be worse."""
    (tmp_path / "store").write_text("")
    with pytest.raises(StoreError, match="cannot be read"):
        namespaces(f"log:{tmp_path / 'store'}", "")


def test_a_run_is_told_what_every_store_has(tmp_path):
    """What waits for its checkpoint is published when the slowest store has it, and not before."""
    home = Home(tmp_path / "home", [f"log:{tmp_path / 'one'}", f"files:{tmp_path / 'two'}"], "a" * 32)
    kept = KeptRun("counts", "r000000.00000001")
    checkpoint = FakeCheckpoint(home.path / run_path("counts", kept.run) / "checkpoint")
    home.keepers.begin(kept, (), NOTHING_AROUND)
    for epoch in range(3):
        checkpoint.commit(epoch)
        wait_until(lambda epoch=epoch: home.keepers.kept_epoch("counts") == epoch, TIMEOUT_S, f"version {epoch}")
        wait_until(lambda epoch=epoch: epoch in kept.released, TIMEOUT_S, f"epoch {epoch} to be told")
    assert kept.released == sorted(kept.released)
    home.keepers.finish(in_order=True)


def test_versions_of_older_runs_stay_until_a_run_is_settled(tmp_path):
    """An older run may still be the one that others must go on from."""
    url = f"log:{tmp_path / 'store'}"
    home = Home(tmp_path / "home", url, "a" * 32)
    home.run("r000000.00000001", 1)
    for run, settled, left in (("r000001.00000002", False, 2), ("r000002.00000003", True, 1)):
        kept = KeptRun("counts", run, settled)
        checkpoint = FakeCheckpoint(home.path / run_path("counts", run) / "checkpoint")
        home.keepers.begin(kept, (), NOTHING_AROUND)
        checkpoint.commit(0)
        wait_until(lambda kept=kept: kept.released, TIMEOUT_S, "the version")
        home.keepers.finish(in_order=True)
        found = find_versions([url])["counts"]
        assert len({some.namespace for some in found}) == left


def test_what_is_kept_elsewhere_is_what_was_declared(tmp_path, url):
    """A unit that another node leads is kept by that node, which says how far; one without a store is not kept."""
    home = Home(tmp_path / "home", url, "a" * 32, most_behind=3)
    home.keepers.know(set(), lambda _unit: 7)
    assert home.keepers.kept_epoch("counts") == 7
    assert home.keepers.kept_epoch("other") is None
    assert home.keepers.unkept({"counts": 10}) is None
    assert home.keepers.unkept({"counts": 11}) == "counts"


def test_what_others_wait_for_is_shipped_with_every_epoch(tmp_path, url):
    """However seldom its own strategy would: a version downstream is never newer than this one."""
    home = Home(tmp_path / "home", url, "a" * 32, every=100)
    home.keepers.know({"counts"}, lambda _unit: -1)
    home.run("r000000.00000001", 3)
    assert max(some.version.epoch for some in find_versions([url])["counts"]) == 2
