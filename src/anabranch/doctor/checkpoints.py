"""Looking at a checkpoint directory of Structured Streaming, whoever made it.

Spark writes `offsets/N` before a micro-batch and `commits/N` after it. So every commit has its plan, both logs are
without holes, and at most one plan has no commit. The state of the last commit must be whole. Where Hadoop wrote its
checksums (`.name.crc`), every file is compared with them.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from anabranch.doctor.finding import Finding
from anabranch.doctor.state_files import newest_state_version, state_file_problem
from anabranch.errors import Corrupt
from anabranch.keeper.contents import CommitContents

_HADOOP_MAGIC = b"crc\x00"
_KEEP = "restore the directory from a copy or a store; do not delete the checkpoint, its state would be lost"


def is_checkpoint(path: Path) -> bool:
    """Say whether a directory looks like a checkpoint."""
    return (path / "offsets").is_dir() or (path / "commits").is_dir()


def look_at_checkpoint(path: Path) -> Iterator[Finding]:
    """Yield what is wrong with a checkpoint directory."""
    plans, commits = _numbers(path / "offsets"), _numbers(path / "commits")
    if plans or commits:
        yield from _metadata(path)
    yield from _holes(path / "offsets", plans)
    yield from _holes(path / "commits", commits)
    yield from _order(path, plans, commits)
    torn: set[int] = set()
    for finding, number in _entries(path, plans, commits):
        torn.add(number)
        yield finding
    if commits and commits[-1] not in torn and (path / "offsets" / str(commits[-1])).exists():
        yield from _state(path, commits[-1])
    if plans and plans[-1] not in torn:
        yield from _source_logs(path, plans[-1])
    yield from _checksums(path)
    yield from _leftovers(path)


def _numbers(log: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(log) if name.isdigit())
    except FileNotFoundError:
        return []


def _metadata(path: Path) -> Iterator[Finding]:
    try:
        if "id" not in json.loads((path / "metadata").read_bytes()):
            yield Finding("metadata", str(path / "metadata"), "does not name the query", advice=_KEEP)
    except FileNotFoundError:
        yield Finding("metadata", str(path / "metadata"), "is missing: Spark would start a new query", advice=_KEEP)
    except ValueError:
        yield Finding("metadata", str(path / "metadata"), "is unreadable", advice=_KEEP)


def _holes(log: Path, numbers: list[int]) -> Iterator[Finding]:
    present = set(numbers)
    missing = [number for number in range(numbers[0], numbers[-1]) if number not in present] if numbers else []
    if missing:
        text = f"lacks {', '.join(map(str, missing[:5]))}" + (" …" if len(missing) > 5 else "")  # noqa: PLR2004
        yield Finding(f"hole in {log.name}", str(log), text, advice=_KEEP)


def _order(path: Path, plans: list[int], commits: list[int]) -> Iterator[Finding]:
    last_plan, last_commit = (plans or [-1])[-1], (commits or [-1])[-1]
    if last_commit > last_plan:
        what = f"micro-batch {last_commit} is committed, but its plan is missing"
        yield Finding("commit without plan", str(path / "offsets"), what, advice=_KEEP)
    if last_plan > last_commit + 1:
        to = f"only to {last_commit}" if commits else "nowhere"
        what = f"the plans go to {last_plan}, the commits {to}: commits were lost"
        yield Finding("commits lost", str(path / "commits"), what, advice=_KEEP)
    newest = newest_state_version(path)
    if newest > max(last_plan, last_commit) + 1:
        what = f"there is state of micro-batch {newest - 1}, but the logs end at {max(last_plan, last_commit)}"
        yield Finding("logs lost", str(path), what, advice=_KEEP)


def _entries(path: Path, plans: list[int], commits: list[int]) -> Iterator[tuple[Finding, int]]:
    """Find torn entries. A torn last commit may go: Spark makes that micro-batch again, from the same plan.

    A torn plan may not: nobody can say whether a sink has the micro-batch already, and another plan under its number
    would never reach that sink.
    """
    for number in plans:
        entry = path / "offsets" / str(number)
        if not _readable(entry):
            yield _torn("torn plan", entry, may_go=False), number
    for number in commits:
        entry = path / "commits" / str(number)
        if not _readable(entry):
            again = number == commits[-1] and _state_is_whole(path, number - 1)
            yield _torn("torn commit", entry, may_go=again), number


def _torn(kind: str, entry: Path, *, may_go: bool) -> Finding:
    advice = "it can go: Spark will make the micro-batch again" if may_go else _KEEP
    remove = (entry, entry.with_name(f".{entry.name}.crc")) if may_go else ()
    return Finding(kind, str(entry), "is torn or empty", advice=advice, remove=remove)


def _readable(entry: Path) -> bool:
    lines = entry.read_bytes().decode(errors="replace").splitlines()
    if not lines or not lines[0].startswith("v") or not lines[0][1:].isdigit():
        return False
    if len(lines) == 1:
        return False
    try:
        return all(line in ("-", "") or json.loads(line) is not None for line in lines[1:])
    except ValueError:
        return False


def _state_is_whole(path: Path, batch_id: int) -> bool:
    if batch_id < 0:
        return not (path / "state").exists()
    return not list(_state(path, batch_id))


def _state(path: Path, batch_id: int) -> Iterator[Finding]:
    """Follow the chain of every state store of a commit."""
    contents = CommitContents(path)
    try:
        stores = contents.stores(batch_id)
    except Corrupt as error:
        yield Finding("state lost", str(path / "state"), error.message, advice=_KEEP)
        return
    for operator, partition, store in stores:
        try:
            files, _ = contents.chain(operator, partition, store, batch_id)
        except (Corrupt, FileNotFoundError) as error:
            text = error.message if isinstance(error, Corrupt) else str(error)
            yield Finding("state lost", str(path / store), text, advice=_KEEP)
            continue
        for file in files:
            problem = state_file_problem(path / file)
            if problem is not None:
                yield Finding("state altered", str(path / file), problem, advice=_KEEP)


def _source_logs(path: Path, batch_id: int) -> Iterator[Finding]:
    """Look for what a plan refers to: sources of files keep a log of their own under `sources/`."""
    for number, line in enumerate((path / "offsets" / str(batch_id)).read_text().splitlines()[2:]):
        offset = json.loads(line) if line not in ("-", "") else None
        entry = offset.get("logOffset") if isinstance(offset, dict) else None
        log = path / "sources" / str(number)
        there = any((log / f"{entry}{end}").exists() for end in ("", ".compact"))
        if isinstance(entry, int) and entry >= 0 and not there:
            what = f"lacks entry {entry}, which the plan of micro-batch {batch_id} refers to"
            yield Finding("source log lost", str(log), what, advice=_KEEP)


def _checksums(path: Path) -> Iterator[Finding]:
    """Compare every file with the checksum that Hadoop wrote beside it."""
    for directory, _, names in os.walk(path):
        for name in names:
            if not (name.startswith(".") and name.endswith(".crc")):
                continue
            summed = Path(directory, name[1:-4])
            if summed.exists() and not _fits(summed, Path(directory, name)):
                yield Finding("altered", str(summed), "does not fit its checksum", advice=_KEEP)


def _fits(file: Path, sums: Path) -> bool:
    content, expected = file.read_bytes(), sums.read_bytes()
    if expected[:4] != _HADOOP_MAGIC or len(expected) < 8:  # noqa: PLR2004  magic and chunk size
        return False
    (chunk,) = struct.unpack(">I", expected[4:8])
    if chunk == 0:
        return False
    found = b"".join(
        struct.pack(">I", zlib.crc32(content[start : start + chunk])) for start in range(0, len(content), chunk)
    )
    return found == expected[8:]


def _leftovers(path: Path) -> Iterator[Finding]:
    left = [
        Path(directory, name)
        for directory, _, names in os.walk(path)
        for name in names
        if name.endswith((".tmp", ".tmp.crc"))
    ]
    if left:
        text = f"{len(left)} temporary files that a crash left"
        yield Finding("leftovers", str(path), text, "untidy", "they can go while no query runs", tuple(left))
