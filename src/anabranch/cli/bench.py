"""`anabranch bench NAME`: the measurements, as JSON lines and plots."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from anabranch.bench import campaign as campaign_bench
from anabranch.bench import endurance as endurance_bench
from anabranch.bench import failover as failover_bench
from anabranch.bench import keeping as keeping_bench
from anabranch.bench import ksafe as ksafe_bench
from anabranch.bench import latency as latency_bench
from anabranch.bench import overhead as overhead_bench
from anabranch.bench import plots
from anabranch.bench import starting as starting_bench
from anabranch.bench import stores as stores_bench
from anabranch.bench import throughput as throughput_bench
from anabranch.bench.report import Report
from anabranch.cli.places import JsonOption, TraceOption
from anabranch.errors import PipelineError
from anabranch.preparation.making import ensure

app = typer.Typer(help="Measure, side by side with bare Spark in one run.", no_args_is_help=True)
OutOption = Annotated[Path, typer.Option("--out", help="Directory for JSON lines and plots.")]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Rounds, in alternating order.")]
DEFAULT_OUT = Path("bench-results")


@app.command()
def throughput(
    *,
    rows: Annotated[int, typer.Option("--rows", min=2_000_000, help="Rows that count, per run.")] = 12_000_000,
    rounds: RoundsOption = 3,
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Rows per second for pass-through and a windowed count over 1,000 keys.

    Example:
      anabranch bench throughput --rounds 3 --out bench-results
    """
    del trace  # read by main
    report = _report(out, "throughput")
    ratios = throughput_bench.measure(throughput_bench.ThroughputOptions(rows=rows, rounds=rounds), report, _say)
    plots.plot_throughput(report.path, out / "throughput.png")
    _conclude(ratios, report, as_json=as_json, what="of bare Spark's rows/s")


