"""`make demo-ksafe`: two word counts (Tanuwidjaja 2015, figures 5 and 6) with k = 1; both nodes are killed in turn.

Both nodes run everything and race to publish it, so nobody has to notice that one is dead. As soon as status says that
every step has two replicas again, the other node is killed. At the end the recorded plans are run again without faults,
and every epoch that was delivered is compared.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from demo import CONSOLE, EPOCHS_BEFORE_AND_AFTER, HERE, newest_epoch, say, wait

from anabranch.node_options import NodeOptions
from anabranch.oracle.reference import check_parquet, replay
from anabranch.status import collect
from anabranch.work import Work

TOPOLOGIES = {"wordcount_stateless_middle": "counts", "wordcount_stateful_middle": "top"}
WORDS_PER_SECOND = "1000"
ANABRANCH = [sys.executable, "-m", "anabranch.cli.main"]


def main() -> int:
    """Run both; return 0 only if both are exact."""
    os.environ["WORDS_PER_SECOND"] = WORDS_PER_SECOND
    shutil.rmtree("demo-run", ignore_errors=True)
    Path("demo-run").mkdir()
    os.chdir("demo-run")
    return max([survives(name, unit) for name, unit in TOPOLOGIES.items()])


def survives(name: str, unit: str) -> int:
    """Run one topology, kill both nodes one after the other, and compare; return 0 only if it is exact."""
    file, work = HERE / f"{name}.py", Path(f"work-{name}")
    CONSOLE.print(f"[bold]{name}, k = 1[/bold]")
    CONSOLE.print(f"  anabranch run examples/{name}.py --nodes 2 --strategy ksafe")
    options = ["--nodes", "2", "--strategy", "ksafe", "--retain", "all", "--master", "local[1]"]
    process = subprocess.Popen([*ANABRANCH, "run", str(file), "--work", str(work), *options])
    killed: set[str] = set()
    while len(killed) < 2:  # noqa: PLR2004  both nodes
        wait(process, "two replicas of everything", lambda: redundant(work))
        calm = newest_epoch(work, unit)
        wait(process, "some epochs", lambda calm=calm: newest_epoch(work, unit) >= calm + EPOCHS_BEFORE_AND_AFTER)
        victim = next(node for node in Work.open(work).announced() if node.name not in killed)
        killed.add(victim.name)
        epoch = newest_epoch(work, unit)
        CONSOLE.print(f"[bold red]kill -9 {victim.pid}[/bold red] after epoch {epoch}: {victim.name} is dead")
        os.kill(victim.pid, signal.SIGKILL)
        wait(process, "epochs", lambda epoch=epoch: newest_epoch(work, unit) >= epoch + EPOCHS_BEFORE_AND_AFTER)
        before, after = (
            longest_s(work, unit, calm, epoch),
            longest_s(work, unit, epoch, epoch + EPOCHS_BEFORE_AND_AFTER),
        )
        CONSOLE.print(f"  the longest time between two epochs was {before:.2f} s before it, and {after:.2f} s after it")
    wait(process, "two replicas of everything", lambda: redundant(work))
    CONSOLE.print("  both nodes are back; stopping (anabranch stop)")
    subprocess.run([*ANABRANCH, "stop", "--work", str(work)], check=True)
    if process.wait() != 0:
        CONSOLE.print("[red]the pipeline failed[/red]")
        return 1
    CONSOLE.print("  comparing with the recorded plans, run again without a fault …")
    options_again = NodeOptions(file=file, work=work.absolute())
    reference = replay(options_again, Path(f"reference-{name}").absolute())
    verdict = say(check_parquet(reference, unit, Path("out") / name))
    exact = verdict.exact and verdict.expected > 0
    CONSOLE.print("[bold green]EXACT[/bold green]" if exact else "[bold red]NOT EXACT[/bold red]")
    return 0 if exact else 1


def redundant(work: Path) -> bool:
    """Say whether every step runs on as many nodes as it should."""
    if not (work / "promises.json").exists():
        return False
    found = collect(Work.open(work))["redundancy"]
    return bool(found) and all(some["present"] >= some["wanted"] for some in found)


def longest_s(work: Path, unit: str, first: int, last: int) -> float:
    """Return the longest time between two epochs of a stretch."""
    channel = Work.open(work).channel(unit)
    times = [
        manifest.released_s for epoch in range(first, last + 1) if (manifest := channel.manifest(epoch)) is not None
    ]
    return max(later - earlier for earlier, later in itertools.pairwise(times))


if __name__ == "__main__":
    sys.exit(main())
