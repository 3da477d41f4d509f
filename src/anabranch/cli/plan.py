"""`anabranch plan`: say, before anything runs, what a pipeline will survive."""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from anabranch.assembly import Assembly
from anabranch.cli.places import JsonOption, TraceOption, settings_of
from anabranch.guarantee.verdict import SegmentVerdict, judged, refuse_less
from anabranch.loading import load_pipeline
from anabranch.pipeline import Graph
from anabranch.segments import cut, guarantees, override, strategies
from anabranch.session import SessionOptions, build_session
from anabranch.strategies import PassiveStandby
from anabranch.work import Work

_STORE = "log:store"


def plan(
    file: Annotated[Path, typer.Argument(help="Python file that defines one pipeline.")],
    *,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", metavar="NAME", help="Protect every segment this way, whatever the pipeline says."),
    ] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A Spark setting.")] = None,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Show the segments of a pipeline, their classes, and what readers of its output are promised.

    Spark analyses the steps; nothing is read, and nothing is written. Exit code 2 if the pipeline asks for more than it
    can have: then the expression that spoils it is named, where it stands, and what to change.

    Examples:
      anabranch plan wordcount.py
      anabranch plan wordcount.py --strategy upstream
      anabranch plan orders.py --json
    """
    said = io.StringIO()
    try:
        # What the user's own code prints is neither the tree nor the JSON.
        with redirect_stdout(said):
            graph = load_pipeline(file).graph()
            with nullcontext() if trace else _without_noise():
                verdicts, took_s = _verdicts(graph, file, strategy, settings_of(setting or []))
    finally:
        sys.stderr.write(said.getvalue())
    if as_json:
        sys.stdout.write(json.dumps({**_as_json(graph, verdicts), "planned_s": round(took_s, 3)}) + "\n")
    else:
        Console(highlight=False).print(_tree(graph, verdicts))
    refuse_less(verdicts)


@contextmanager
def _without_noise() -> Iterator[None]:
    """Keep what Spark says while it starts and ends from people who want to read a plan; errors are told by main."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as noise:
        os.dup2(noise.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _verdicts(
    graph: Graph, file: Path, strategy: str | None, settings: dict[str, str]
) -> tuple[dict[str, SegmentVerdict], float]:
    """Return the verdicts, and how long they took once Spark was there."""
    segments = cut(graph)
    named = strategies(graph, segments) if strategy is None else override(strategy, segments, _STORE)
    for node in graph.sources.values():
        node.source.check()
    spark = build_session(
        SessionOptions(
            name=f"anabranch plan {graph.name}",
            master="local[1]",
            timezone=graph.settings.timezone,
            state_partitions=1,
            settings={**graph.settings.spark, **settings},
            module_directory=file.absolute().parent,
        )
    )
    began_s = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="anabranch-plan-") as directory:
            plans = Assembly(spark, graph, segments, Work.create(Path(directory))).build_all()
        built = {name: made.built for name, made in plans.items()}
        store = _STORE if strategy is None else None
        return judged(built, named, guarantees(graph, segments), store), time.monotonic() - began_s
    finally:
        spark.stop()


def _tree(graph: Graph, verdicts: dict[str, SegmentVerdict]) -> Tree:
    held = all(verdict.holds for verdict in verdicts.values())
    tree = Tree(f"[bold]{graph.name}[/bold]: {'[green]can run[/green]' if held else '[red]is refused[/red]'}")
    for name, verdict in verdicts.items():
        tree.add(_segment(name, verdict))
    for sink in graph.sinks.values():
        tree.add(f"sink {sink.name}: {sink.sink.promise}")
    return tree


def _segment(name: str, verdict: SegmentVerdict) -> Tree:
    segment, found = verdict.built.segment, verdict.classification
    steps = " → ".join(step.name for step in segment.steps)
    tree = Tree(f"segment [bold]{name}[/bold] ({steps}), reads {', '.join(segment.inputs)}")
    decided = found.decided_by
    reason = (
        f", because of {decided.what}: {decided.why}" if decided is not None else ": no state, always the same rows"
    )
    where = f" ({verdict.place})" if verdict.place is not None and decided is not None and decided.word else ""
    tree.add(f"class     {found.kind}{reason}{where}")
    tree.add(f"state     {_state(verdict)}")
    tree.add(f"protected {_how(verdict)}: {verdict.own}; {verdict.own.why}")
    asked = f"asked for {verdict.wanted}, " if verdict.wanted else ""
    colour = "green" if verdict.holds else "red"
    weaker = f", because of {verdict.weakened_by}" if verdict.weakened_by is not None else ""
    kept = "nothing: it is refused" if verdict.kept is None else str(verdict.kept)
    tree.add(f"readers   {asked}promised [{colour}]{kept}[/{colour}]{weaker}")
    for note in found.notes:
        tree.add(f"note      {note}")
    table = Table("strategy", "would be", "because", box=None, pad_edge=False)
    for other, promised in verdict.alternatives(_STORE).items():
        table.add_row(other, str(promised), promised.why)
    tree.add(table)
    return tree


def _how(verdict: SegmentVerdict) -> str:
    strategy = verdict.strategy
    if strategy.name == "none":
        return "no strategy"
    release = "" if strategy.policy == "leader" else f', release="{strategy.policy}"'
    store = ", with a store in the work directory" if isinstance(strategy, PassiveStandby) else ""
    return f"{type(strategy).__name__}{release}" + (f", chosen for it{store}" if verdict.chosen else "")


def _state(verdict: SegmentVerdict) -> str:
    span, unmergeable = verdict.built.span, verdict.built.unmergeable
    if not span.stateful:
        return "none"
    kept = f"rows up to {span.ms / 1000:g} s older than the watermark" if span.ms is not None else span.reason
    merging = "epochs may be merged" if unmergeable is None else f"epochs may not be merged ({unmergeable})"
    return f"{kept}; {merging}"


def _as_json(graph: Graph, verdicts: dict[str, SegmentVerdict]) -> dict[str, Any]:
    return {
        "pipeline": graph.name,
        "holds": all(verdict.holds for verdict in verdicts.values()),
        "segments": [_segment_as_json(name, verdict) for name, verdict in verdicts.items()],
        "sinks": [{"name": s.name, "reads": s.stream, "promise": s.sink.promise} for s in graph.sinks.values()],
    }


def _segment_as_json(name: str, verdict: SegmentVerdict) -> dict[str, Any]:
    segment, span, place = verdict.built.segment, verdict.built.span, verdict.place
    return {
        "segment": name,
        "steps": [step.name for step in segment.steps],
        "reads": list(segment.inputs),
        "class": str(verdict.classification.kind),
        "findings": [
            {"class": str(some.kind), "what": some.what, "why": some.why, "change": some.change}
            for some in verdict.classification.findings
        ],
        "place": {"step": place.step, "file": place.file, "line": place.line} if place is not None else None,
        "notes": list(verdict.classification.notes),
        "state": {"stateful": span.stateful, "span_ms": span.ms, "unbounded": span.reason or None},
        "unmergeable": verdict.built.unmergeable,
        "strategy": verdict.strategy.name,
        "release": verdict.strategy.policy,
        "chosen": verdict.chosen,
        "wanted": verdict.wanted,
        "guarantee": str(verdict.own),
        "promised": str(verdict.kept) if verdict.kept is not None else "refused",
        "weakened_by": verdict.weakened_by,
        "holds": verdict.holds,
        "alternatives": {
            other: {"guarantee": str(promised), "why": promised.why}
            for other, promised in verdict.alternatives(_STORE).items()
        },
    }
