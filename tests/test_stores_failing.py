"""Stores on failing devices: at every file operation, with altered bytes, full disks and servers that go away."""

import errno
import json
import os
import threading
from contextlib import contextmanager

import pytest
import redis

from anabranch.errors import Corrupt, StoreError, StoreUnavailable
from anabranch.store.file_per_key import FilePerKeyStore
from anabranch.store.indexed_log import IndexedLogStore, LogLimits
from anabranch.store.opening import namespaces, open_store
from anabranch.store.store import not_written
from anabranch.testing.store_suite import contents
from anabranch.testing.wait import wait_until
from faulty_disk import fail_everywhere, traced
from redis_server import RedisServer

SMALL = LogLimits(file_bytes=1_500, unflushed_entries=6, unflushed_bytes=1_000, block_bytes=600)
# Saves one after the other: they replace, remove, bring back, rotate files and leave some of them mostly dead.
SAVES = [
    {"a": b"1" * 300, "b": b"2" * 300},
    {"c/d": b"3" * 300},
    {"a": b"4" * 300},
    {"b": None, "e": b"5"},
    {"a": b"6" * 300, "x/y/z": b""},
    {"b": b"7" * 300},
    {"c/d": None},
    {"a": b"8" * 300, "b": b"9" * 300, "e": None},
    {"f": b"10" * 300},
    {"a": b"11" * 300, "g": b"12"},
    {"b": None},
    {"a": b"13" * 300},
]
STATES = [{}]
for _save in SAVES:
    STATES.append({key: value for key, value in (STATES[-1] | _save).items() if value is not None})
KINDS = {
    "files": FilePerKeyStore,
    "log": IndexedLogStore,
    "small log": lambda directory: IndexedLogStore(directory, limits=SMALL),
}


def leave(store):
    """Leave a store as a killed process does."""
    (store._let_go if isinstance(store, IndexedLogStore) else store.close)()


class Writer:
    """Saves one batch after the other, and knows how many were acknowledged."""

    def __init__(self, kind, directory):
        self.store = KINDS[kind](directory)
        self.done = 0

    def __call__(self):
        for batch in SAVES[self.done :]:
            self.store.write(batch)
            self.done += 1


def fail_saves(tmp_path, kind, **how):
    writers = {}

    def attempt(directory):
        writers[directory] = Writer(kind, directory)
        return writers[directory]

    for directory, error in fail_everywhere(tmp_path, attempt, **how):
        yield directory, writers[directory], error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("crash", [True, False], ids=["crash", "one error"])
def test_a_save_that_fails_is_whole_or_absent(tmp_path, kind, crash):
    """Wherever a save stops, the next one to open the store finds all of it or nothing; what was told stays true."""
    kept = set()
    for directory, writer, error in fail_saves(tmp_path, kind, crash=crash):
        reader = open_store(f"{'files' if kind == 'files' else 'log'}:{directory}", writing=False)
        seen = contents(reader)
        reader.close()
        possible = STATES[writer.done : writer.done + 1 + (error is not None)]
        assert seen in possible
        kept.add(seen == possible[0])
        leave(writer.store)
        writer.store = KINDS[kind](directory)
        assert contents(writer.store) == seen
        writer()
        assert contents(writer.store) == STATES[-1]
        writer.store.close()
        assert not list(directory.rglob(".tmp-*"))
    assert kept == {True, False}


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_harms_nothing(tmp_path, kind):
    """A save for which there is no room is an error that says so, and the same handle goes on once there is room."""
    told = set()
    for directory, writer, error in fail_saves(tmp_path, kind, crash=False, number=errno.ENOSPC):
        told.add(type(error))
        try:
            writer()
        except StoreError:
            assert writer.store._broken is not None  # a flush failed: what the device holds is not known
            leave(writer.store)
            writer.store = KINDS[kind](directory)
            writer()
        assert contents(writer.store) == STATES[-1]
        writer.store.close()
    # Which may heal, unless the first flush of all failed: then there is no store yet.
    assert StoreUnavailable in told
    assert told <= {type(None), StoreError, StoreUnavailable}


