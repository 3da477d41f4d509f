"""Which files of a checkpoint a commit needs: all of them, and no others.

Spark's commit log names, for every operator and partition, the unique id of the state that a micro-batch made: commit
N names state version N+1. That version is a chain: the newest snapshot at or before it, and every changelog after
the snapshot. So the chain is walked backwards along the commits until a snapshot whose own files are all there.

    state/<operator>/<partition>[/<store>]/<version>_<id>.changelog
                                           <version>_<id>.zip       a snapshot; its `metadata` lists files of SSTs/
                                           SSTs/<name>.sst
    state/<operator>/…/_…/…                schemas and the like, needed whole

Checkpoints that other settings made are understood too: without unique ids the version alone is the name, and the
in-memory provider writes `.delta` and `.snapshot`.

A snapshot is written some time after its version, so it may or may not be there; an SST that no snapshot names is left
out, for nothing could be done with it.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anabranch.errors import Corrupt

_STATE_FILE = re.compile(r"^(\d+)(?:_([0-9a-f-]{36}))?\.(changelog|zip|delta|snapshot)$")
_SNAPSHOTS = "SSTs"


def state_version(name: str) -> int | None:
    """Return the version that a state file is of, None for another file."""
    match = _STATE_FILE.match(name)
    return None if match is None else int(match[1])


@dataclass(frozen=True)
class _StateFile:
    """A versioned file of one state store."""

    unique_id: str | None
    name: str
    kind: str


class CommitContents:
    """Finds the files of commits of one checkpoint directory; remembers what snapshots hold."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._named: dict[str, tuple[str, ...]] = {}
        self._ids: dict[int, dict[str, list[list[str]]]] = {}

    def files(self, batch_id: int) -> list[str]:
        """Return the paths, relative to the checkpoint, that a query needs to go on after a commit.

        `Corrupt` if one of them is missing: the commit cannot be restored.
        """
        found = ["metadata", f"offsets/{batch_id}"]
        if batch_id > 0:
            found.append(f"offsets/{batch_id - 1}")
        for path in found:
            if not (self._checkpoint / path).exists():
                raise Corrupt(f"{self._checkpoint / path} is missing, though micro-batch {batch_id} is committed")
        oldest = batch_id
        for operator, partition, store in self.stores(batch_id):
            chain, first = self.chain(operator, partition, store, batch_id)
            found += chain
            oldest = min(oldest, first)
        for operator in self._operators(batch_id):
            found += self._unversioned(f"state/{operator}")
        commits = [f"commits/{number}" for number in range(oldest, batch_id + 1)]
        found += [path for path in commits if (self._checkpoint / path).exists()]
        self._forget_before(oldest)
        return found

    def stores(self, batch_id: int) -> list[tuple[str, int, str]]:
        """Return operator, partition and directory of every state store that a commit has."""
        return [
            (operator, partition, store)
            for operator, partitions in self._operators(batch_id).items()
            for partition in range(partitions)
            for store in self._stores(f"state/{operator}/{partition}")
        ]

    def _operators(self, batch_id: int) -> dict[str, int]:
        """Return the stateful operators and how many partitions each has; without unique ids the directories say it."""
        ids = self._unique_ids(batch_id)
        if ids:
            return {operator: len(partitions) for operator, partitions in ids.items()}
        state = self._checkpoint / "state"
        if not state.is_dir():
            return {}
        operators = sorted(name for name in os.listdir(state) if name.isdigit())
        return {operator: _partitions(state / operator) for operator in operators}

    def chain(self, operator: str, partition: int, store: str, batch_id: int) -> tuple[list[str], int]:
        """Return the state files of one store, and the oldest commit that was needed to find them."""
        files = self._state_files(store)
        chain: list[str] = []
        useless = ""
        for version in range(batch_id + 1, 0, -1):
            wanted: list[str | None] = [None]
            if any(some.unique_id is not None for some in files.get(version, [])):
                wanted = self._wanted(operator, partition, version, files[version], useless)
            here = {some.kind: some for some in files.get(version, []) if some.unique_id in wanted}
            snapshot = here.get("zip") or here.get("snapshot")
            if snapshot is not None:
                names = self._snapshot_files(store, snapshot.name)
                if names is not None:
                    return [*chain, f"{store}/{snapshot.name}", *names], version - 1
                useless = useless or f"; {snapshot.name} cannot be used, files of its {_SNAPSHOTS}/ are missing"
            changelog = here.get("changelog") or here.get("delta")
            if changelog is None:
                raise Corrupt(
                    f"{self._checkpoint / store} lacks version {version}, which micro-batch {batch_id} needs{useless}",
                    hint="restore the checkpoint from a store",
                )
            chain.append(f"{store}/{changelog.name}")
        return chain, 0

    def _wanted(
        self, operator: str, partition: int, version: int, present: list[_StateFile], useless: str
    ) -> list[str | None]:
        """Return the ids that a version of a store may have.

        Spark forgets old commits sooner than state that still counts, if snapshots are slow to come. Then a version
        that is there once is the one that was committed.
        """
        only = {some.unique_id for some in present}
        if version - 1 not in self._ids and version - 1 < self._oldest_commit() and len(only) == 1:
            return list(only)
        try:
            ids = self._unique_ids(version - 1).get(operator, [])
        except Corrupt as error:
            raise Corrupt(f"{error.message}{useless}", hint=error.hint) from error
        return [*ids[partition]] if partition < len(ids) else []

    def _oldest_commit(self) -> int:
        return min((int(name) for name in os.listdir(self._checkpoint / "commits") if name.isdigit()), default=0)

    def _unique_ids(self, batch_id: int) -> dict[str, list[list[str]]]:
        if batch_id not in self._ids:
            path = self._checkpoint / "commits" / str(batch_id)
            try:
                _, content = path.read_text().split("\n", 1)
                self._ids[batch_id] = json.loads(content).get("stateUniqueIds") or {}
            except FileNotFoundError as error:
                raise Corrupt(f"{path} is missing, though a later micro-batch builds on it") from error
            except (ValueError, AttributeError) as error:
                raise Corrupt(f"{path} is not a commit log entry: {error}") from error
        return self._ids[batch_id]

    def _forget_before(self, batch_id: int) -> None:
        for number in [number for number in self._ids if number < batch_id]:
            del self._ids[number]

    def _stores(self, partition: str) -> list[str]:
        """Return the directories of a partition that hold versions: itself, or one per store of a join."""
        path = self._checkpoint / partition
        try:
            entries = list(os.scandir(path))
        except FileNotFoundError as error:
            raise Corrupt(f"{path} is missing, though a commit names its state") from error
        inner = [
            entry.name for entry in entries if entry.is_dir() and entry.name != _SNAPSHOTS and entry.name[0] != "_"
        ]
        return [f"{partition}/{name}" for name in sorted(inner)] or [partition]

    def _state_files(self, store: str) -> dict[int, list[_StateFile]]:
        found: dict[int, list[_StateFile]] = {}
        for name in os.listdir(self._checkpoint / store):
            match = _STATE_FILE.match(name)
            if match is not None:
                found.setdefault(int(match[1]), []).append(_StateFile(match[2], name, match[3]))
        return found

    def _snapshot_files(self, store: str, name: str) -> tuple[str, ...] | None:
        """Return the SSTs of a snapshot, None if it cannot be used: one of them is not there."""
        key = f"{store}/{name}"
        if name.endswith(".snapshot"):
            return ()
        if key not in self._named:
            try:
                self._named[key] = tuple(f"{store}/{_SNAPSHOTS}/{sst}" for sst in _ssts(self._checkpoint / key))
            except FileNotFoundError:
                return None
        names = self._named[key]
        return names if all((self._checkpoint / path).exists() for path in names) else None

    def _unversioned(self, home: str) -> Iterator[str]:
        """Yield schemas and other files in directories that begin with an underscore."""
        for directory, names, files in os.walk(self._checkpoint / home):
            relative = os.path.relpath(directory, self._checkpoint)
            names[:] = [name for name in names if name != _SNAPSHOTS]
            if any(part.startswith("_") for part in relative.split(os.sep)):
                yield from (f"{relative}/{name}" for name in files if not name.startswith("."))


def _partitions(operator: Path) -> int:
    """Return how many partitions an operator without unique ids has: what it says of itself, or what is there."""
    present = 1 + max((int(name) for name in os.listdir(operator) if name.isdigit()), default=-1)
    try:
        _, content = (operator / "_metadata" / "metadata").read_text().split("\n", 1)
        stores = json.loads(content)["stateStoreInfo"]
        return max([present, *(int(store["numPartitions"]) for store in stores)])
    except (OSError, ValueError, KeyError, TypeError):
        return present


def _ssts(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            _, content = archive.read("metadata").decode().split("\n", 1)
        return [str(file["dfsSstFileName"]) for file in json.loads(content).get("sstFiles", [])]
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise Corrupt(f"{path} is not a snapshot: {error}") from error
