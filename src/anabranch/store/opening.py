"""Opening a store by its URL.

`log:DIR` is append-only files with an index, `files:DIR` a file per key, `redis://HOST:PORT/DB` a server, and
`memory:NAME` this process's memory.
"""

from __future__ import annotations

from pathlib import Path

from anabranch.errors import StoreError
from anabranch.store.file_per_key import FilePerKeyStore
from anabranch.store.indexed_log import IndexedLogStore
from anabranch.store.memory import MemoryStore
from anabranch.store.store import Store, check_key

_HINT = "use log:DIR, files:DIR, redis://HOST:PORT/DB or memory:NAME"


def open_store(url: str, namespace: str = "", *, writing: bool = True) -> Store:
    """Open a store, or a part of it with a writer of its own; `StoreError` if that is not possible.

    A namespace is a store of its own inside the store at `url`: it has its own keys and its own writer.
    """
    if namespace:
        check_key(namespace)
    kind, colon, rest = url.partition(":")
    if kind in ("log", "files") and colon:
        return _open_directory(kind, rest, namespace, writing=writing)
    if kind == "memory" and colon:
        return MemoryStore(f"{rest}/{namespace}")
    if kind in ("redis", "rediss", "unix") and rest.startswith("//"):
        from anabranch.store.redis import RedisStore

        return RedisStore(url, namespace)
    raise StoreError(f"{url!r} is not the address of a store", hint=_HINT)


def _open_directory(kind: str, place: str, namespace: str, *, writing: bool) -> Store:
    if not place:
        raise StoreError(f"'{kind}:' names no directory", hint=_HINT)
    directory = Path(place, namespace).absolute()
    if not writing and not directory.is_dir():
        raise StoreError(f"there is no store in {directory}", hint="check the address; nothing was created")
    try:
        opener = IndexedLogStore if kind == "log" else FilePerKeyStore
        return opener(directory, writing=writing)
    except OSError as error:
        raise StoreError(
            f"{directory} cannot be opened as a store: {error.strerror or error}",
            hint="check that the directory can be written",
        ) from error
