"""The indexed log: its index is only a shortcut, damage is told from a torn end, and dead files go."""

import os
import random
import threading
from dataclasses import replace

import pytest

from anabranch.errors import Corrupt
from anabranch.store.indexed_log import IndexedLogStore, LogLimits
from anabranch.store.log_index import Index
from anabranch.store.log_segment import Entry, Held
from anabranch.testing.store_suite import contents
from anabranch.testing.wait import wait_until

# So small that a few saves rotate, flush, merge and compact.
SMALL = LogLimits(file_bytes=1_500, unflushed_entries=6, unflushed_bytes=1_000, block_bytes=600)


def log_files(directory):
    return sorted(path.name for path in directory.glob("*.log"))


def check_counts(store, directory, keys):
    """What the index says that each log file holds is what its entries say."""
    expected = {}
    for key in keys:
        entry = store._index.get(key)
        if entry is not None:
            values, value_bytes, removals = expected.get(entry.file, (0, 0, 0))
            change = (0, 0, 1) if entry.removed else (1, entry.length, 0)
            expected[entry.file] = (values + change[0], value_bytes + change[1], removals + change[2])
    present = {path.name for path in directory.glob("*.log")}
    counted = {file: (some.values, some.value_bytes, some.removals) for file, some in store._index.held.items()}
    assert {file: counts for file, counts in counted.items() if any(counts)} == {
        file: counts for file, counts in expected.items() if f"{file:012d}.log" in present
    }


def test_a_file_nobody_refers_to_goes(tmp_path):
    """Saving the same keys again and again does not fill the disk, and neither do removed ones."""
    store = IndexedLogStore(tmp_path, limits=SMALL)
    for number in range(400):
        store.write({f"k{number % 3}": b"%d" % number * 100, f"v{number}": b"x" * 50, f"v{number - 2}": None})
    sizes = sum(path.stat().st_size for path in tmp_path.glob("*.log"))
    assert sizes < 12_000
    assert len(list(tmp_path.glob("segment-*"))) < 8
    assert store.keys() == ["k0", "k1", "k2", "v398", "v399"]
    store._let_go()
    for path in [tmp_path / "index.json", *tmp_path.glob("segment-*")]:
        path.unlink()
    store = IndexedLogStore(tmp_path, limits=SMALL)
    assert store.keys() == ["k0", "k1", "k2", "v398", "v399"], "an old value came back when the index was lost"
    store.close()


@pytest.mark.parametrize("lost", ["index", "segment", "both", "altered index", "altered segment"])
def test_the_index_is_only_a_shortcut(tmp_path, lost):
    """Without its index, or with a damaged one, the log is read whole and says the same."""
    chance = random.Random(5)
    store, model = IndexedLogStore(tmp_path, limits=SMALL), {}
    for _ in range(300):
        key = f"k{chance.randrange(40)}"
        value = None if chance.random() < 0.3 else bytes(chance.randrange(60))
        store.write({key: value})
        model = {name: old for name, old in (model | {key: value}).items() if old is not None}
    store._let_go()
    for path in [tmp_path / "index.json"] * (lost in ("index", "both")):
        path.unlink()
    for path in list(tmp_path.glob("segment-*")) * (lost in ("segment", "both")):
        path.unlink()
    if lost.startswith("altered"):
        path = tmp_path / "index.json" if lost == "altered index" else next(tmp_path.glob("segment-*"))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    store = IndexedLogStore(tmp_path, limits=SMALL)
    assert contents(store) == model
    store.close()


def test_a_torn_end_is_cut_off_and_damage_is_not(tmp_path):
    """Every cut of the last block leaves what was before it; a changed byte before the last block is an error."""
    store = IndexedLogStore(tmp_path / "0")
    store.write({"a": b"1" * 50})
    store.write({"b": b"2" * 50})
    whole = (tmp_path / "0" / log_files(tmp_path / "0")[0]).stat().st_size
    store.write({"c": b"3" * 50})
    store._let_go()
    name = log_files(tmp_path / "0")[0]
    content = (tmp_path / "0" / name).read_bytes()
    for length in range(whole, len(content)):
        directory = tmp_path / f"torn-{length}"
        directory.mkdir()
        (directory / name).write_bytes(content[:length])
        store = IndexedLogStore(directory)
        assert contents(store) == {"a": b"1" * 50, "b": b"2" * 50}
        store.write({"d": b"4"})
        store._let_go()
        store = IndexedLogStore(directory)
        assert store.keys() == ["a", "b", "d"]
        store.close()
    for position in range(0, whole, 7):
        directory = tmp_path / f"altered-{position}"
        directory.mkdir()
        altered = bytearray(content)
        altered[position] ^= 0x40
        (directory / name).write_bytes(altered)
        with pytest.raises(Corrupt, match=name):
            IndexedLogStore(directory)
        assert (directory / name).read_bytes() == altered, "a damaged file was changed"