@app.command()
def latency(
    *,
    seconds: Annotated[float, typer.Option("--seconds", min=5, help="Seconds that count, per side and round.")] = 45.0,
    rounds: RoundsOption = 3,
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Seconds from a row's creation to its delivery, at 20,000 rows a second.

    Example:
      anabranch bench latency --rounds 3 --out bench-results
    """
    del trace  # read by main
    report = _report(out, "latency")
    ratios = latency_bench.measure(latency_bench.LatencyOptions(seconds=seconds, rounds=rounds), report, _say)
    plots.plot_latency(report.path, out / "latency.png")
    _conclude(ratios, report, as_json=as_json, what="of bare Spark's latency")


@app.command()
def endurance(
    *,
    seconds: Annotated[float, typer.Option("--seconds", min=20, help="Seconds that count, after the warm-up.")] = 300.0,
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Memory of every process and number of files, over minutes at 50,000 rows a second.

    Example:
      anabranch bench endurance --seconds 300
    """
    del trace  # read by main
    report = _report(out, "endurance")
    growth = endurance_bench.measure(endurance_bench.EnduranceOptions(seconds=seconds), report, _say)
    plots.plot_endurance(report.path, out / "endurance.png")
    _conclude(growth, report, as_json=as_json, what="of what it was after the warm-up")


@app.command()
def stores(
    *,
    most_keys: Annotated[int, typer.Option("--most-keys", min=1_000, help="Largest number of keys.")] = 1_000_000,
    rounds: RoundsOption = 3,
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Compare the stores: saves and reads a second, rebuilding an index, a Spark checkpoint of 200 partitions.

    Example:
      anabranch bench stores --most-keys 100000
    """
    del trace  # read by main
    report = _report(out, "stores")
    keys = tuple(number for number in (1_000, 10_000, 100_000, 1_000_000) if number <= most_keys)
    figures = stores_bench.measure(stores_bench.StoresOptions(keys=keys, rounds=rounds), report, _say)
    plots.plot_stores(report.path, out / "stores.png")
    _conclude(figures, report, as_json=as_json, what="")


@app.command()
def start(
    *, rounds: RoundsOption = 3, out: OutOption = DEFAULT_OUT, as_json: JsonOption = False, trace: TraceOption = False
) -> None:
    """Seconds and CPU until a node has published something, with the archive of Spark's classes and without.

    Example:
      anabranch bench start --rounds 3
    """
    del trace  # read by main
    report = _report(out, "start")
    ensure(_say)
    ratios = starting_bench.measure(rounds, report, _say)
    _conclude(ratios, report, as_json=as_json, what="of a start without the archive")


@app.command()
def keeper(
    *, rounds: RoundsOption = 3, out: OutOption = DEFAULT_OUT, as_json: JsonOption = False, trace: TraceOption = False
) -> None:
    """Rows per second of a windowed count with a version of every epoch shipped to a log, and without.

    Example:
      anabranch bench keeper --rounds 3
    """
    del trace  # read by main
    report = _report(out, "keeper")
    ratios = keeping_bench.measure(rounds, report, _say)
    plots.plot_keeper(report.path, out / "keeper.png")
    _conclude(ratios, report, as_json=as_json, what="of the rows/s without the keeper")


@app.command()
def failover(
    *,
    kills: Annotated[int, typer.Option("--kills", min=1, help="Kills of each.")] = 20,
    only: Annotated[
        list[str] | None, typer.Option("--only", help=f"Of {', '.join(failover_bench.STRATEGIES)}; may be repeated.")
    ] = None,
    afresh: Annotated[bool, typer.Option("--afresh", help="Forget the kills that are in the report already.")] = False,
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Kill nodes, and see the gap that a reader sees: every strategy, and bare Spark in a restart loop.

    Takes hours with 20 kills of each; broken off and run again, it goes on.

    Examples:
      anabranch bench failover --kills 5 --only bare --only trailing
      anabranch bench failover
    """
    del trace  # read by main
    strategies = tuple(only or failover_bench.STRATEGIES)
    unknown = [name for name in strategies if name not in failover_bench.STRATEGIES]
    if unknown:
        raise PipelineError(
            f"there is no strategy {unknown[0]!r} to measure", hint=f"use {', '.join(failover_bench.STRATEGIES)}"
        )
    report = _report(out, "failover", afresh=afresh)
    ensure(_say)
    failover_bench.measure(failover_bench.FailoverOptions(strategies, kills), report, _say)
    plots.plot_failover(report.path, out / "failover.png")
    found = failover_bench.summary(report, strategies)
    _tell(found, report, as_json=as_json)


@app.command()
def chaos(
    *,
    runs: Annotated[int, typer.Option("--runs", min=1, help="How many runs in all.")] = 200,
    seconds: Annotated[float, typer.Option("--seconds", min=5, help="How long faults come in each run.")] = 20.0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="How many runs at a time.")] = 1,
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Run chaos many times, over strategies, kinds of state and faults; each run is settled by its number.

    Takes about two minutes a run; broken off and run again, it goes on.

    Examples:
      anabranch bench chaos --runs 200 --out bench-results
      anabranch bench chaos --runs 10 --jobs 2
    """
    del trace  # read by main
    report = _report(out, "chaos", afresh=False)
    ensure(_say)
    found = campaign_bench.measure(campaign_bench.CampaignOptions(runs=runs, seconds=seconds, jobs=jobs), report, _say)
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        _say(f"{found['held']} of {found['runs']} runs held; broken: {found['broken'] or 'none'}")
    if found["broken"]:
        raise typer.Exit(1)


@app.command()
def ksafe(  # noqa: PLR0913  every option of the command is a parameter
    *,
    only: Annotated[
        list[str] | None, typer.Option("--only", help=f"Of {', '.join(ksafe_bench.PARTS)}; may be repeated.")
    ] = None,
    most_k: Annotated[int, typer.Option("--most-k", min=1, max=2, help="Up to how many nodes may be lost.")] = 2,
    seconds: Annotated[float, typer.Option("--seconds", min=5, help="Seconds that count, per degree.")] = 30.0,
    kills: Annotated[int, typer.Option("--kills", min=1, help="How often k nodes are killed at once.")] = 10,
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Rows, latency and CPU for k = 0, 1, 2; gaps when k nodes are killed at once; latency with one replica slow.

    Examples:
      anabranch bench ksafe
      anabranch bench ksafe --only kills --most-k 1 --kills 3
    """
    del trace  # read by main
    parts = tuple(only or ksafe_bench.PARTS)
    unknown = [name for name in parts if name not in ksafe_bench.PARTS]
    if unknown:
        raise PipelineError(f"there is no part {unknown[0]!r}", hint=f"use {', '.join(ksafe_bench.PARTS)}")
    report = _report(out, "ksafe")
    ensure(_say)
    options = ksafe_bench.KSafeOptions(parts, most_k, seconds, kills)
    found = ksafe_bench.measure(options, report, _say)
    plots.plot_ksafe(report.path, out / "ksafe.png")
    _tell(found, report, as_json=as_json)


@app.command()
def overhead(
    *,
    seconds: Annotated[float, typer.Option("--seconds", min=10, help="Seconds that count, per strategy.")] = 60.0,
    rounds: RoundsOption = 1,
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """CPU, latency and bytes of every strategy while nothing fails, with the formulas of the literature beside them.

    Example:
      anabranch bench overhead --seconds 60
    """
    del trace  # read by main
    report = _report(out, "overhead")
    ensure(_say)
    found = overhead_bench.measure(overhead_bench.OverheadOptions(seconds, rounds), report, _say)
    plots.plot_overhead(report.path, out / "overhead.png")
    _tell(found, report, as_json=as_json)


def _report(out: Path, name: str, *, afresh: bool = True) -> Report:
    """Begin a report in place of the last one. A measurement that is told to end stops what it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report = Report(out, name)
    if afresh:
        report.path.unlink(missing_ok=True)
    return report


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _tell(found: dict[str, dict[str, float]], report: Report, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"strategies": found, "results": str(report.path)}) + "\n")
        return
    for name, figures in found.items():
        sys.stdout.write(f"{name}: {', '.join(f'{key} {value:g}' for key, value in figures.items())}\n")
    sys.stdout.write(f"results and plot: {report.path.parent}\n")


def _conclude(ratios: dict[str, float], report: Report, *, as_json: bool, what: str) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"ratios": ratios, "results": str(report.path)}) + "\n")
        return
    for name, ratio in ratios.items():
        sys.stdout.write(f"{name}: {ratio:,.2f} {what}".rstrip() + "\n")
    sys.stdout.write(f"results and plot: {report.path.parent}\n")
