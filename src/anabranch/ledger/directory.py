"""A ledger in a directory: one file per slot, and the first `link` wins.

    000000000042               a slot (see slot_file.py)
    floor/000000000041-<crc>   the floor: the name of the only file there, with its CRC-32; no directory before a trim
    unordered                  exists once a slot was claimed before its predecessor

Failure model: a process may die or freeze between any two calls, and the machine may lose power. What was fsynced
stays; damage that shows is raised as `Corrupt`.

The floor is raised by renaming its file, which works only for a caller who knew the present floor: a trimmer that
slept cannot put it back. `last` is asked every few milliseconds, and listing thousands of names takes that long. As
slots are claimed in order, it looks for the successor of the newest slot it knows; a claim out of order leaves
`unordered` behind first, and then `last` lists.

Rejected: one floor file that is replaced (of two trimmers the later wins, and may lower it), a lock (a frozen holder
stops everyone), and the directory's mtime as a sign of change (two changes within a clock tick look like one).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
import zlib
from pathlib import Path

from anabranch.durable import fsync_directory, link_first, sweep_temporaries
from anabranch.errors import Corrupt, Trimmed, WorkDirectoryError
from anabranch.ledger.ledger import NO_FLOOR, Claim
from anabranch.ledger.slot_file import decode, encode

_DIGITS = 12
_SLOT_NAME = re.compile(rf"\d{{{_DIGITS}}}")
_NEW_FLOOR_PREFIX = ".floor-"
# Each retry means that another process trimmed in the microseconds of a call; this many in a row is damage.
_ATTEMPTS = 100


def slot_name(slot: int) -> str:
    """Return the name of a slot's file; names sort by slot."""
    return f"{slot:0{_DIGITS}d}"