def test_a_value_altered_after_opening_is_found_out(tmp_path):
    """A read gives what was written or an error that names the file."""
    store = IndexedLogStore(tmp_path)
    store.write({"a": b"1" * 50})
    with (tmp_path / log_files(tmp_path)[0]).open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"x")
    with pytest.raises(Corrupt, match=r"000000000001\.log"):
        store.read("a")
    store.close()


def test_a_lost_log_file_is_missed(tmp_path):
    """A log file that the index refers to cannot vanish unnoticed."""
    store = IndexedLogStore(tmp_path, limits=SMALL)
    for number in range(40):
        store.write({f"k{number}": b"x" * 100})
    store.close()
    (tmp_path / log_files(tmp_path)[1]).unlink()
    for writing in (True, False):
        with pytest.raises(Corrupt, match="missing"):
            IndexedLogStore(tmp_path, writing=writing, limits=SMALL)


def test_threads_share_a_flush(tmp_path, monkeypatch):
    """Saves that come while a flush is under way are flushed together by the next one."""
    store = IndexedLogStore(tmp_path)
    store.write({"first": b""})
    flushes, entered, go_on = [], threading.Event(), threading.Event()
    real = os.fdatasync

    def slow(descriptor):
        flushes.append(descriptor)
        entered.set()
        assert go_on.wait(60)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    threads = [threading.Thread(target=store.write, args=({f"k{number}": b"x"},)) for number in range(20)]
    threads[0].start()
    assert entered.wait(60)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(store._queue) == 19, 60, "the others to queue")
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(flushes) == 2
    assert len(store.keys()) == 21
    store.close()


def test_readers_follow_a_busy_writer(tmp_path):
    """A reader opened at any moment, while files are rotated, emptied and removed, sees one whole state."""
    store = IndexedLogStore(tmp_path, limits=SMALL)
    store.write({"x": b"0", "y": b"0"})
    stopping = threading.Event()

    def write():
        number = 0
        while not stopping.is_set():
            number += 1
            store.write({"x": b"%d" % number, "y": b"%d" % number, f"k{number % 11}": b"z" * 200})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(100):
            reader = IndexedLogStore(tmp_path, writing=False, limits=SMALL)
            x = int(reader.read("x"))
            y = int(reader.read("y"))
            assert y >= x
            assert reader.read("k1") in (None, b"z" * 200)
            reader.close()
    finally:
        stopping.set()
        thread.join()
        store.close()


@pytest.mark.parametrize("seed", range(5))
def test_what_files_hold_is_counted_right(tmp_path, seed):
    """After any saves, flushes and openings, the counts are those of the entries that the index gives."""
    chance = random.Random(seed)
    store = IndexedLogStore(tmp_path, limits=SMALL)
    for number in range(250):
        keys = [f"k{chance.randrange(30)}" for _ in range(chance.randrange(1, 4))]
        store.write({key: None if chance.random() < 0.3 else bytes(chance.randrange(90)) for key in keys})
        if number % 50 == 49:
            (store.close if chance.random() < 0.5 else store._let_go)()
            store = IndexedLogStore(tmp_path, limits=SMALL)
    store._flush()
    check_counts(store, tmp_path, [f"k{number}" for number in range(30)])
    store.close()


@pytest.mark.parametrize("lost", [False, True])
def test_saves_go_on_while_files_are_emptied(tmp_path, lost):
    """Threads that save while others flush and empty files: no value is lost, and none comes back."""
    store = IndexedLogStore(tmp_path, limits=replace(SMALL, moved_bytes=100))
    models = [{} for _ in range(6)]

    def work(mine):
        chance = random.Random(mine)
        for number in range(150):
            key = f"k{mine}/{chance.randrange(12)}"
            value = None if chance.random() < 0.2 else b"%d" % number * chance.randrange(30)
            store.write({key: value})
            models[mine][key] = value

    threads = [threading.Thread(target=work, args=(mine,)) for mine in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    model = {key: value for some in models for key, value in some.items() if value is not None}
    assert contents(store) == model
    store._flush()
    check_counts(store, tmp_path, [key for some in models for key in some])
    store._let_go()
    for path in [tmp_path / "index.json", *tmp_path.glob("segment-*")] * lost:
        path.unlink()
    store = IndexedLogStore(tmp_path, limits=SMALL)
    assert contents(store) == model
    assert len(log_files(tmp_path)) < 40
    store.close()


def test_a_flush_that_fails_takes_nothing_with_it(tmp_path):
    """What was set aside for it, and what came while it tried, is in the index afterwards, and counted once."""
    index = Index()
    index.put("same", Entry(1, 10, 5, 0))
    index.put("old", Entry(1, 20, 7, 0))
    frozen = index.freeze((1, 30))
    index.put("same", Entry(2, 10, 3, 0))
    with pytest.raises(FileNotFoundError):
        index.flush(tmp_path / "gone", frozen, threading.Lock())
    assert index.get("same") == Entry(2, 10, 3, 0)
    assert index.get("old") == Entry(1, 20, 7, 0)
    assert index.held == {1: Held(1, 7, 0), 2: Held(1, 3, 0)}
