"""Every store keeps the same contract; the suite runs over each backend."""

import itertools

import pytest

from anabranch.store.file_per_key import FilePerKeyStore
from anabranch.store.indexed_log import IndexedLogStore, LogLimits
from anabranch.store.memory import MemoryStore
from anabranch.store.opening import open_store
from anabranch.testing.store_suite import StoreContract
from redis_server import RedisServer

# So small that a few saves rotate, flush, merge and compact.
SMALL = LogLimits(file_bytes=1_500, unflushed_entries=6, unflushed_bytes=1_000, block_bytes=600)


class TestFilePerKey(StoreContract):
    one_writer = True

    def open(self, directory, *, writing=True):
        return FilePerKeyStore(directory, writing=writing)

    def url(self, directory):
        return f"files:{directory}"


class TestIndexedLog(StoreContract):
    one_writer = True

    def open(self, directory, *, writing=True):
        return IndexedLogStore(directory, writing=writing)

    def url(self, directory):
        return f"log:{directory}"

    def abandon(self, store):
        store._let_go()


class TestSmallIndexedLog(TestIndexedLog):
    """The same, with everything that usually happens once in a while happening all the time."""

    def open(self, directory, *, writing=True):
        return IndexedLogStore(directory, writing=writing, limits=SMALL)


class TestMemory(StoreContract):
    survives = False

    def open(self, directory, *, writing=True):
        return MemoryStore(str(directory))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendonly", "yes", "--appendfsync", "no", "--save", "")
    yield server
    server.kill()


class TestRedis(StoreContract):
    _numbers = itertools.count()

    @pytest.fixture(autouse=True)
    def _place_on_server(self, server):
        type(self).server = server
        type(self).databases = {}

    def url(self, directory):
        # Sixteen databases per server, a fresh one per directory: flushed before it is used again.
        if directory not in self.databases:
            self.databases[directory] = f"redis://127.0.0.1:{self.server.port}/{next(self._numbers) % 16}"
            store = open_store(self.databases[directory])
            store._client.flushdb()
            store.close()
        return self.databases[directory]

    def open(self, directory, *, writing=True):
        return open_store(self.url(directory), writing=writing)
