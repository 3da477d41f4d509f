"""What the processes of a ledger's contract suite do: claim against each other, and trim behind each other's back.

It is apart from the suite so that a child process imports a ledger and nothing else. An `Opener` is called in the
child, and must be picklable: `functools.partial(DirectoryLedger, path)`. What a child saw goes into a file, one line
per call, written at once: a line that is there was acknowledged before a SIGKILL.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

from anabranch.errors import Trimmed
from anabranch.ledger.ledger import Ledger

Opener = Callable[[], Ledger]

#: A child that has not ended by then hangs.
CHILD_LIMIT_S = 120.0


@dataclass(frozen=True)
class Saw:
    """One acknowledged call: a claim (won or lost, and to which record) or, with `won` None, a refusal as trimmed."""

    worker: str
    slot: int
    won: bool | None
    record: str = ""


def claim_and_note(ledger: Ledger, worker: str, slot: int) -> Saw:
    """Claim a slot with a record that names worker and slot."""
    try:
        claim = ledger.claim(slot, f"{worker}/{slot}".encode())
    except Trimmed:
        return Saw(worker, slot, None)
    return Saw(worker, slot, claim.won, claim.record.decode())


def race(opener: Opener, directory: Path, orders: list[list[int]], trim_lag: int | None = None) -> list[Saw]:
    """Let one process per order claim its slots in that order, all starting at once; return what they saw.

    With `trim_lag` the first of them also trims, that far behind the newest slot.
    """
    context = multiprocessing.get_context("spawn")
    gun = context.Barrier(len(orders))
    logs = [directory / f"worker-{number}.log" for number in range(len(orders))]
    children = [
        context.Process(target=_race, args=(opener, log, gun, order, None if number else trim_lag), daemon=True)
        for number, (log, order) in enumerate(zip(logs, orders, strict=True))
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(CHILD_LIMIT_S)
        assert child.exitcode == 0, f"{child.name} ended with {child.exitcode}"
    return sightings(logs)


def start_advancing(opener: Opener, log: Path, trim_lag: int | None = None) -> BaseProcess:
    """Start a process that claims the slot after the newest one until it is killed."""
    child = multiprocessing.get_context("spawn").Process(target=advance, args=(opener, log, trim_lag), daemon=True)
    child.start()
    return child


def advance(opener: Opener, log: Path, trim_lag: int | None) -> None:
    """Claim the slot after the newest one, for ever; with `trim_lag` also trim. Ends only by being killed."""
    ledger = opener()
    with log.open("ab", buffering=0) as lines:
        while True:
            newest = ledger.last()
            _append(lines.fileno(), claim_and_note(ledger, log.stem, 0 if newest is None else newest + 1))
            if trim_lag is not None:
                ledger.trim((newest or 0) - trim_lag)


def sightings(logs: Iterable[Path]) -> list[Saw]:
    """Read what the children saw; a last line that was cut off by a kill was not acknowledged."""
    lines = [line for log in logs if log.exists() for line in log.read_bytes().splitlines(keepends=True)]
    return [Saw(**json.loads(line)) for line in lines if line.endswith(b"\n")]


def check_sightings(ledger: Ledger, seen: list[Saw]) -> None:
    """Assert that one history explains everything: a winner per slot at most, and every loser saw its record."""
    winners: dict[int, str] = {}
    for saw in seen:
        if saw.won:
            assert saw.slot not in winners, f"slot {saw.slot} was won by {winners[saw.slot]} and by {saw.record}"
            winners[saw.slot] = saw.record
    floor = ledger.floor()
    kept = {slot: (ledger.read(slot) or b"").decode() for slot in ledger.slots()}
    # A winner may have been killed, or have slept and been trimmed, before it could tell: then losers must agree.
    decided = winners | kept
    for saw in seen:
        if saw.won is None:
            assert saw.slot <= floor, f"slot {saw.slot} was refused as trimmed, and the floor is {floor}"
            continue
        expected = decided.setdefault(saw.slot, saw.record)
        assert saw.record == expected, f"{saw.worker} saw {saw.record} in slot {saw.slot}, which held {expected}"
        assert saw.slot in kept or saw.slot <= floor, f"slot {saw.slot} was decided and is gone"


def _race(opener: Opener, log: Path, gun: Barrier, slots: list[int], trim_lag: int | None) -> None:
    ledger = opener()
    with log.open("ab", buffering=0) as lines:
        gun.wait(CHILD_LIMIT_S)
        for slot in slots:
            _append(lines.fileno(), claim_and_note(ledger, log.stem, slot))
            if trim_lag is not None:
                ledger.trim((ledger.last() or 0) - trim_lag)


def _append(descriptor: int, saw: Saw) -> None:
    os.write(descriptor, json.dumps(vars(saw)).encode() + b"\n")
