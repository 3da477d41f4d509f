"""Processes of a node, by session: a node, its JVM and Spark's Python workers share one."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LOOKS, _LOOK_S = 500, 0.01


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let nobody end this process while it puts things right; in other threads signals do not come anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {sent: signal.signal(sent, signal.SIG_IGN) for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for sent, handler in before.items():
            signal.signal(sent, handler)


def of_session(session: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the processes of a session, each with the fields of its `stat` from the state on."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                yield int(entry.name), fields


def kill_session(session: int) -> bool:
    """Kill a node with everything it started, at once, as the loss of its machine would; say whether it was there.

    The system kills a process group whole, also what is being forked in it; a list of processes is old when it has been
    read. New groups may come meanwhile, so this looks until it finds nobody. The limit protects from a process that the
    system cannot end (state D).
    """
    was_there = False
    for _ in range(_LOOKS):
        if not signal_session(session, signal.SIGKILL):
            break
        was_there = True
        time.sleep(_LOOK_S)
    return was_there


def signal_session(session: int, sent: signal.Signals) -> bool:
    """Send a signal to every process of a session, such as one that pauses it; say whether there was one."""
    groups = {int(fields[2]) for _, fields in of_session(session)}
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, sent)
    return bool(groups)


def cpu_s(session: int) -> float:
    """Return the CPU time that a node and everything it started have used, ended children included."""
    return sum(sum(map(int, fields[11:15])) for _, fields in of_session(session)) / _TICKS_PER_S


def give_way(session: int, niceness: int) -> bool:
    """Let a session of processes give way to other sessions, by a niceness from 0 to 19; 0 takes it back.

    Linux shares the CPU between sessions first (`autogroup`), and whoever has lowered this may raise it again, which
    holds for no niceness of processes. Where that is turned off, nothing happens. False if it has to be tried again:
    Linux takes ten such changes a second.
    """
    try:
        Path(f"/proc/{session}/autogroup").write_text(str(niceness))
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True


def gives_way(session: int) -> bool:
    """Say whether a session of processes gives way to others."""
    try:
        return int(Path(f"/proc/{session}/autogroup").read_text().split()[-1]) > 0
    except (OSError, ValueError, IndexError):
        return False
