"""The store contract as tests: a backend subclasses `StoreContract` and says how to open a store.

    class TestMyStore(StoreContract):
        def open(self, directory, *, writing=True): return MyStore(...)

Every property is stated over the contract alone, so that a new backend needs no test of its own for it. Needs pytest
and Hypothesis.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from anabranch.errors import StoreError
from anabranch.store.store import Store
from anabranch.testing.wait import wait_until

KEYS = ("a", "a/b", "a/b.c", "ab", "versions/000000000012", "=+-_")
VALUES = st.one_of(st.none(), st.binary(max_size=64), st.binary(min_size=400, max_size=500))
BATCHES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)
THREADS = 8
SAVES = 40

_KILLED_WRITER = """
import sys
from anabranch.store.opening import open_store
store = open_store(sys.argv[1], sys.argv[2])
first = int(sys.argv[3])
for version in range(first, first + 1_000_000):
    value = b"%d " % version * 40
    batch = {f"files/{version % 7}/{piece}": value for piece in range(3)}
    batch |= {f"versions/{version:09d}": value, f"versions/{version - 5:09d}": None}
    store.write(batch)
    print(version, flush=True)
"""


def contents(store: Store) -> dict[str, bytes | None]:
    """Return everything that is in a store."""
    keys = store.keys()
    return {key: store.read(key) for key in keys}


class StoreContract:
    """What every store must do. Hooks first, then the properties."""

    #: Whether what was written is there after the process is gone.
    survives = True
    #: Whether a second writer is refused.
    one_writer = False
    #: How often the writer is killed at random moments; the soak kills it more often.
    kills = int(os.environ.get("ANABRANCH_STORE_KILLS", "6"))

    def open(self, directory: Path, *, writing: bool = True) -> Store:
        """Open the store of a directory, which is empty at first."""
        raise NotImplementedError

    def url(self, directory: Path) -> str:
        """Return the address of the same store, for another process."""
        raise NotImplementedError

    def abandon(self, store: Store) -> None:
        """Leave a store as a killed process does: without closing it in order."""
        store.close()

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        """Give the directory of a store."""
        return tmp_path / "store-under-test"

    @pytest.fixture
    def store(self, place: Path) -> Iterator[Store]:
        """Give an empty store."""
        store = self.open(place)
        yield store
        store.close()

    # One caller

    def test_a_new_store_is_empty(self, store: Store) -> None:
        """A new store has no keys, and reading gives None."""
        assert (store.keys(), store.read("a")) == ([], None)

    def test_what_is_written_is_read(self, store: Store) -> None:
        """Values come back as they were, also empty ones and keys that are the beginning of others."""
        batch = {"a": b"1", "a/b": b"", "a/b/c": bytes(range(256)), "ab": b"x" * 100_000}
        store.write(batch)
        assert contents(store) == batch
        assert store.keys() == sorted(batch)

    def test_a_prefix_chooses_keys(self, store: Store) -> None:
        """Only keys that begin with the prefix are listed."""
        store.write(dict.fromkeys(["a", "a/b", "a/c", "ab", "b/a"], b""))
        assert (store.keys("a/"), store.keys("a"), store.keys("x")) == (["a/b", "a/c"], ["a", "a/b", "a/c", "ab"], [])

    def test_a_batch_replaces_and_removes(self, store: Store) -> None:
        """One batch gives new values and takes others away; removing what is not there does nothing."""
        store.write({"a": b"1", "b": b"2"})
        store.write({"a": b"3", "b": None, "c": b"4", "never": None})
        assert [store.read(key) for key in ("a", "b", "c", "never")] == [b"3", None, b"4", None]
        assert store.keys() == ["a", "c"]
        store.write({})
        store.write({"b": b"5"})
        assert store.keys() == ["a", "b", "c"]

    @pytest.mark.parametrize(
        "key", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "ä", "a b", "a\n", "a\0", "a~", "x" * 201, "é/x"]
    )
    def test_bad_keys_are_refused(self, store: Store, key: str) -> None:
        """A key that is no plain relative path is an error, and nothing of its batch is written."""
        with pytest.raises(StoreError, match="not a key"):
            store.write({"good": b"", key: b""})
        assert store.keys() == []

    def test_durability_is_stated(self, store: Store) -> None:
        """A store says what a save survives."""
        assert store.durability.survives in ("device", "server", "process")
        assert store.durability.explanation

    # Several handles

    def test_another_handle_sees_it(self, store: Store, place: Path) -> None:
        """A reader opened after a save sees it, while the writer goes on."""
        store.write({"a": b"1", "b": b"2"})
        store.write({"b": None})
        reader = self.open(place, writing=False)
        assert (reader.keys(), reader.read("a"), reader.read("b")) == (["a"], b"1", None)
        reader.close()

    def test_it_is_there_after_opening_again(self, store: Store, place: Path) -> None:
        """What was saved is there for the next one to open the store."""
        store.write({"a": b"1", "b": b"2"})
        store.write({"a": b"3"})
        store.close()
        again = self.open(place)
        assert ([again.read("a"), again.read("b")], again.keys()) == ([b"3", b"2"], ["a", "b"])
        again.write({"c": b"4"})
        assert again.keys() == ["a", "b", "c"]
        again.close()

    def test_a_second_writer_is_refused(self, store: Store, place: Path) -> None:
        """Two writers would destroy each other's work, or cannot: then there may be two."""
        if not self.one_writer:
            self.open(place).close()
            return
        with pytest.raises(StoreError, match="another process"):
            self.open(place)
        store.close()
        self.open(place).close()

    def test_threads_save_at_the_same_time(self, store: Store, place: Path) -> None:
        """Every save of every thread is there, and each batch whole."""
        failures: list[BaseException] = []

        def save(thread: int) -> None:
            try:
                for number in range(SAVES):
                    store.write({f"t{thread}/{number % 5}": b"%d" % number, f"t{thread}/last": b"%d" % number})
                    assert store.read(f"t{thread}/last") == b"%d" % number
            except BaseException as error:  # noqa: BLE001  shown by the test
                failures.append(error)

        threads = [threading.Thread(target=save, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        expected = {f"t{thread}/{number % 5}": b"%d" % number for thread in range(THREADS) for number in range(SAVES)}
        expected |= {f"t{thread}/last": b"%d" % (SAVES - 1) for thread in range(THREADS)}
        reader = self.open(place, writing=False)
        for handle in (store, reader):
            assert contents(handle) == expected
        reader.close()

    # Against a dictionary

    def test_it_is_a_dictionary_that_survives(self) -> None:
        """Whatever is done in whatever order, the store agrees with a dictionary, through crashes and restarts."""
        machine: Any = lambda: _AgainstDictionary(self)  # noqa: E731  anything that makes a machine will do
        run_state_machine_as_test(
            machine,
            settings=settings(max_examples=40, stateful_step_count=30),
        )

    # Killed

    def test_a_killed_writer_leaves_whole_versions(self, place: Path) -> None:
        """Wherever the writer is killed, every acknowledged version is there, whole, and none is there in part."""
        if not self.survives:
            pytest.skip("it does not outlive its process")
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")  # noqa: T201
        moments = random.Random(seed)
        version = 0
        for _ in range(self.kills):
            acknowledged = _write_until_killed(self.url(place), moments, version)
            store = self.open(place)
            version = _check_versions(store, acknowledged) + 1
            store.close()


class _AgainstDictionary(RuleBasedStateMachine):
    """Does the same to a store and to a dictionary."""

    def __init__(self, contract: StoreContract) -> None:
        super().__init__()
        self._contract = contract
        self._home = tempfile.TemporaryDirectory()
        self._place = Path(self._home.name, "store")
        self._store = contract.open(self._place)
        self._model: dict[str, bytes] = {}

    @rule(batch=BATCHES)
    def write(self, batch: dict[str, bytes | None]) -> None:
        """Save a batch."""
        self._store.write(batch)
        for key, value in batch.items():
            self._model.pop(key, None)
            if value is not None:
                self._model[key] = value

    @rule(crash=st.booleans())
    def open_again(self, *, crash: bool) -> None:
        """Leave the store, in order or not, and open it again."""
        if crash and self._contract.survives:
            self._contract.abandon(self._store)
        else:
            self._store.close()
        self._store = self._contract.open(self._place)

    @rule()
    def look_from_outside(self) -> None:
        """Read with another handle."""
        reader = self._contract.open(self._place, writing=False)
        assert contents(reader) == self._model
        reader.close()

    @invariant()
    def agrees(self) -> None:
        """The store holds what the dictionary holds."""
        assert contents(self._store) == self._model
        for prefix in ("a", "a/", "versions/", "z"):
            assert self._store.keys(prefix) == sorted(key for key in self._model if key.startswith(prefix))

    def teardown(self) -> None:
        """Let go."""
        self._store.close()
        self._home.cleanup()


def _write_until_killed(url: str, moments: random.Random, first: int) -> int:
    """Let a process write versions, kill it at some moment, and return the last version it was told is saved."""
    enough = moments.randint(1, 40)
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-c", _KILLED_WRITER, url, "", str(first)]
        child = subprocess.Popen(command, stdout=said)

        def lines() -> list[str]:
            said.seek(0)
            return [line for line in said.read().split("\n")[:-1] if line]

        wait_until(lambda: len(lines()) >= enough or child.poll() is not None, 120, f"{enough} versions")
        assert child.poll() is None, "the writer failed"
        # Somewhere inside of a save: the time between two of them is a fraction of a millisecond or a few.
        threading.Event().wait(moments.random() * 0.02)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        return int(lines()[-1])


def _check_versions(store: Store, acknowledged: int) -> int:
    """Check that the store holds exactly some version at or after the acknowledged one; return which."""
    newest = int(store.keys("versions/")[-1].removeprefix("versions/"))
    assert newest in (acknowledged, acknowledged + 1), f"{acknowledged} was acknowledged, {newest} is there"
    kept = range(max(0, newest - 4), newest + 1)
    assert store.keys("versions/") == [f"versions/{version:09d}" for version in kept]
    for version, piece in itertools.product(range(max(0, newest - 6), newest + 1), range(3)):
        assert store.read(f"files/{version % 7}/{piece}") == b"%d " % version * 40
    for version in kept:
        assert store.read(f"versions/{version:09d}") == b"%d " % version * 40
    return newest
