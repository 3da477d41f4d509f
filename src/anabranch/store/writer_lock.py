"""A lock on a directory that ends with the process that holds it, whatever ends it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from anabranch.errors import StoreError

LOCK_NAME = "writer"


class WriterLock:
    """Held by the one process that writes a store; ends with the process, whatever ends it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise StoreError(
                f"another process writes {directory}", hint="a store has one writer; give each its own directory"
            ) from error

    def release(self) -> None:
        """Let another process write."""
        os.close(self._descriptor)


def is_written(directory: Path) -> bool:
    """Say whether a process has a store open for writing."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
