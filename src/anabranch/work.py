"""The work directory: where everything of one pipeline is, and what it was made with.

identity.json          what the state fits: plans, schemas, settings, Spark version (rule: refuse what changed)
token                  what agents want to hear; readable by its owner only
channels/NAME/         see channel.py
leases/ROLE/           one ledger per role
units/NAME/runs/RUN/   a run's checkpoint and notes;  units/NAME/failures.json
nodes/NAME.json        where a node's agent listens;  logs/NAME.log
promises.json          what readers of each segment are promised, and how that is kept
ending.json            the epoch after which the nodes end, once there is one
stopping.json          that the nodes were told to stop, and how
history.jsonl          starts, failures and divergences, one line each
"""

from __future__ import annotations

import json
import os
import secrets
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anabranch.channel.channel import Channel
from anabranch.durable import link_first, write_atomic
from anabranch.errors import Corrupt, IdentityChanged, WorkDirectoryError
from anabranch.lease import Lease
from anabranch.ledger.directory import DirectoryLedger
from anabranch.sources import may_become

FORMAT = 1
# Anything shorter was cut off, or is somebody's idea of a password.
_LEAST_TOKEN = 32


@dataclass(frozen=True)
class Announcement:
    """What a node says of itself: its process, where its agent listens, and its life, which no other node ever had."""

    name: str
    pid: int
    address: str
    life: str
    zone: str | None = None


