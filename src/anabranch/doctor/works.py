"""Looking at a work directory: identity, ledgers, parts, and the newest checkpoint of every unit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from anabranch.channel.channel import Channel
from anabranch.channel.manifest import Manifest
from anabranch.channel.parts import read_part
from anabranch.doctor.checkpoints import look_at_checkpoint
from anabranch.doctor.finding import Finding
from anabranch.durable import TEMPORARY_PREFIX
from anabranch.errors import AnabranchError, Corrupt, Trimmed
from anabranch.ledger.directory import DirectoryLedger
from anabranch.pending import Pending
from anabranch.runs import newest_commit
from anabranch.work import Work

_RESTORE = "restore the directory from a store (`anabranch restore`) or a copy"


def is_work(path: Path) -> bool:
    """Say whether a directory looks like a work directory."""
    return (path / "channels").is_dir() and (path / "units").is_dir()


def look_at_work(path: Path) -> Iterator[Finding]:
    """Yield what is wrong with a work directory."""
    work = Work.open(path)
    try:
        if work.identity() is None:
            yield Finding("identity lost", str(path / "identity.json"), "is missing", advice=_RESTORE)
    except Corrupt as error:
        yield Finding("identity lost", str(path / "identity.json"), error.message, advice=_RESTORE)
    for name in sorted(os.listdir(path / "channels")):
        yield from _channel(path / "channels" / name)
    if not (path / "leases").is_dir():
        yield Finding("directory missing", str(path / "leases"), "is missing", advice=_RESTORE)
    else:
        for name in sorted(os.listdir(path / "leases")):
            yield from _ledger(path / "leases" / name)
    for name in sorted(os.listdir(path / "units")):
        yield from _unit(work, name)


def _channel(path: Path) -> Iterator[Finding]:
    missing = [path / name for name in ("ledger", "parts", "positions") if not (path / name).is_dir()]
    if missing:
        for directory in missing:
            yield Finding("directory missing", str(directory), "is missing", advice=_RESTORE)
        return
    try:
        channel = Channel.open(path)
    except (OSError, AnabranchError, ValueError) as error:
        yield Finding("channel unreadable", str(path / "channel.json"), str(error), advice=_RESTORE)
        return
    yield from _ledger(path / "ledger")
    named: set[str] = set()
    try:
        slots = channel.ledger.slots()
    except AnabranchError:
        return  # said by `_ledger`
    readable: set[int] = set()
    for slot in slots:
        try:
            manifest = channel.manifest(slot)
        except (Corrupt, Trimmed):
            continue  # said by `_ledger`
        if manifest is not None:
            readable.add(slot)
            named.update(part.name for part in manifest.parts)
            yield from _parts(channel, manifest)
    yield from _orphans(channel, readable, named)


def _ledger(path: Path) -> Iterator[Finding]:
    ledger = DirectoryLedger(path)
    try:
        slots = ledger.slots()
    except AnabranchError as error:
        yield Finding("ledger damaged", str(path), error.message, advice=error.hint)
        return
    missing = [slot for slot in range(ledger.floor() + 1, slots[-1]) if slot not in set(slots)] if slots else []
    if missing:
        text = f"lacks slot {', '.join(map(str, missing[:5]))}, though {slots[-1]} is there"
        yield Finding("gap in ledger", str(path), text, advice=_RESTORE)
    for slot in slots:
        try:
            ledger.read(slot)
        except Corrupt as error:
            yield Finding("slot altered", str(path), error.message, advice=_RESTORE)
        except Trimmed:
            continue  # while we looked


def _parts(channel: Channel, manifest: Manifest) -> Iterator[Finding]:
    for part in manifest.parts:
        try:
            for _ in read_part(channel.parts, part):
                pass
        except (Corrupt, OSError) as error:
            yield Finding("part damaged", str(channel.parts / part.name), str(error), advice=_RESTORE)


def _orphans(channel: Channel, decided: set[int], named: set[str]) -> Iterator[Finding]:
    """Find parts that no manifest names, of epochs whose manifest can be read, and what crashed writers left."""
    floor = channel.ledger.floor()
    left = []
    for name in os.listdir(channel.parts):
        epoch = name.partition("-")[0]
        if epoch.isdigit() and name not in named and (int(epoch) in decided or int(epoch) <= floor):
            left.append(channel.parts / name)
    for directory in (channel.path / "ledger", channel.path / "positions"):
        left += [directory / name for name in os.listdir(directory) if name.startswith(TEMPORARY_PREFIX)]
    if left:
        text = f"{len(left)} files that nothing refers to"
        yield Finding("leftovers", str(channel.path), text, "untidy", "they can go while no node runs", tuple(left))


def _unit(work: Work, name: str) -> Iterator[Finding]:
    directory = work.unit_path(name)
    try:
        newest = newest_commit(directory)
    except (Corrupt, OSError) as error:
        yield Finding("state lost", str(directory), str(error), advice=_RESTORE)
        for run in sorted((directory / "runs").glob("r*")):
            yield from look_at_checkpoint(run / "checkpoint")
        return
    if newest is None:
        return
    newest_run, commit = newest
    yield from look_at_checkpoint(directory / "runs" / newest_run / "checkpoint")
    try:
        last = work.channel(name).ledger.last()
    except AnabranchError:
        return  # said by the channel
    pending = Pending(directory / "runs" / newest_run).files(commit.epoch)
    if commit.epoch > (-1 if last is None else last) + len(pending):
        text = f"has state of epoch {commit.epoch}, but its output ends at {last}"
        yield Finding("output lost", str(directory), text, advice=_RESTORE)
