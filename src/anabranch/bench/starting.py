"""How long a node takes until it publishes an epoch, with the archive of Spark's classes and without, in one run.

The pipeline is the one of which the archive is made: four segments with state over two sources. Counted from the start
of the process, for a node that shares its machine with others.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from anabranch.bench.report import Report
from anabranch.class_archive import OFF
from anabranch.errors import AnabranchError
from anabranch.launcher import Launcher, Surroundings
from anabranch.node_options import NodeOptions
from anabranch.preparation import sample
from anabranch.preparation.making import write_input
from anabranch.processes import cpu_s, kill_session
from anabranch.work import Work

_LOOK_S = 0.02
_TIMEOUT_S = 300.0
_UNIT = "windowed"


def measure(rounds: int, report: Report, say: Callable[[str], None]) -> dict[str, float]:
    """Run all rounds; return the median ratios, with the archive to without, of seconds and of CPU."""
    found: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    for number in range(rounds):
        order = ["without", "with"] if number % 2 == 0 else ["with", "without"]
        for archive in order:
            seconds, used_s = _started(archive)
            found[archive].append((seconds, used_s))
            report.add(round=number, order=order, archive=archive, seconds=seconds, cpu_s=used_s)
            say(f"round {number + 1}: {archive} archive: {seconds:.1f} s, {used_s:.1f} s of CPU")
    pairs = list(zip(found["with"], found["without"], strict=True))
    return {
        "seconds": statistics.median(one[0] / other[0] for one, other in pairs),
        "cpu": statistics.median(one[1] / other[1] for one, other in pairs),
    }


def _started(archive: str) -> tuple[float, float]:
    """Start a node; return the seconds, and the CPU of all its processes, until the first epoch is published."""
    directory = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    write_input(directory)
    options = NodeOptions(
        file=Path(sample.__file__),
        work=directory / "work",
        master="local[1]",
        drain=True,
        elsewhere=directory,
        neighbours=True,
    )
    environment = {} if archive == "with" else {"ANABRANCH_ARCHIVE": OFF}
    launcher = Launcher(options, surroundings=Surroundings(environment=environment))
    began_s = time.monotonic()
    node = launcher.start()
    try:
        while _published(directory / "work") < 0:
            if time.monotonic() - began_s > _TIMEOUT_S or not launcher.poll(node):
                raise AnabranchError("the node that was measured published nothing", hint="try `anabranch doctor`")
            time.sleep(_LOOK_S)
        return round(time.monotonic() - began_s, 2), round(cpu_s(node.process.pid), 2)
    finally:
        kill_session(node.process.pid)
        node.process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _published(work: Path) -> int:
    with contextlib.suppress(AnabranchError):
        return Work.open(work).channel(_UNIT).last_epoch()
    return -1
