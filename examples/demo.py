"""`make demo`: counts words on two nodes, kills the one that leads in front of you, and proves that nothing is missing.

The pipeline of wordcount.py runs until its leading node has been killed with SIGKILL and the other one has gone on for
a while. Then it is stopped in order, and the output is compared with two oracles: the recorded plans run again without
faults, epoch by epoch, and a plain Spark batch query over the same words.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console

from anabranch.errors import AnabranchError
from anabranch.node_options import NodeOptions
from anabranch.oracle.compare import Verdict, compare
from anabranch.oracle.reference import check_parquet, replay
from anabranch.status import failovers_in, nodes_of
from anabranch.work import Announcement, Work

HERE = Path(__file__).resolve().parent
DIRECTORY = Path("demo-run")
FILE = HERE / "wordcount.py"
CONSOLE = Console(highlight=False)
EPOCHS_BEFORE_AND_AFTER = 20
TIMEOUT_S = 300.0
UNIT = "counts"


def main() -> int:
    """Run, kill, compare; return 0 only if the output is exact by both oracles."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir()
    os.chdir(DIRECTORY)
    work = Path("work")
    CONSOLE.print("[bold]Counting 20,000 words a second, on two nodes[/bold]")
    CONSOLE.print("  anabranch run examples/wordcount.py --nodes 2")
    anabranch = [sys.executable, "-m", "anabranch.cli.main"]
    process = subprocess.Popen(
        [*anabranch, "run", str(FILE), "--work", str(work), "--nodes", "2", "--retain", "all", "--master", "local[1]"]
    )
    wait(process, "the standby", lambda: standing_by(work))
    epoch = wait_for_epoch(work, process, newest_epoch(work) + EPOCHS_BEFORE_AND_AFTER)
    leader = who_leads(work)
    CONSOLE.print(f"[bold red]kill -9 {leader.pid}[/bold red] after epoch {epoch}: {leader.name}, which led, is dead")
    os.kill(leader.pid, signal.SIGKILL)
    wait_for_epoch(work, process, epoch + EPOCHS_BEFORE_AND_AFTER)
    show_takeover(work, epoch)
    CONSOLE.print("stopping (anabranch stop)")
    subprocess.run([*anabranch, "stop", "--work", str(work)], check=True)
    if process.wait() != 0:
        CONSOLE.print("[red]the pipeline failed[/red]")
        return 1
    rows = sum(pq.read_metadata(path).num_rows for path in Path("out/wordcount").glob("*.parquet"))
    CONSOLE.print(f"delivered {rows:,} rows in {len(list(Path('out/wordcount').glob('*.parquet')))} epochs")
    CONSOLE.print("[bold]First oracle:[/bold] the recorded plans, run again without a fault …")
    reference = replay(NodeOptions(file=FILE, work=work.absolute()), Path("reference").absolute())
    verdicts = [say(check_parquet(reference, "counts", Path("out/wordcount")))]
    CONSOLE.print("[bold]Second oracle:[/bold] a plain Spark batch query over the same words …")
    verdicts.append(say(batch_verdict(Work.open(work))))
    exact = all(verdict.exact and verdict.expected for verdict in verdicts)
    CONSOLE.print("[bold green]EXACT by both oracles[/bold green]" if exact else "[bold red]NOT EXACT[/bold red]")
    return 0 if exact else 1


def wait(process: subprocess.Popen[bytes], what: str, seen: Callable[[], object]) -> None:
    """Wait until something is seen, while the pipeline runs."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not seen():
        if process.poll() is not None:
            sys.exit(f"the pipeline ended before {what} was there")
        if time.monotonic() > deadline_s:
            process.kill()
            sys.exit(f"waited {TIMEOUT_S:.0f} s for {what}")
        time.sleep(0.1)


def newest_epoch(work: Path, unit: str = UNIT) -> int:
    """Return the newest epoch of a step, -1 while there is none."""
    try:
        return Work.open(work).channel(unit).last_epoch()
    except AnabranchError:  # still starting
        return -1


def wait_for_epoch(work: Path, process: subprocess.Popen[bytes], epoch: int) -> int:
    """Wait until an epoch of the counts is published; return the newest."""
    wait(process, f"epoch {epoch}", lambda: newest_epoch(work) >= epoch)
    return newest_epoch(work)


def standing_by(work: Path) -> bool:
    """Say whether a node stands by for the counts."""
    if newest_epoch(work) < 0:
        return False
    return any(unit["role"] == "standby" for node in nodes_of(Work.open(work)) for unit in node["units"])


def who_leads(work: Path) -> Announcement:
    """Return what the node that leads the counts announced of itself."""
    return Work.open(work).holder(UNIT) or sys.exit("nobody leads")


def show_takeover(work: Path, epoch: int) -> None:
    """Say who took over, how fast, and what a reader saw of it."""
    opened = Work.open(work)
    for event in failovers_in(opened.history()):
        if event["unit"] == UNIT and event["takeover_s"] is not None:
            CONSOLE.print(
                f"[bold green]{event['to']} took over[/bold green] from {event['from']} ({event['reason']}): "
                f"noticed after {event['detected_s'] or 0:.2f} s, ready after {event['restore_s']:.2f} s, "
                f"first output after another {event['first_output_s']:.2f} s"
            )
    channel = opened.channel(UNIT)
    manifests = [channel.manifest(number) for number in range(epoch, epoch + EPOCHS_BEFORE_AND_AFTER)]
    times = [manifest.released_s for manifest in manifests if manifest is not None]
    gap_s = max(later - earlier for earlier, later in itertools.pairwise(times))
    CONSOLE.print(f"  the longest time without a new epoch was {gap_s:.1f} s")


def batch_verdict(work: Work) -> Verdict:
    """Count the same words in one batch query, and compare the windows that the watermark has closed."""
    channel = work.channel("words")
    Path("words").mkdir()
    for slot in channel.ledger.slots():
        table = channel.table(slot)
        if table is not None and len(table):
            pq.write_table(table, f"words/{slot:06d}.parquet")
    builder = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    words = spark.read.parquet("words")
    closed = words.agg(F.max("ts") - F.expr("INTERVAL 1 SECOND")).collect()[0][0]
    counts = words.groupBy(F.window("ts", "10 seconds"), "word").count().where(F.col("window.end") <= F.lit(closed))
    expected = counts.toArrow()
    spark.stop()
    delivered = pa.concat_tables([pq.read_table(path) for path in sorted(Path("out/wordcount").glob("*.parquet"))])
    return compare(expected, delivered, where="counts")


def say(verdict: Verdict) -> Verdict:
    CONSOLE.print(
        f"  {verdict.expected:,} rows expected, {verdict.delivered:,} delivered: "
        f"{verdict.lost} lost, {verdict.duplicated} duplicated, {verdict.wrong} wrong"
    )
    for example in verdict.examples:
        CONSOLE.print(f"  {example}", markup=False)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
