"""A version: the checkpoint of one run at one epoch, as a store keeps it.

    versions/000000000042       the record, written last: a version without it does not exist
    files/<path>                a file of the work directory, or its first piece
    files/<path>.piece-1 …      further pieces of a large file

The record names every file with size and checksum. Files are shared by the versions of a run: a version adds what is
new, and removes what no kept version names. Each run has a namespace of its own, so chains of runs never mix.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from anabranch.errors import Corrupt

FORMAT = 1
PIECE_BYTES = 1 << 20
PREFIX = "versions/"


@dataclass(frozen=True)
class KeptFile:
    """A file of a version; `path` is relative to the work directory."""

    path: str
    size_bytes: int
    crc: int

    def keys(self) -> list[str]:
        """Return the keys of its pieces."""
        return [piece_key(self.path, number) for number in range(max(1, -(-self.size_bytes // PIECE_BYTES)))]


@dataclass(frozen=True)
class Version:
    """What a version is of, and what it consists of. `origin` is the run that came to its state, mostly `run`."""

    unit: str
    run: str
    epoch: int
    batch_id: int
    at_s: float
    files: tuple[KeptFile, ...]
    origin: str = ""

    @property
    def key(self) -> str:
        """The key of its record."""
        return version_key(self.epoch)

    @property
    def run_path(self) -> str:
        """Where the run's directory was, relative to the work directory."""
        return run_path(self.unit, self.run)

    @property
    def made_by(self) -> str:
        """The run that came to its state."""
        return self.origin or self.run

    @property
    def preference(self) -> tuple[int, bool, str]:
        """How much it is to be preferred to others of its unit."""
        return preference(self.epoch, self.run, self.made_by)

    @property
    def pending(self) -> set[int]:
        """The epochs that are written, and published only with this version."""
        before = f"{self.run_path}/pending/"
        return {int(file.path.removeprefix(before)) for file in self.files if file.path.startswith(before)}

    def encode(self) -> bytes:
        """Return the record."""
        content = {"format": FORMAT, **asdict(self), "files": [[f.path, f.size_bytes, f.crc] for f in self.files]}
        body = json.dumps(content).encode()
        return b"%08x " % zlib.crc32(body) + body


def preference(epoch: int, run: str, made_by: str) -> tuple[int, bool, str]:
    """Return how much a version is to be preferred to others of its unit: the newest, most of all. Pure.

    Of those of one epoch, one that the run kept that came to the state: what others linked may be damaged since.
    """
    return epoch, run == made_by, run


def piece_key(path: str, number: int) -> str:
    """Return the key of a piece of a file."""
    return f"files/{path}" if number == 0 else f"files/{path}.piece-{number}"


def run_path(unit: str, run: str) -> str:
    """Return where a run's directory is, relative to the work directory."""
    return f"units/{unit}/runs/{run}"


def version_key(epoch: int) -> str:
    """Return the key of the version at an epoch; keys sort by epoch."""
    return f"{PREFIX}{epoch:012d}"


def decode(record: bytes, where: str) -> Version:
    """Read a record; `Corrupt` if it is not whole or of a format this version does not know."""
    try:
        checksum, _, body = record.partition(b" ")
        if int(checksum, 16) != zlib.crc32(body):
            raise Corrupt(f"{where} was altered: its checksum does not fit")
        content: dict[str, Any] = json.loads(body)
        if content.pop("format") != FORMAT:
            raise Corrupt(f"{where} has another format", hint="use a newer version of Anabranch")
        files = tuple(KeptFile(*file) for file in content.pop("files"))
        return Version(**content, files=files)
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{where} is not the record of a version: {error}") from error
