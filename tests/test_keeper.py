"""The keeper without Spark: what a version holds, that chains never break, and that slow stores only coalesce."""

import threading

import pytest

from anabranch.clock import SystemClock
from anabranch.errors import Corrupt, StoreUnavailable
from anabranch.keeper.calibration import Trigger
from anabranch.keeper.contents import CommitContents
from anabranch.keeper.keeper import Keeper, KeeperOptions
from anabranch.keeper.lane import Waiting
from anabranch.keeper.restoring import WarmCopy, fetch, materialise, newest_version
from anabranch.keeper.version import KeptFile, Version, decode
from anabranch.store.memory import MemoryStore
from anabranch.testing.store_suite import contents
from anabranch.testing.wait import wait_until
from fake_checkpoint import FakeCheckpoint

TIMEOUT_S = 60.0
RUN_PATH = "units/counts/runs/r000001.0a1b2c3d"


# Shipping


class Kept:
    """A fake checkpoint, a keeper over some stores, and what was shipped."""

    def __init__(self, directory, stores, **options):
        self.work = directory / "work"
        self.run_directory = self.work / RUN_PATH
        self.checkpoint = FakeCheckpoint(self.run_directory / "checkpoint")
        self.shipped = []
        self.keeper = Keeper(
            stores,
            KeeperOptions(self.work, "counts", "r000001.0a1b2c3d", **options),
            SystemClock(),
            shipped=lambda name, version: self.shipped.append((name, version.epoch)),
        )
        for lane in self.keeper._lanes.values():
            lane.start()

    def ship(self, epoch, **options):
        self.checkpoint.commit(epoch, **options)
        self.keeper.look()
        wait_until(lambda: self.keeper.shipped_epoch() >= epoch, TIMEOUT_S, f"version {epoch}")


@pytest.fixture
def keep(tmp_path):
    kept = []

    def begin(stores, **options):
        kept.append(Kept(tmp_path, stores, **options))
        return kept[-1]

    yield begin
    for some in kept:
        some.keeper.stop()


def restored(store, directory):
    version = newest_version(store)
    materialise(store, version, directory)
    return version


def own(version):
    return [file.path.removeprefix(f"{RUN_PATH}/") for file in version.files]


def tree(directory, paths):
    return {path: (directory / path).read_bytes() for path in paths}


def test_every_version_comes_back_as_it_was(keep, tmp_path):
    """Whatever came before, what is restored is what the commit needed, byte for byte, and nothing else."""
    store = MemoryStore()
    kept = keep({"a": store})
    for epoch in range(12):
        kept.ship(epoch, size=20 if epoch != 5 else 70_000)
        needed = {f"checkpoint/{path}" for path in CommitContents(kept.checkpoint.path).files(epoch)}
        place = tmp_path / f"restored-{epoch}"
        assert restored(store, place).epoch == epoch
        found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
        assert found == needed
        assert tree(place, needed) == tree(kept.run_directory, needed)
        if epoch % 4 == 3:
            kept.checkpoint.snapshot()


def test_a_version_that_waits_for_its_producer_is_not_replaced(keep):
    """A producer whose store is slow would otherwise always be behind the newest commit, and nothing be kept at all."""
    ceiling = [0]
    kept = keep({"a": MemoryStore()}, ceiling=lambda: ceiling[0])
    kept.ship(0)
    for epoch in range(1, 6):
        kept.checkpoint.commit(epoch)
        kept.keeper.look()
    assert kept.keeper.shipped_epoch() == 0
    ceiling[0] = 3
    wait_until(lambda: kept.keeper.shipped_epoch() == 1, TIMEOUT_S, "the version that waited")
    kept.keeper.look()
    assert kept.keeper.counters()["a"].waiting_epoch == 5
    ceiling[0] = 5
    wait_until(lambda: kept.keeper.shipped_epoch() == 5, TIMEOUT_S, "the next one")


def test_noted_watermarks_belong_to_a_version(keep):
    """If those of the commit are gone, there is a newer one: a version without them could not be started."""
    kept = keep({"a": MemoryStore()})
    (kept.run_directory / "watermarks").mkdir()
    (kept.run_directory / "watermarks" / "0").write_text("[1, 2]")
    kept.ship(0)
    kept.checkpoint.commit(1)
    kept.keeper.look()
    assert kept.keeper.counters()["a"].waiting_epoch == 0
    (kept.run_directory / "watermarks" / "2").write_text("[3, 4]")
    kept.ship(2)
    assert [epoch for _, epoch in kept.shipped] == [0, 2]


