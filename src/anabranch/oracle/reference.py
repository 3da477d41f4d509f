"""The reference oracle: the recorded source plans, run again from the beginning, one epoch at a time, without faults.

This is what `precise` means: given the same plans, every epoch holds the same multiset of rows. It needs the whole
history, so the run under test must keep all epochs (`--retain all`). The result is a work directory of its own, whose
channels are compared, epoch by epoch, with what was delivered.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from anabranch.errors import WorkDirectoryError
from anabranch.launcher import Launcher
from anabranch.ledger.ledger import NO_FLOOR
from anabranch.node_options import NodeOptions
from anabranch.oracle.compare import NOTHING, Verdict, compare
from anabranch.work import Work


def replay(options: NodeOptions, work: Path, *, goes_on: Callable[[int], bool] = lambda _: True) -> Work:
    """Run the plans recorded in the options' work directory again, in `work`; sinks are left alone.

    `goes_on` is told the session of the process that does it, and says whether anyone waits: who does not ends it.
    """
    recorded = Work.open(options.work)
    again = Work.create(work)
    for name in recorded.channel_names():
        channel = recorded.channel(name)
        if channel.spec.source is None:
            continue
        if channel.ledger.floor() != NO_FLOOR:
            raise WorkDirectoryError(
                f"source {name!r} of {options.work} is trimmed up to epoch {channel.ledger.floor()}",
                hint="run it with --retain all to be able to check it afterwards",
            )
        shutil.copytree(channel.path, again.channel_path(name), ignore=shutil.ignore_patterns("acks", ".tmp-*"))
        (again.channel_path(name) / "acks").mkdir()
    launcher = Launcher(replace(options, work=work, replay=True, drain=False, name="reference"))
    launched = launcher.start()
    while goes_on(launched.process.pid) and launcher.poll(launched):
        launched.process.wait()
    return again


def check_parquet(reference: Work, name: str, directory: Path) -> Verdict:
    """Compare every epoch of one channel with the files that a Parquet sink delivered."""
    return sum((verdict for _, verdict in by_epoch(reference, name, directory)), NOTHING)


def by_epoch(reference: Work, name: str, directory: Path) -> Iterator[tuple[int, Verdict]]:
    """Yield every epoch of one channel with how the file compares that a Parquet sink delivered."""
    channel = reference.channel(name)
    files = {int(path.stem.removeprefix("epoch-")): path for path in directory.glob("epoch-*.parquet")}
    empty = channel.spec.schema.empty_table()
    for epoch in range(max([*files, channel.ledger.last() or 0]) + 1):
        expected = channel.table(epoch)
        found = pq.read_table(files[epoch]) if epoch in files else empty
        yield epoch, compare(empty if expected is None else expected, found, where=f"{name} epoch {epoch}")
