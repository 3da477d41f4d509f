"""Durable files: the one place where bytes become permanent.

A file is written under a temporary name in the same directory, flushed to the device, and only then given its name:
by `rename` (last writer wins) or by `link` (first writer wins). The directory is flushed too, so that the name
survives a power cut. A crash leaves either nothing, or a temporary file that `sweep_temporaries` removes.

Rejected: writing in place (readers would see half a record) and `O_EXCL` (a crash would leave a torn winner).
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

TEMPORARY_PREFIX = ".tmp-"
# A temporary older than this belongs to a writer that is gone: writing one takes milliseconds.
TEMPORARY_LIFE_S = 600.0


def boot_id() -> str:
    """Name this start of the operating system: what was not flushed is there for as long as it lasts, no longer.

    Empty where it cannot be told; then nothing is known of earlier ones either.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def fsync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_temporary(directory: Path, data: bytes | memoryview) -> Path:
    """Write bytes under a fresh temporary name and flush them; the caller names or removes the file."""
    path = directory / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    os.close(descriptor)
    return path


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file's content; durable on return, and a reader sees the old or the new content, never a mix."""
    temporary = write_temporary(path.parent, data)
    try:
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def link_first(path: Path, data: bytes) -> bool:
    """Create a file only if its name is free; say whether this call created it.

    Atomic between processes: exactly one caller gets True, whatever the timing. Durable on return, for the loser too:
    what it goes on to read will still be there after a power cut.
    """
    temporary = write_temporary(path.parent, data)
    try:
        os.link(temporary, path)
        won = True
    except FileExistsError:
        won = False
    finally:
        temporary.unlink(missing_ok=True)
    fsync_directory(path.parent)
    return won


def write_advisory(path: Path, data: bytes) -> None:
    """Replace a file's content without flushing: for hints that a crash may take back, such as acknowledgements."""
    temporary = path.parent / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    temporary.write_bytes(data)
    os.replace(temporary, path)


def sweep_temporaries(directory: Path) -> int:
    """Remove temporaries that a crashed writer left; return how many.

    Age is measured against the file system's own clock (a file just written here), not this machine's.
    """
    stale = [entry for entry in os.scandir(directory) if entry.name.startswith(TEMPORARY_PREFIX)]
    if not stale:
        return 0
    probe = write_temporary(directory, b"")
    now_s = probe.stat().st_mtime
    probe.unlink()
    swept = 0
    for entry in stale:
        try:
            if now_s - entry.stat().st_mtime > TEMPORARY_LIFE_S:
                os.unlink(entry.path)
                swept += 1
        except FileNotFoundError:
            continue
    return swept
