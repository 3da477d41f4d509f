"""The store contract: where checkpoints are kept so that they outlive the machine that made them.

A store maps keys to bytes. Its one way to change is a batch: some keys get values, some go away, all at once. Versions
are built on that: the files of a version first, and the record that names them all in the last batch, so a version is
there whole or not at all.

One process writes a store at a time; any number read it. Keys are relative paths (`a/b/c`) of plain segments, so that
every backend can show them as what they are.
"""

from __future__ import annotations

import errno
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from anabranch.errors import StoreError, StoreUnavailable

MOST_KEY_CHARACTERS = 1_000
_KEY = re.compile(r"(?!\.{1,2}(?:/|$))[\w.=+-]{1,200}(?:/(?!\.{1,2}(?:/|$))[\w.=+-]{1,200})*", re.ASCII)

# What a full device says, with and without quotas.
FULL = (errno.ENOSPC, errno.EDQUOT)
# What one says that is not there just now: a mount whose server is gone, a disk that fell off.
AWAY = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT, errno.EHOSTDOWN)
# A value may be this large; larger files are cut into several.
MOST_VALUE_BYTES = 256 << 20


@dataclass(frozen=True)
class Durability:
    """What a returned `write` survives, stated honestly.

    `device`: a power cut. `server`: the death of this process, not a power cut of the server (its last second, or more,
    may be lost). `process`: nothing but this process's own errors.
    """

    survives: Literal["device", "server", "process"]
    explanation: str


class Store(Protocol):
    """A handle on one store. Methods may be called from several threads."""

    @property
    def durability(self) -> Durability:
        """Say what a returned `write` survives."""
        ...

    def write(self, batch: Mapping[str, bytes | None]) -> None:
        """Give keys their values, remove keys whose value is None; all of it or nothing, to every reader, always.

        As durable on return as `durability` says. If it raises, the batch is either there or not, whole in any case;
        the same batch may be written again. `StoreUnavailable` may heal by itself, any other `StoreError` does not.
        """
        ...

    def read(self, key: str) -> bytes | None:
        """Return a value, None if there is none; `Corrupt` if it is not what was written."""
        ...

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that start with `prefix`, sorted."""
        ...

    def close(self) -> None:
        """Let go of files and connections; nothing that was acknowledged is lost without it."""
        ...


def not_written(place: object, error: OSError) -> StoreError:
    """Return what a caller is told when a device refuses."""
    what = f"{place} cannot be written: {error.strerror or error}"
    if error.errno in FULL:
        return StoreUnavailable(what, hint="make room on the device")
    return refused(what, error, hint="check the device and its permissions")


def refused(what: str, error: OSError, *, hint: str) -> StoreError:
    """Return what a caller is told: a device that does not answer may come back, and is waited for."""
    if error.errno in AWAY:
        return StoreUnavailable(what, hint="check the device, or its mount")
    return StoreError(what, hint=hint)


def check_batch(batch: Mapping[str, bytes | None]) -> None:
    """Refuse keys and values that some backend could not keep."""
    for key, value in batch.items():
        check_key(key)
        if value is not None and len(value) > MOST_VALUE_BYTES:
            raise StoreError(
                f"the value of {key!r} has {len(value):,} bytes, more than {MOST_VALUE_BYTES:,}",
                hint="cut it into several",
            )


def check_key(key: str) -> None:
    """Refuse a key that is no relative path of plain segments."""
    if len(key) > MOST_KEY_CHARACTERS or _KEY.fullmatch(key) is None:
        raise StoreError(
            f"{key[:80]!r} is not a key", hint="keys are segments of letters, digits and _ . = + -, joined by /"
        )


def without_password(url: str) -> str:
    """Return an address that may be shown."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if parts.netloc else url
