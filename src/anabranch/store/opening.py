"""Opening a store by its URL.

`log:DIR` is append-only files with an index, `files:DIR` a file per key, `redis://HOST:PORT/DB` a server, and
`memory:NAME` this process's memory.

A namespace, `directory/unit/run`, is a store of its own inside the store at an address, with its own keys and its own
writer: pipelines may share a store, and a process that was thought dead cannot disturb its successor.
"""

from __future__ import annotations

import os
import shutil
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

from anabranch.errors import StoreError
from anabranch.store import memory
from anabranch.store.file_per_key import FilePerKeyStore
from anabranch.store.indexed_log import IndexedLogStore
from anabranch.store.memory import MemoryStore
from anabranch.store.store import Store, check_key, refused
from anabranch.store.writer_lock import LOCK_NAME, is_written

_HINT = "use log:DIR, files:DIR, redis://HOST:PORT/DB or memory:NAME"
_DIRECTORIES: dict[str, Callable[..., Store]] = {"log": IndexedLogStore, "files": FilePerKeyStore}
_SERVERS = ("redis", "rediss", "unix")
_READABLE = "check that it is a directory, and that this user may read it"
SCHEMES = (*_DIRECTORIES, *_SERVERS, "memory")


def check_url(url: str) -> tuple[str, str]:
    """Return kind and place of an address; `StoreError` if it is none. Touches nothing."""
    kind, colon, place = str(url).partition(":")
    if kind in _DIRECTORIES and colon:
        if not place:
            raise StoreError(f"'{kind}:' names no directory", hint=_HINT)
        return kind, place
    if kind == "memory" and colon:
        return kind, place
    if kind in _SERVERS and place.startswith("//"):
        try:
            parts = urllib.parse.urlsplit(url)
            _ = parts.port
            if kind != "unix" and parts.path.strip("/") and not parts.path.strip("/").isdigit():
                raise ValueError(f"the database {parts.path.strip('/')!r} is not a number")  # noqa: TRY301
        except ValueError as error:
            raise StoreError(f"{kind}://… is not the address of a Redis server: {error}", hint=_HINT) from error
        return kind, url
    raise StoreError(f"{url!r} is not the address of a store", hint=_HINT)


def open_store(url: str, namespace: str = "", *, writing: bool = True) -> Store:
    """Open a store, or a namespace of it; `StoreError` if that is not possible."""
    if namespace:
        check_key(namespace)
    kind, place = check_url(url)
    if kind in _DIRECTORIES:
        return _open_directory(kind, Path(place, namespace).absolute(), writing=writing)
    if kind == "memory":
        return MemoryStore(f"{place}/{namespace}")
    from anabranch.store.redis import RedisStore

    return RedisStore(url, namespace, writing=writing)


def namespaces(url: str, prefix: str) -> list[str]:
    """Return the namespaces that begin with a prefix such as `directory/unit/`, sorted; empty if there are none."""
    kind, place = check_url(url)
    if kind in _DIRECTORIES:
        found = ("/".join(names) for names in _stores_below(Path(place), 3))
        return sorted(name for name in found if name.startswith(prefix))
    if kind == "memory":
        return sorted(name.removeprefix(f"{place}/") for name in memory.names(f"{place}/{prefix}"))
    from anabranch.store.redis import redis_namespaces

    return redis_namespaces(url, prefix)


def _stores_below(directory: Path, levels: int) -> Iterator[tuple[str, ...]]:
    """Yield where stores are, some levels below a directory, which need not exist."""
    try:
        if levels == 0:
            if (directory / LOCK_NAME).exists():
                yield ()
            return
        inner = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise refused(f"{directory} cannot be read: {error.strerror or error}", error, hint=_READABLE) from error
    for name in inner:
        for below in _stores_below(directory / name, levels - 1):
            yield (name, *below)


def drop(url: str, namespace: str) -> None:
    """Remove a namespace with everything in it; one in a directory that is still being written is left alone."""
    check_key(namespace)
    kind, place = check_url(url)
    if kind in _DIRECTORIES:
        if is_written(Path(place, namespace)):
            return
        # Without this file it is no store any more, whatever of the rest is left when a process dies here.
        Path(place, namespace, LOCK_NAME).unlink(missing_ok=True)
        shutil.rmtree(Path(place, namespace), ignore_errors=True)
        return
    store = open_store(url, namespace)
    store.write(dict.fromkeys(store.keys()))
    store.close()
    if kind == "memory":
        memory.forget(f"{place}/{namespace}")
    else:
        from anabranch.store.redis import forget_redis_namespace

        forget_redis_namespace(url, namespace)


def _open_directory(kind: str, directory: Path, *, writing: bool) -> Store:
    if not writing and not directory.is_dir():
        raise StoreError(f"there is no store in {directory}", hint="check the address; nothing was created")
    try:
        return _DIRECTORIES[kind](directory, writing=writing)
    except OSError as error:
        what = f"{directory} cannot be opened as a store: {error.strerror or error}"
        hint = "check that the directory can be written" if writing else _READABLE
        raise refused(what, error, hint=hint) from error
