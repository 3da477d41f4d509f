"""A disk that fails: wraps the system calls through which files change, counts them, and fails the n-th.

A crash at operation n means that n and everything after it, clean-up included, does not happen.
"""

import errno
import functools
import itertools
import os
from dataclasses import dataclass, field

import pytest

# The system calls through which our code changes a disk; `open` also creates.
OPERATIONS = (
    *("open", "write", "pwrite", "fsync", "fdatasync", "ftruncate"),
    *("link", "unlink", "replace", "rename", "mkdir", "rmdir"),
)
REAL = {name: getattr(os, name) for name in OPERATIONS}
MOST_OPERATIONS = 300


class Crash(BaseException):
    """The process is gone: no handler of the code under test may catch this."""


@dataclass
class Disk:
    """Counts and notes operations, and fails the n-th, or all from the n-th on."""

    fail_at: int = 0
    crash: bool = True
    number: int = errno.EIO
    count: int = 0
    trace: list[tuple[str, str]] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)

    def install(self, patch):
        for name in OPERATIONS:
            patch.setattr(os, name, functools.partial(self._call, name, getattr(os, name)))

    def _call(self, name, real, *arguments, **options):
        self.count += 1
        if self.fail_at and (self.count == self.fail_at or (self.crash and self.count > self.fail_at)):
            if name in ("write", "pwrite") and self.count == self.fail_at:
                real(arguments[0], arguments[1][: len(arguments[1]) // 2], *arguments[2:])
            if self.crash:
                raise Crash
            raise OSError(self.number, f"injected at operation {self.count}, {name}")
        # Nothing here survives a power cut anyway: flushes are counted, not made.
        result = None if name in ("fsync", "fdatasync") else real(*arguments, **options)
        if name == "open":
            self._names[result] = str(arguments[0])
        about = self._names.get(arguments[0], "?") if isinstance(arguments[0], int) else str(arguments[-1])
        self.trace.append((name, about))
        return result


def fail_everywhere(tmp_path, attempt, *, crash=True, number=errno.EIO, ends=()):
    """Yield a directory per operation of `attempt(directory)`, after that operation failed in it.

    `attempt` prepares and returns the call to make; the call is then made on the failing disk. `ends` is the error with
    which it ends on a disk that does not fail.
    """
    for at in itertools.count(1):
        assert at < MOST_OPERATIONS
        directory = tmp_path / str(at)
        act = attempt(directory)
        disk = Disk(fail_at=at, crash=crash, number=number)
        error = None
        with pytest.MonkeyPatch.context() as patch:
            disk.install(patch)
            try:
                act()
            except (Crash, Exception) as caught:  # noqa: BLE001  the caller judges
                error = caught
        if disk.count < at:
            assert isinstance(error, ends or type(None)), error
            assert at > 3, "nothing was injected"
            return
        assert not (ends and isinstance(error, ends)), "the injected fault was swallowed"
        yield directory, error


def traced(act):
    """Return the operations of a call."""
    disk = Disk()
    with pytest.MonkeyPatch.context() as patch:
        disk.install(patch)
        act()
    return disk.trace
