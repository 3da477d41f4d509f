"""A store in a Redis server.

    anabranch:NAMESPACE:format   the format of what follows
    anabranch:NAMESPACE:keys     all keys, in a sorted set, so that a prefix is a range
    anabranch:NAMESPACE:v:KEY    4 bytes CRC-32, then the value

A batch is one MULTI/EXEC: the server carries it out whole or not at all, also when it reads its append-only file after
a crash. Several writers do no harm. How durable a save is depends on how the server is set up, and `durability` says so
honestly: Redis answers before its data is on a device unless it is told otherwise.

A server that goes away is asked again for a few seconds, then `StoreUnavailable`; a batch whose answer was lost may be
written again, it sets the same keys to the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from anabranch.errors import Corrupt, StoreError, StoreUnavailable
from anabranch.store.framing import framed, unframed
from anabranch.store.store import Durability, check_batch, check_key, without_password

FORMAT = 1
# A restarting server is back within seconds; longer than this is for the caller to decide.
_RETRIES = 6
_LONGEST_PAUSE_S = 1.0
_TIMEOUT_S = 10.0

# What a server answers that may answer otherwise later.
_FOR_NOW = (
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.TryAgainError,
)

Answer = TypeVar("Answer")


class RedisStore:
    """A handle on a namespace of a server."""

    def __init__(self, url: str, namespace: str = "", *, writing: bool = True) -> None:
        self._where = without_password(url)
        self._prefix = f"anabranch:{namespace}:"
        self._index = f"{self._prefix}keys"
        retry = Retry(ExponentialBackoff(cap=_LONGEST_PAUSE_S, base=0.05), _RETRIES)
        try:
            self._client: redis.Redis = redis.Redis.from_url(
                url,
                retry=retry,
                retry_on_error=[redis.exceptions.BusyLoadingError],
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=_TIMEOUT_S,
            )
        except ValueError as error:
            raise StoreError(f"{self._where!r} is not the address of a Redis server: {error}") from error
        self._check_format(writing=writing)
        self._durability = self._ask(lambda: _durability(self._client))

    @property
    def durability(self) -> Durability:
        return self._durability

    def write(self, batch: Mapping[str, bytes | None]) -> None:
        check_batch(batch)
        if not batch:
            return
        present = {key: value for key, value in batch.items() if value is not None}
        absent = [key for key, value in batch.items() if value is None]

        def send() -> None:
            pipeline = self._client.pipeline(transaction=True)
            if present:
                pipeline.mset({self._name(key): framed(value) for key, value in present.items()})
                pipeline.zadd(self._index, dict.fromkeys(present, 0))
            if absent:
                pipeline.delete(*map(self._name, absent))
                pipeline.zrem(self._index, *absent)
            pipeline.execute()

        self._ask(send)

    def read(self, key: str) -> bytes | None:
        check_key(key)
        content: Any = self._ask(lambda: self._client.get(self._name(key)))
        return None if content is None else unframed(content, f"{self._where}, {self._name(key)}")

    def keys(self, prefix: str = "") -> list[str]:
        low = f"[{prefix}" if prefix else "-"
        # No key contains a character beyond ASCII, so this is after every key with the prefix.
        high = f"[{prefix}\x7f" if prefix else "+"
        found: Any = self._ask(lambda: self._client.zrangebylex(self._index, low, high))
        return sorted(name.decode() for name in found)

    def close(self) -> None:
        self._client.close()

    def _name(self, key: str) -> str:
        return f"{self._prefix}v:{key}"

    def _check_format(self, *, writing: bool) -> None:
        name = f"{self._prefix}format"
        found: Any = self._ask(lambda: self._client.get(name))
        if found is None and writing:
            self._ask(lambda: self._client.set(name, FORMAT, nx=True))
            found = self._ask(lambda: self._client.get(name))
        if found is not None and found != str(FORMAT).encode():
            raise Corrupt(
                f"{self._where} holds a store of format {found!r}, this version reads {FORMAT}",
                hint="use a newer version of Anabranch, or another database",
            )

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        try:
            return question()
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
            raise StoreUnavailable(
                f"the Redis server at {self._where} does not answer: {error}", hint="is it running?"
            ) from error
        except _FOR_NOW as error:
            raise StoreUnavailable(
                f"the Redis server at {self._where} takes nothing now: {error}", hint="is it full, or a replica?"
            ) from error
        except redis.exceptions.RedisError as error:
            raise StoreError(f"the Redis server at {self._where} refused: {error}") from error


def _durability(client: redis.Redis) -> Durability:
    try:
        settings: Any = client.config_get("appendonly", "appendfsync")
    except redis.exceptions.ResponseError:
        return Durability("server", "the server does not say how it keeps its data; take it that it may lose some")
    if settings.get("appendonly") != "yes":
        return Durability("server", "the server keeps snapshots only: its death loses what came after the last one")
    if settings.get("appendfsync") == "always":
        return Durability("device", "the server flushes its append-only file before it answers (appendfsync always)")
    return Durability("server", "a power cut of the server may lose its last second (appendfsync everysec) or more")


def redis_namespaces(url: str, prefix: str) -> list[str]:
    """Return the namespaces of a server that begin with a prefix."""
    store = RedisStore(url, "", writing=False)
    found = {name.decode() for name in store._ask(lambda: list(store._client.scan_iter(f"anabranch:{prefix}*:format")))}  # noqa: SLF001  same module
    store.close()
    names = [name.removeprefix("anabranch:").removesuffix(":format") for name in found]
    return sorted(name for name in names if name)


def forget_redis_namespace(url: str, namespace: str) -> None:
    """Forget that a namespace existed, once it is empty."""
    store = RedisStore(url, namespace)
    store._ask(lambda: store._client.delete(f"{store._prefix}format", store._index))  # noqa: SLF001  same module
    store.close()