def test_old_versions_are_collected(keep):
    """The store keeps two versions and the files they name; nothing else stays, here or there."""
    store = MemoryStore()
    kept = keep({"a": store})
    for epoch in range(30):
        kept.ship(epoch)
        if epoch % 5 == 4:
            kept.checkpoint.snapshot()
            kept.checkpoint.clean(before=max(0, epoch - 6))
    assert store.keys("versions/") == ["versions/000000000028", "versions/000000000029"]
    versions = [decode(store.read(key), key) for key in store.keys("versions/")]
    named = [file for version in versions for file in version.files]
    assert set(store.keys("files/")) == set().union(*(file.keys() for file in named))
    wait_until(
        lambda: not [p for p in (kept.run_directory / "kept").rglob("*") if p.is_file()], TIMEOUT_S, "links gone"
    )


class SlowStore:
    """Lets nothing through until it is told to; fails as often as asked."""

    durability = MemoryStore.durability

    def __init__(self):
        self.inner = MemoryStore()
        self.gate = threading.Event()
        self.failures = 0

    def write(self, batch):
        assert self.gate.wait(TIMEOUT_S)
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("not now")
        self.inner.write(batch)

    def read(self, key):
        return self.inner.read(key)

    def keys(self, prefix=""):
        return self.inner.keys(prefix)

    def close(self):
        self.gate.set()


def test_what_a_run_inherited_is_kept_when_it_has_come_to_something(keep):
    """Until then nobody knows whether the files can be gone on from, and the run that came to it has kept its own."""
    store = MemoryStore()
    kept = keep({"one": store}, origin=lambda epoch: "r000000.00000000" if epoch == 6 else "")
    kept.checkpoint.commit(6)
    kept.keeper.look()
    kept.ship(7)
    assert kept.shipped == [("one", 7)]


def test_what_a_run_inherited_is_kept_at_once_where_something_waits_for_it(keep):
    """An epoch that is published when it is shipped, say; and the version says whose state it is."""
    store = MemoryStore()
    kept = keep({"one": store}, origin=lambda _: "r000000.00000000", trigger=Trigger(inherited=True))
    kept.ship(6)
    assert newest_version(store).made_by == "r000000.00000000"


def test_a_slow_store_coalesces_and_breaks_no_chain(keep, tmp_path):
    """While a store is busy versions replace each other, Spark cleans up, and what is stored in the end is whole."""
    slow, fast = SlowStore(), MemoryStore()
    kept = keep({"slow": slow, "fast": fast})
    kept.checkpoint.commit(0)
    kept.keeper.look()
    wait_until(lambda: kept.keeper._lanes["slow"]._waiting is None, TIMEOUT_S, "the slow store's reader")
    for epoch in range(1, 10):
        kept.checkpoint.commit(epoch)
        kept.keeper.look()
        wait_until(lambda epoch=epoch: ("fast", epoch) in kept.shipped, TIMEOUT_S, "the fast store")
    needed = tree(kept.run_directory, own(newest_version(fast)))
    kept.checkpoint.commit(10)
    kept.checkpoint.snapshot(6)
    kept.checkpoint.clean(before=6)
    slow.gate.set()
    wait_until(lambda: ("slow", 9) in kept.shipped, TIMEOUT_S, "the slow store")
    assert [epoch for name, epoch in kept.shipped if name == "slow"] == [0, 9]
    assert kept.keeper.counters()["slow"].coalesced == 8
    version = restored(slow, tmp_path / "restored")
    assert tree(tmp_path / "restored", own(version)) == needed


def test_a_store_that_fails_is_asked_again(keep, tmp_path):
    """Errors are counted and shown while they last; afterwards nothing is missing."""
    store = SlowStore()
    store.failures = 3
    kept = keep({"a": store})
    kept.checkpoint.commit(0)
    kept.keeper.look()
    store.gate.set()
    wait_until(lambda: kept.keeper.shipped_epoch() == 0, TIMEOUT_S, "version 0")
    assert (store.failures, kept.keeper.counters()["a"].error) == (0, None)
    assert restored(store, tmp_path / "restored").epoch == 0


def test_a_store_that_lost_what_it_had_is_given_everything_anew(keep, tmp_path):
    """A disk was replaced, or the store came back from an old copy: a version is never called kept with holes in it."""
    store = MemoryStore()
    kept = keep({"one": store})
    kept.ship(0)
    kept.ship(1)
    store.write(dict.fromkeys(store.keys()))
    kept.checkpoint.commit(2)
    kept.keeper.look()
    wait_until(lambda: kept.keeper.shipped_epoch() == -1, TIMEOUT_S, "the loss to be noticed")
    assert "lost what it was given" in kept.keeper.counters()["one"].error
    kept.ship(3)
    assert restored(store, tmp_path / "restored").epoch == 3
    assert kept.keeper.counters()["one"].error is None


