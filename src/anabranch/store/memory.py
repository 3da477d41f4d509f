"""A store in this process's memory: for tests, and for state that need not survive."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from anabranch.store.store import Durability, check_batch

_NAMED: dict[str, dict[str, bytes]] = {}
_LOCK = threading.Lock()


def names(prefix: str) -> list[str]:
    """Return the names that begin with a prefix."""
    with _LOCK:
        return [name for name in _NAMED if name.startswith(prefix)]


def forget(name: str) -> None:
    """Forget a name and its values."""
    with _LOCK:
        _NAMED.pop(name, None)


class MemoryStore:
    """Keys and values in a dictionary; handles of one name share it."""

    durability = Durability("process", "kept in memory: it ends with the process")

    def __init__(self, name: str = "") -> None:
        with _LOCK:
            self._values = _NAMED.setdefault(name, {}) if name else {}

    def write(self, batch: Mapping[str, bytes | None]) -> None:
        check_batch(batch)
        with _LOCK:
            for key, value in batch.items():
                if value is None:
                    self._values.pop(key, None)
                else:
                    self._values[key] = bytes(value)

    def read(self, key: str) -> bytes | None:
        with _LOCK:
            return self._values.get(key)

    def keys(self, prefix: str = "") -> list[str]:
        with _LOCK:
            return sorted(key for key in self._values if key.startswith(prefix))

    def close(self) -> None:
        """Nothing is held."""