@pytest.mark.parametrize("kind", ["log", "small log"])
@pytest.mark.parametrize("crash", [True, False], ids=["crash", "one error"])
def test_opening_may_fail_anywhere(tmp_path, kind, crash):
    """An opening that dies, also while it cuts off a torn end, takes nothing with it."""

    def attempt(directory):
        writer = Writer(kind, directory)
        writer()
        leave(writer.store)
        with max(directory.glob("*.log")).open("ab") as file:
            file.write(b"\xabBLK torn")
        (directory / ".tmp-left").write_bytes(b"")
        return lambda: KINDS[kind](directory).close()

    for directory, _ in fail_everywhere(tmp_path, attempt, crash=crash):
        release_locks()
        store = KINDS[kind](directory)
        assert contents(store) == STATES[-1]
        store.close()


def release_locks():
    """Close what a crashed opening left open in this process: a real one would take its descriptors along."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").endswith("/writer"):
                os.close(int(name))
        except OSError:
            continue


def test_a_save_is_flushed_before_it_returns(tmp_path):
    """The last change of a file comes before a flush of that file, and a new name before a flush of its directory."""
    store = FilePerKeyStore(tmp_path / "files")
    trace = traced(lambda: store.write({"a": b"1"}))
    assert [name for name, _ in trace] == ["open", "write", "fsync", "replace", "open", "fsync"]
    store.close()
    log = IndexedLogStore(tmp_path / "log")
    log.write({"a": b"1"})
    assert [name for name, _ in traced(lambda: log.write({"a": b"2"}))] == ["pwrite", "fdatasync"]
    log.close()


# Addresses, permissions, formats


@pytest.mark.parametrize("url", ["", "log", "log:", "files:", "s3://bucket", "redis:6379", "redis://h:port", "LOG:x"])
def test_unknown_addresses_are_refused(url):
    """An address that is none is an error that says what addresses look like."""
    with pytest.raises(StoreError) as caught:
        open_store(url)
    assert caught.value.hint or "Redis" in caught.value.message


@pytest.mark.parametrize("kind", ["log", "files"])
def test_reading_creates_nothing(tmp_path, kind):
    """A store that is not there is an error, and still not there."""
    with pytest.raises(StoreError, match="no store"):
        open_store(f"{kind}:{tmp_path}/none", writing=False)
    assert os.listdir(tmp_path) == []
    with pytest.raises(StoreError, match="not a key"):
        open_store(f"{kind}:{tmp_path}", "../other")


@pytest.mark.parametrize("kind", ["log", "files"])
def test_a_place_that_cannot_be_used_is_named(tmp_path, kind):
    """A file in the way is an error that names it."""
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(StoreError, match="taken"):
        open_store(f"{kind}:{tmp_path}/taken")


def test_a_newer_format_is_left_alone(tmp_path):
    """Stores of a format that this version does not know are refused and not changed."""
    log = IndexedLogStore(tmp_path / "log")
    log.write({"a": b"1"})
    leave(log)
    path = tmp_path / "log" / "000000000001.log"
    content = bytearray(path.read_bytes())
    content[7] = 9
    path.write_bytes(content)
    with pytest.raises(Corrupt, match="format 9"):
        IndexedLogStore(tmp_path / "log")
    assert path.read_bytes() == content
    files = FilePerKeyStore(tmp_path / "files")
    files.close()
    (tmp_path / "files" / "intents" / "decided").write_text(json.dumps({"format": 9, "items": {}}))
    with pytest.raises(Corrupt, match="format 9"):
        FilePerKeyStore(tmp_path / "files")


# Redis


@contextmanager
def serving(directory, *settings):
    server = RedisServer(directory, *settings)
    try:
        yield server
    finally:
        server.kill()


def test_redis_durability_is_honest(tmp_path):
    """Only a server that flushes before it answers is called durable."""
    expected = {
        ("--appendonly", "no"): "server",
        ("--appendonly", "yes", "--appendfsync", "everysec"): "server",
        ("--appendonly", "yes", "--appendfsync", "always"): "device",
    }
    for number, (settings, survives) in enumerate(expected.items()):
        with serving(tmp_path / str(number), *settings) as server:
            store = open_store(server.url)
            assert store.durability.survives == survives
            store.close()


def test_a_server_that_comes_back_has_everything(tmp_path):
    """A server killed between and during saves loses nothing that it acknowledged; the same handle goes on."""
    with serving(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        store = open_store(server.url)
        acknowledged, stopping = [0], threading.Event()

        def write():
            number = 0
            while not stopping.is_set():
                number += 1
                try:
                    store.write({"a": b"%d" % number, "b": b"%d" % number})
                except StoreUnavailable:
                    continue
                acknowledged[0] = number

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(4):
                target = acknowledged[0] + 5
                wait_until(lambda target=target: acknowledged[0] >= target, 60, "saves")
                server.kill()
                server.start()
        finally:
            stopping.set()
            thread.join()
        found = [int(store.read(key)) for key in ("a", "b")]
        assert found[0] == found[1] >= acknowledged[0]
        store.close()


def test_a_full_server_may_have_room_again(tmp_path):
    """An error that may heal, for saves and for opening alike; what is there can be read, and looking adds nothing."""
    with serving(tmp_path) as server:
        store = open_store(server.url, "home/counts/r1")
        store.write({"a": b"before"})
        client = redis.Redis.from_url(server.url)
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1mb")
        with pytest.raises(StoreUnavailable, match="takes nothing now"):
            store.write({"a": b"after"})
        with pytest.raises(StoreUnavailable, match="takes nothing now"):
            open_store(server.url, "home/counts/r2")
        reader = open_store(server.url, "home/counts/r3", writing=False)
        assert reader.keys() == []
        assert namespaces(server.url, "home/") == ["home/counts/r1"]
        client.config_set("maxmemory", "0")
        store.write({"a": b"after"})
        assert open_store(server.url, "home/counts/r1", writing=False).read("a") == b"after"
        store.close()


def test_a_server_that_is_gone_is_named_without_its_password(tmp_path):
    """The error names the server, may heal, and shows no secret."""
    with serving(tmp_path) as server:
        url = server.url.replace("redis://", "redis://user:secret@")
    with pytest.raises(StoreUnavailable) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    assert f"127.0.0.1:{server.port}" in str(caught.value)


def test_altered_values_in_redis_are_found_out(tmp_path):
    """A value that somebody changed is an error, and so is a store of another format."""
    with serving(tmp_path) as server:
        store = open_store(server.url)
        store.write({"a": b"1"})
        store._client.set("anabranch::v:a", b"12345")
        with pytest.raises(Corrupt, match="altered"):
            store.read("a")
        store._client.set("anabranch::format", b"9")
        with pytest.raises(Corrupt, match="format"):
            open_store(server.url)
        store.close()


@pytest.mark.parametrize("why", [errno.EIO, errno.ESTALE, errno.ENOTCONN])
def test_a_device_that_does_not_answer_is_waited_for(tmp_path, monkeypatch, why):
    """A mount whose server is gone may come back; a directory that may not be read will not become readable."""

    def scandir(path):
        raise OSError(why, os.strerror(why), str(path))

    monkeypatch.setattr("anabranch.store.opening.os.scandir", scandir)
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        namespaces(f"log:{tmp_path}", "")
    assert isinstance(not_written(tmp_path, OSError(why, os.strerror(why))), StoreUnavailable)
    assert not isinstance(not_written(tmp_path, PermissionError(errno.EACCES, "no")), StoreUnavailable)
