"""`make demo`: counts words while its node is killed in front of you, then proves that nothing is missing.

The pipeline of wordcount.py runs until its node has been killed with SIGKILL, started again, and gone on for a while.
Then it is stopped in order, and the output is compared with two oracles: the recorded plans run again without faults,
epoch by epoch, and a plain Spark batch query over the same words.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
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
from anabranch.work import Work

HERE = Path(__file__).resolve().parent
DIRECTORY = Path("demo-run")
FILE = HERE / "wordcount.py"
CONSOLE = Console(highlight=False)
EPOCHS_BEFORE_AND_AFTER = 20


def main() -> int:
    """Run, kill, compare; return 0 only if the output is exact by both oracles."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir()
    os.chdir(DIRECTORY)
    work = Path("work")
    CONSOLE.print("[bold]Counting 20,000 words a second[/bold] (anabranch run examples/wordcount.py)")
    anabranch = [sys.executable, "-m", "anabranch.cli.main"]
    process = subprocess.Popen([*anabranch, "run", str(FILE), "--work", str(work), "--retain", "all"])
    epoch = _wait_for_epoch(work, process, EPOCHS_BEFORE_AND_AFTER)
    node = json.loads((work / "nodes" / "node-1.json").read_bytes())
    CONSOLE.print(f"[bold red]kill -9 {node['pid']}[/bold red] after epoch {epoch}: the node is dead")
    os.kill(node["pid"], signal.SIGKILL)
    _wait_for_epoch(work, process, epoch + EPOCHS_BEFORE_AND_AFTER)
    CONSOLE.print("it went on; stopping (anabranch stop)")
    subprocess.run([*anabranch, "stop", "--work", str(work)], check=True)
    if process.wait() != 0:
        CONSOLE.print("[red]the pipeline failed[/red]")
        return 1
    rows = sum(pq.read_metadata(path).num_rows for path in Path("out/wordcount").glob("*.parquet"))
    CONSOLE.print(f"delivered {rows:,} rows in {len(list(Path('out/wordcount').glob('*.parquet')))} epochs")
    CONSOLE.print("[bold]First oracle:[/bold] the recorded plans, run again without a fault …")
    reference = replay(NodeOptions(file=FILE, work=work.absolute()), Path("reference").absolute())
    verdicts = [_say(check_parquet(reference, "counts", Path("out/wordcount")))]
    CONSOLE.print("[bold]Second oracle:[/bold] a plain Spark batch query over the same words …")
    verdicts.append(_say(_batch_verdict(Work.open(work))))
    exact = all(verdict.exact and verdict.expected for verdict in verdicts)
    CONSOLE.print("[bold green]EXACT by both oracles[/bold green]" if exact else "[bold red]NOT EXACT[/bold red]")
    return 0 if exact else 1


def _wait_for_epoch(work: Path, process: subprocess.Popen[bytes], epoch: int) -> int:
    """Wait until an epoch of the counts is published; return the newest."""
    while process.poll() is None:
        try:
            last = Work.open(work).channel("counts").ledger.last()
        except AnabranchError:  # still starting
            last = None
        if last is not None and last >= epoch:
            return last
        time.sleep(0.1)
    sys.exit("the pipeline ended before its time")


def _batch_verdict(work: Work) -> Verdict:
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


def _say(verdict: Verdict) -> Verdict:
    CONSOLE.print(
        f"  {verdict.expected:,} rows expected, {verdict.delivered:,} delivered: "
        f"{verdict.lost} lost, {verdict.duplicated} duplicated, {verdict.wrong} wrong"
    )
    for example in verdict.examples:
        CONSOLE.print(f"  {example}", markup=False)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