class DirectoryLedger:
    """The contract over a directory; for any number of threads and processes, and machines that share the directory."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path).absolute()
        self._floor_home = self._path / "floor"
        self._unordered = self._path / "unordered"
        # Any slot once seen claimed, and the floor that was last cleaned up to: both only save work.
        self._seen: int | None = None
        self._cleaned = NO_FLOOR
        _make_directory(self._path)

    def __repr__(self) -> str:
        return f"DirectoryLedger({str(self._path)!r})"

    @property
    def path(self) -> Path:
        """The directory."""
        return self._path

    def claim(self, slot: int, record: bytes) -> Claim:
        path = self._slot_path(slot)
        floor = self.floor()
        if slot <= floor:
            raise self._trimmed(slot, floor)
        content = encode(path.name, record)
        decode(path, content)
        if slot - 1 > floor and not self._slot_path(slot - 1).exists() and not self._unordered.exists():
            link_first(self._unordered, b"")
        won = link_first(path, content)
        # Only now is the floor's word final: it may have risen, and the slot been removed, before the link.
        floor = self.floor()
        if slot <= floor:
            self._make_floor_durable()
            path.unlink(missing_ok=True)
            raise self._trimmed(slot, floor)
        if won:
            self._seen = slot
            return Claim(won=True, record=record)
        winner = self.read(slot)
        if winner is None:
            raise Corrupt(
                f"slot file {path} was there and vanished, though the floor is {floor}",
                hint="only Anabranch may remove files of a ledger; bring it back from a copy or a store",
            )
        return Claim(won=False, record=winner)

    def read(self, slot: int) -> bytes | None:
        path = self._slot_path(slot)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = None
        # After the file: a slot that a sleeping claimer brought back must be judged by the floor it slept through.
        floor = self.floor()
        if slot <= floor:
            raise self._trimmed(slot, floor)
        return None if content is None else decode(path, content)

    def decided(self, slot: int) -> bool:
        """Say whether nobody can claim a slot any more: it is claimed, or at or below the floor."""
        return self._slot_path(slot).exists() or slot <= self.floor()

    def slots(self) -> list[int]:
        for _ in range(_ATTEMPTS):
            listed = self._listed()
            floor = self.floor()
            kept = [slot for slot in listed if slot > floor]
            # Above a floor there is always a slot. None here: a trim overtook the listing.
            if kept or floor == NO_FLOOR:
                return kept
        raise Corrupt(
            f"ledger {self._path} has a floor but no slot above it: its newest slot was removed",
            hint="only Anabranch may remove files of a ledger; bring them back from a copy or a store",
        )

    def last(self) -> int | None:
        seen = self._seen
        if seen is not None:
            while self._slot_path(seen + 1).exists():
                seen += 1
            # In this order: a trimmed successor has raised the floor, and a slot beyond the gap has left `unordered`.
            if seen > self.floor() and not self._unordered.exists():
                self._seen = seen
                return seen
        slots = self.slots()
        self._seen = slots[-1] if slots else None
        return self._seen

    def floor(self) -> int:
        for _ in range(_ATTEMPTS):
            try:
                names = os.listdir(self._floor_home)
            except FileNotFoundError:
                return NO_FLOOR
            marks = [self._floor_of(name) for name in names if not name.startswith(".")]
            # None: the listing fell between the two names of a rename. Two: it saw both.
            if marks:
                return max(marks)
        raise Corrupt(
            f"{self._floor_home} is empty: the floor of the ledger is lost",
            hint="bring the directory back from a copy; without a floor, trimmed slots could be decided again",
        )

    def trim(self, floor: int) -> None:
        if floor > self.floor():
            newest = self.last()
            if newest is None or floor >= newest:
                raise ValueError(f"a floor of {floor} would trim the newest slot of {self._path}, which is {newest}")
            # The slot that lets older ones go may be seen before its claimer made it durable.
            fsync_directory(self._path)
            self._raise_floor(floor)
        self._clean()

    def _raise_floor(self, floor: int) -> None:
        """Make the floor at least `floor`; whoever comes second finds that out and looks again."""
        for _ in range(_ATTEMPTS):
            present = self.floor()
            if present >= floor:
                return
            try:
                if present == NO_FLOOR:
                    self._plant_floor(floor)
                else:
                    os.rename(self._floor_home / _floor_name(present), self._floor_home / _floor_name(floor))
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        raise Corrupt(f"the floor in {self._floor_home} cannot be raised to {floor}", hint="check its permissions")

    def _plant_floor(self, floor: int) -> None:
        """Create the floor's directory with its file already in it; fails if there is one."""
        prepared = self._path / f"{_NEW_FLOOR_PREFIX}{uuid.uuid4().hex}"
        prepared.mkdir()
        link_first(prepared / _floor_name(floor), b"")
        os.rename(prepared, self._floor_home)

    def _clean(self) -> None:
        """Remove what lies at or below the floor, and what crashed callers left."""
        floor = self.floor()
        if floor <= self._cleaned:
            return
        self._make_floor_durable()
        for slot in self._listed():
            if slot <= floor:
                self._slot_path(slot).unlink(missing_ok=True)
        for name in os.listdir(self._path):
            if name.startswith(_NEW_FLOOR_PREFIX):
                shutil.rmtree(self._path / name, ignore_errors=True)
        sweep_temporaries(self._path)
        self._cleaned = floor

    def _make_floor_durable(self) -> None:
        """Flush the floor, whoever raised it: a slot may go only if no power cut can bring the old floor back."""
        fsync_directory(self._floor_home)
        fsync_directory(self._path)

    def _listed(self) -> list[int]:
        return sorted(int(name) for name in os.listdir(self._path) if _SLOT_NAME.fullmatch(name))

    def _slot_path(self, slot: int) -> Path:
        if not 0 <= slot < 10**_DIGITS:
            raise ValueError(f"slot {slot} is negative or has more than {_DIGITS} digits")
        return self._path / slot_name(slot)

    def _floor_of(self, name: str) -> int:
        digits, _, _ = name.partition("-")
        if not _SLOT_NAME.fullmatch(digits) or name != _floor_name(int(digits)):
            raise Corrupt(
                f"{self._floor_home / name} does not name a floor",
                hint="remove it if it was put there by hand, else bring the directory back from a copy",
            )
        return int(digits)

    def _trimmed(self, slot: int, floor: int) -> Trimmed:
        return Trimmed(
            f"slot {slot} of ledger {self._path} is at or below its floor, {floor}",
            hint=f"no consumer needs it any more; go on from slot {floor + 1}, or restore a newer version",
        )


def _floor_name(floor: int) -> str:
    digits = f"{floor:0{_DIGITS}d}"
    return f"{digits}-{zlib.crc32(digits.encode()):08x}"


def _make_directory(path: Path) -> None:
    """Create a directory and its parents so that they survive a power cut."""
    if path.exists() and not path.is_dir():
        raise WorkDirectoryError(f"{path} is a file, and a ledger needs a directory", hint="name another place")
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        fsync_directory(directory.parent)
