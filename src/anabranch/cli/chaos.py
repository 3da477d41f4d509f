"""`anabranch chaos`: break a pipeline in every way we know, and compare what it delivers with a run without faults."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from anabranch.chaos.faults import CATALOGUE
from anabranch.chaos.report import write_report
from anabranch.chaos.runner import Chaos, ChaosOptions
from anabranch.cli.places import JsonOption, TraceOption, settings_of

_BROKEN = 1


def chaos(  # noqa: PLR0913  every option of the command is a parameter
    file: Annotated[Path | None, typer.Argument(help="Python file that defines one pipeline.")] = None,
    *,
    faults: Annotated[
        list[str] | None, typer.Option("--faults", metavar="NAME,…", help="Faults or groups of them; see --list.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Settles which faults come when.")] = 0,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="How long faults come.")] = 60.0,
    count: Annotated[int, typer.Option("--count", min=1, help="How many faults come.")] = 5,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many nodes, each a Spark application.")] = 2,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", metavar="NAME", help="Protect every segment this way, whatever the pipeline says."),
    ] = None,
    master: Annotated[str, typer.Option("--master", help="Spark master of every node.")] = "local[1]",
    setting: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A Spark setting.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where everything goes. [default: .anabranch/chaos/SEED-TIME]")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show the faults, and run nothing.")] = False,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Break a pipeline on purpose, and see whether anyone could tell from its output.

    The pipeline runs over copies of its input and delivers to a directory of its own: nothing of yours is touched. When
    all faults have come, the output is compared, epoch by epoch, with a run without faults, and with plain Spark batch
    queries over the same input. Exit code 0 only if the promise was kept and at least one fault was really injected.

    Examples:
      anabranch chaos wordcount.py
      anabranch chaos wordcount.py --faults kill,pause,network --count 8 --seconds 120 --seed 7
      anabranch chaos orders.py --strategy passive --faults damage --nodes 3
      anabranch chaos --list
    """
    del trace  # read by main
    if listed:
        _show_faults(as_json=as_json)
        return
    if file is None:
        raise typer.BadParameter("name the file of a pipeline, or use --list")
    scratch = out or Path(".anabranch") / "chaos" / f"{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    console = Console(stderr=True, highlight=False)
    options = ChaosOptions(
        file=file,
        scratch=scratch,
        faults=tuple(name for given in faults or ["all"] for name in map(str.strip, given.split(",")) if name),
        seed=seed,
        seconds=seconds,
        count=count,
        nodes=nodes,
        strategy=strategy,
        master=master,
        settings=settings_of(setting or []),
    )
    # Whoever is told to end puts everything right first.
    for told in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(told, lambda sent, _: sys.exit(128 + sent))
    run = Chaos(options, console.print)
    verdict = run.run()
    report = write_report(scratch / "history.jsonl", scratch / "report.html")
    if as_json:
        sys.stdout.write(json.dumps({**verdict, "report": str(report)}) + "\n")
    else:
        _show_verdict(verdict, report, console)
    if not verdict["held"]:
        raise typer.Exit(_BROKEN)


def _show_faults(*, as_json: bool) -> None:
    if as_json:
        for fault in CATALOGUE.values():
            sys.stdout.write(json.dumps({"name": fault.name, "group": fault.group, "tells": fault.tells}) + "\n")
        return
    table = Table("fault", "group", "what it does")
    for fault in CATALOGUE.values():
        table.add_row(fault.name, fault.group, fault.tells)
    Console().print(table)


def _show_verdict(verdict: dict[str, Any], report: Path, console: Console) -> None:
    console.print(f"faults: {', '.join(verdict['faults']) or 'none'}")
    for name, why in verdict["unable"].items():
        console.print(f"  not possible here: {name} ({why})")
    console.print(
        f"{verdict['epochs']} epochs, {verdict['rows_delivered']:,} rows, {verdict['rows_expected']:,} expected: "
        f"{verdict['lost']} lost, {verdict['duplicated']} duplicated, {verdict['wrong']} wrong"
        if verdict["judged_by"]
        else "not judged"
    )
    batch = verdict["batch"]
    console.print(
        f"batch query: {batch['expected']:,} rows expected, {batch['lost']} lost, {batch['duplicated']} duplicated, "
        f"{batch['wrong']} wrong; {verdict['batch_undecided']} undecided because of late rows"
    )
    for name, why in verdict["batch_left_out"].items():
        console.print(f"  {name} cannot be compared with a batch query: {why}")
    for name, why in verdict["not_compared"].items():
        console.print(f"  {name} was not compared: {why}", style="yellow", markup=False)
    for name in verdict["empty"]:
        console.print(f"  {name} was given no row, so nothing was compared of it", style="yellow", markup=False)
    for name, epochs in verdict["differing"].items():
        console.print(f"  {name}: epochs {', '.join(map(str, epochs))} differ")
    for example in verdict["examples"]:
        console.print(f"  {example}", markup=False)
    if verdict["failed"]:
        console.print(f"[red]failed:[/red] {verdict['failed']}")
    console.print(
        f"longest time without output {verdict['max_gap_s']} s (before the faults {verdict['steady_gap_s']} s)"
    )
    console.print(f"report: {report}")
    alone = " by one oracle only" if len(verdict["judged_by"]) == 1 else ""
    console.print(f"[bold green]HELD[/bold green]{alone}" if verdict["held"] else "[bold red]BROKEN[/bold red]")