def test_a_rest_ends_by_itself(keep):
    """However long the store took for the one before, the last epoch of a pipeline that falls silent is kept."""
    store = SlowStore()
    kept = keep({"a": store})
    kept.checkpoint.commit(0)
    kept.keeper.look()
    threading.Timer(0.5, store.gate.set).start()
    wait_until(lambda: kept.keeper.shipped_epoch() == 0, TIMEOUT_S, "version 0")
    assert kept.keeper.counters()["a"].busy_s > 0.4
    kept.ship(1)


def test_a_version_that_is_left_out_leaves_nothing(keep, tmp_path):
    """Pieces of a version whose last file is gone before it is read are taken back."""
    store = MemoryStore()
    kept = keep({"a": store})
    kept.ship(0)
    lane = kept.keeper._lanes["a"]
    large = tmp_path / "work" / "large"
    large.write_bytes(b"x" * (9 << 20))
    lane._read(Waiting("counts", "r", 1, 1, 0.0, ("large", "gone")))
    kept.ship(1)
    versions = [decode(store.read(key), key) for key in store.keys("versions/")]
    named = set().union(*(file.keys() for version in versions for file in version.files))
    assert set(store.keys("files/")) == named


def test_nothing_is_visible_before_the_record(keep):
    """Pieces of a version that is not closed are no version."""
    store = MemoryStore()
    kept = keep({"a": store})
    kept.ship(0)
    seen = []
    real = store.write

    def write(batch):
        real(batch)
        seen.append((newest_version(store).epoch, f"versions/{1:012d}" in batch))

    store.write = write
    kept.ship(1, size=120_000)
    assert seen[:-1] == [(0, False)] * (len(seen) - 1)
    assert len(seen) > 1
    assert seen[-1] == (1, True)
    for file in newest_version(store).files:
        fetch(store, file)


def test_the_last_commit_is_shipped_in_the_end(tmp_path):
    """However rare versions are, finishing ships the newest commit."""
    store = MemoryStore()
    kept = Kept(tmp_path, {"a": store}, trigger=Trigger(100))
    kept.keeper._thread.start()
    for epoch in range(5):
        kept.checkpoint.commit(epoch)
    assert kept.keeper.finish(TIMEOUT_S)
    assert newest_version(store).epoch == 4
    kept.keeper.stop()


# Restoring


@pytest.mark.parametrize("damage", ["missing", "altered"])
def test_damage_is_found_before_the_directory_appears(keep, tmp_path, damage):
    """A version that lacks a byte is not restored, and leaves no directory behind."""
    store = MemoryStore()
    kept = keep({"a": store})
    kept.ship(0)
    key = next(key for key in store.keys("files/") if key.endswith(".changelog"))
    store.write({key: None if damage == "missing" else store.read(key)[:-1] + b"?"})
    with pytest.raises(Corrupt):
        restored(store, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../b"])
def test_a_record_cannot_name_files_elsewhere(tmp_path, path):
    """A record that came from anywhere cannot write outside of the directory."""
    store = MemoryStore()
    store._values["files/x"] = b""
    version = Version("counts", "r", 0, 0, 0.0, (KeptFile(f"units/counts/runs/r/{path}", 0, 0),))
    with pytest.raises(Corrupt, match="outside"):
        materialise(store, version, tmp_path / "restored")


def test_a_warm_copy_follows_and_saves_fetching(keep, tmp_path):
    """A copy that is refreshed holds the newest version, and restoring from it fetches only what is new."""
    store = MemoryStore()
    kept = keep({"a": store})
    warm = WarmCopy(tmp_path / "warm")
    assert warm.refresh(store) is None
    for epoch in range(8):
        kept.ship(epoch)
        if epoch == 4:
            kept.checkpoint.snapshot()
        assert warm.refresh(store).epoch == epoch
        held = {str(path.relative_to(warm.directory)) for path in warm.directory.rglob("*") if path.is_file()}
        assert held == {file.path for file in newest_version(store).files}
    kept.ship(8)
    fetched = []
    real = store.read
    store.read = lambda key: fetched.append(key) or real(key)
    version = newest_version(store)
    materialise(store, version, tmp_path / "restored", have=warm.directory)
    assert len([key for key in fetched if key.startswith("files/")]) < len(version.files) / 2
    assert tree(tmp_path / "restored", own(version)) == tree(kept.run_directory, own(version))
    assert contents(store)