class Work:
    """Paths and small records of a work directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> Work:
        """Make the directory if need be; `WorkDirectoryError` if that is impossible."""
        try:
            for name in ("channels", "leases", "units", "nodes", "logs"):
                (path / name).mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(13, "not writable")
        except OSError as error:
            raise WorkDirectoryError(
                f"cannot use {path} as work directory: {error.strerror}", hint="choose another with --work DIR"
            ) from error
        work = cls(path)
        work.token()
        return work

    @classmethod
    def open(cls, path: Path) -> Work:
        """Open a directory that a run made; `WorkDirectoryError` if it is none."""
        if not (path / "channels").is_dir():
            raise WorkDirectoryError(
                f"{path} is not a work directory", hint="name the one that `anabranch run` used with --work DIR"
            )
        return cls(path)

    # Places

    def channel_path(self, name: str) -> Path:
        return self.path / "channels" / name

    def channel(self, name: str) -> Channel:
        """Open a channel; `WorkDirectoryError` naming the ones there are."""
        if not (self.channel_path(name) / "channel.json").is_file():
            raise WorkDirectoryError(
                f"there is no channel {name!r} in {self.path}",
                hint=f"there are: {', '.join(self.channel_names()) or 'none yet'}",
            )
        return Channel.open(self.channel_path(name))

    def channel_names(self) -> list[str]:
        directory = self.path / "channels"
        return sorted(name for name in os.listdir(directory) if (directory / name / "channel.json").is_file())

    def unit_path(self, name: str) -> Path:
        return self.path / "units" / name

    def lease(self, role: str) -> Lease:
        return Lease(DirectoryLedger(self.path / "leases" / role))

    def log_path(self, node: str) -> Path:
        return self.path / "logs" / f"{node}.log"

    # Nodes

    def announce(self, announcement: Announcement) -> Path:
        """Say where a node is; return the file that says so, to be removed when it ends."""
        path = self.path / "nodes" / f"{announcement.name}.json"
        write_atomic(path, json.dumps(asdict(announcement)).encode())
        return path

    def announcements(self) -> dict[Path, Announcement | None]:
        """Return what nodes said of themselves, by file; None where it cannot be read. They may be dead."""
        paths = [path for path in sorted((self.path / "nodes").glob("*.json")) if path.suffixes == [".json"]]
        return {path: _announcement(path) for path in paths}

    def announced(self) -> list[Announcement]:
        """Return what nodes said of themselves, by name."""
        return [announcement for announcement in self.announcements().values() if announcement is not None]

    def holder(self, role: str) -> Announcement | None:
        """Return the node that holds a role, None if there is none, or none any more."""
        holder = self.lease(role).holder()
        return next((node for node in self.announced() if holder is not None and node.life == holder.life), None)

    # Records

    def token(self) -> str:
        """Return the secret that agents want, making it on first use."""
        path = self.path / "token"
        try:
            if not path.exists():
                previous = os.umask(0o077)
                try:
                    link_first(path, secrets.token_hex(32).encode())
                finally:
                    os.umask(previous)
            if path.stat().st_mode & 0o077:
                path.chmod(0o600)
            token = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise WorkDirectoryError(
                f"{path} cannot be read, made or kept to oneself: {error}",
                hint="check whose it is, and that its disk can be written",
            ) from error
        if len(token) < _LEAST_TOKEN:
            raise WorkDirectoryError(f"{path} holds no token", hint="remove it when no node runs: it is made anew")
        return token

    def end_with(self, epoch: int, session: str) -> None:
        """Let every node of a session end once everything up to an epoch is delivered."""
        write_atomic(self.path / "ending.json", json.dumps({"epoch": epoch, "session": session}).encode())

    def ending(self, session: str) -> int | None:
        """Return the epoch after which the nodes of a session end, None if there is no end in sight."""
        try:
            record = json.loads((self.path / "ending.json").read_bytes())
        except FileNotFoundError:
            return None
        return int(record["epoch"]) if record["session"] == session else None

    def stop(self, session: str, *, now: bool) -> None:
        """Let every node of a session know that it is to stop, also one that is just being started again."""
        content = {"session": session, "now": now or self.stopping(session) == "now"}
        write_atomic(self.path / "stopping.json", json.dumps(content).encode())

    def stopping(self, session: str) -> str | None:
        """Return how the nodes of a session are to stop, `drain` or `now`; None if they are not."""
        try:
            record = json.loads((self.path / "stopping.json").read_bytes())
        except FileNotFoundError:
            return None
        if not session or record["session"] != session:
            return None
        return "now" if record["now"] else "drain"

    def identity(self) -> dict[str, Any] | None:
        """Return what the state was made with, None in a new directory."""
        path = self.path / "identity.json"
        if not path.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
            if found["format"] != FORMAT:
                raise Corrupt(f"{path} has format {found['format']}, this version reads {FORMAT}")
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{path} is unreadable: {error}", hint="restore it from a copy") from error
        return found

    def pin(self, identity: dict[str, Any]) -> str:
        """Pin what the state is made with, or compare; return the directory's id. Checks before it writes.

        Of several nodes that begin at the same time, the first one's id is the directory's.
        """
        path = self.path / "identity.json"
        if self.identity() is None:
            link_first(path, _encoded({**identity, "id": uuid.uuid4().hex}))
        found = self.identity() or {}
        changes = list(differences(found, identity))
        if changes:
            raise IdentityChanged(
                f"the state in {self.path} does not fit this pipeline: " + "; ".join(changes),
                hint="undo the change, or start over with another --work directory",
            )
        write_atomic(path, _encoded({**identity, "id": found["id"]}))
        return str(found["id"])

    def promise(self, promises: dict[str, dict[str, Any]]) -> None:
        """Say what readers of every segment are promised."""
        write_atomic(self.path / "promises.json", json.dumps(promises, indent=1).encode())

    def promises(self) -> dict[str, dict[str, Any]]:
        """Return what readers of every segment are promised; nothing if nobody has said so yet."""
        try:
            found: dict[str, dict[str, Any]] = json.loads((self.path / "promises.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return found

    def note(self, kind: str, **fields: Any) -> None:  # noqa: ANN401  JSON
        """Append one line to the history."""
        line = json.dumps({"kind": kind, **fields}) + "\n"
        descriptor = os.open(self.path / "history.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def history(self) -> list[dict[str, Any]]:
        """Return the history; a torn last line is left out."""
        try:
            lines = (self.path / "history.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        events = []
        for line in lines:
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
        return events


def _announcement(path: Path) -> Announcement | None:
    try:
        record = json.loads(path.read_bytes())
        return Announcement(
            str(record["name"]), int(record["pid"]), str(record["address"]), str(record["life"]), record.get("zone")
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _encoded(identity: dict[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, **identity}, indent=1).encode()


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Say what no longer fits. Pure.

    A segment without state may change its plan freely; one with state may not. Schemas, sources, partitions, time
    zone and Spark version may never change under existing state, but for malformed rows that are diverted from now
    on. Segments and sources cannot be added, because aligned epochs begin at zero everywhere. Sinks may come and go.
    """
    changes = [
        f"{key} was {before.get(key)!r}, is {after[key]!r}"
        for key in ("pipeline", "spark", "timezone", "state_partitions")
        if before.get(key) != after[key]
    ]
    for kind in ("sources", "segments"):
        old, new = before.get(kind, {}), dict(after[kind])
        if kind == "sources":
            # What a source may become is no change.
            new |= {name: old[name] for name in old if name in new and may_become(old[name], new[name])}
        else:
            # Rejects keep no state: they may begin at any epoch.
            new = {name: segment for name, segment in new.items() if name in old or not name.endswith(".rejects")}
        changes += [f"{kind[:-1]} {name!r} is gone" for name in old if name not in new]
        changes += [f"{kind[:-1]} {name!r} is new" for name in new if name not in old]
        for name in old:
            if name in new:
                changes += _changed(f"{kind[:-1]} {name!r}", old[name], new[name])
    return changes


def _changed(what: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    changes = []
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) == new.get(key):
            continue
        if key != "plan":
            changes.append(f"{what}: {key} was {old.get(key)!r}, is {new.get(key)!r}")
        elif old.get("stateful") or new.get("stateful"):
            was, now = _first_difference(old["plan"], new["plan"])
            changes.append(f"{what} keeps state and its plan changed from {was[:160]!r} to {now[:160]!r}")
    return changes


def _first_difference(old: list[str], new: list[str]) -> tuple[str, str]:
    for index in range(max(len(old), len(new))):
        was = old[index] if index < len(old) else ""
        now = new[index] if index < len(new) else ""
        if was != now:
            return was.strip(), now.strip()
    return "", ""
