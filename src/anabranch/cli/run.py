"""`anabranch run`: start a pipeline and watch it."""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from anabranch.cli.places import DEFAULT_ROOT, JsonOption, TraceOption, WorkOption, settings_of
from anabranch.errors import PipelineError
from anabranch.launcher import Fleet, NodeEnded
from anabranch.loading import load_pipeline
from anabranch.node_options import NodeOptions
from anabranch.placement import check_nodes
from anabranch.preparation.making import Background
from anabranch.presence import ask_to_stop
from anabranch.replicas import WAITS_FOR_STORE
from anabranch.segments import cut, override, strategies
from anabranch.watching import News, Watch
from anabranch.work import Work

# How long nodes that are told to end may take before the command returns without them.
_ENDING_S = 10.0
_LOOK_S = 0.1
_LINE_EVERY_S = 5.0


def run(  # noqa: PLR0913  every option of the command is a parameter
    file: Annotated[Path, typer.Argument(help="Python file that defines one pipeline.")],
    *,
    work: WorkOption = None,
    drain: Annotated[bool, typer.Option("--drain", help="Take what the sources hold now, deliver it, end.")] = False,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many nodes, each a Spark application.")] = 1,
    seconds: Annotated[float | None, typer.Option("--seconds", min=0, help="Stop, in order, after this long.")] = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", metavar="NAME", help="Protect every segment this way, whatever the pipeline says."),
    ] = None,
    master: Annotated[
        str, typer.Option("--master", help="Spark master: local[2], spark://…, yarn, k8s://…")
    ] = "local[*]",
    setting: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A Spark setting.")] = None,
    zone: Annotated[
        list[str] | None,
        typer.Option(
            "--zone", help="Zone of a node, such as a rack; repeated, one per node, and again from the first."
        ),
    ] = None,
    retain: Annotated[str | None, typer.Option("--retain", metavar="N|all", help="Epochs to keep for readers.")] = None,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Run a pipeline: [bold]anabranch run wordcount.py --drain[/bold].

    The pipeline runs in a process of its own; Ctrl-C stops it in order (again: at once). Killed at any moment and run
    again, it goes on where it was.

    Examples:
      anabranch run wordcount.py --seconds 30
      anabranch run wordcount.py --nodes 2 --strategy active
      anabranch run wordcount.py --nodes 3 --strategy ksafe --zone left --zone right
      anabranch run orders.py --drain --work /data/orders --set spark.driver.memory=2g
      anabranch run orders.py --master spark://host:7077
    """
    del trace  # read by main
    pipeline = load_pipeline(file)
    graph = pipeline.graph()
    segments = cut(graph)
    # Refuses a name that does not exist.
    protected = strategies(graph, segments) if strategy is None else override(strategy, segments, "memory:")
    check_nodes({name: some.copies for name, some in protected.items() if some.copies is not None}, nodes)
    directory = work or DEFAULT_ROOT / pipeline.name
    options = NodeOptions(
        file=file.absolute(),
        work=directory.absolute(),
        master=master,
        drain=drain,
        settings=settings_of(setting or []),
        retain_epochs=_retain(retain),
        session=uuid.uuid4().hex,
        strategy=strategy,
    )
    fleet = Fleet(options, nodes, zones=tuple(zone or ()))
    _look_after(fleet, _View(Watch(Work.open(directory)), as_json=as_json), options, nodes, seconds)
    for error in fleet.away.values():
        sys.stderr.write(f"warning: a node ended before the others: {error.message}\n")


def _look_after(fleet: Fleet, view: _View, options: NodeOptions, nodes: int, seconds: float | None) -> None:
    """Keep the nodes going, and show what they do, until all have ended."""
    work = Work.open(options.work)
    news = News(work)
    stops = 0
    started_s = time.monotonic()
    with view, Background(wanted=nodes > 1) as preparation:
        running = True
        while running:
            try:
                running = fleet.poll()
                view.show(fleet.restarts)
                for event in news.look():
                    if event.get("kind") == WAITS_FOR_STORE:
                        view.tell(f"{event.get('unit')} waits for its store: {event.get('error')}")
                if seconds is not None and stops == 0 and time.monotonic() - started_s >= seconds:
                    stops += len(ask_to_stop(work, now=False).heard)
                # Once all nodes are there: until then they need the CPU.
                if preparation.wanted and len(work.announced()) >= nodes and preparation.start():
                    view.tell("making an archive of Spark's classes, once: from then on nodes start in half the time")
                time.sleep(_LOOK_S)
            except KeyboardInterrupt:
                stops += len(ask_to_stop(work, now=stops > 0).heard)
                if stops == 0:
                    fleet.terminate()
            except NodeEnded:
                fleet.terminate()
                fleet.wait(_ENDING_S)
                raise
    view.finish(fleet.restarts)


def _retain(text: str | None) -> int | Literal["all"] | None:
    if text is None or text == "all":
        return "all" if text else None
    if not text.isdigit() or int(text) < 1:
        raise PipelineError(f"--retain {text!r} is not usable", hint="give a number of epochs, or all")
    return int(text)


class _View:
    """Shows progress: a live table on a terminal, a line now and then elsewhere, JSON lines on request."""

    def __init__(self, watch: Watch, *, as_json: bool) -> None:
        self._watch = watch
        self._as_json = as_json
        self._console = Console(stderr=True)
        live = not as_json and self._console.is_terminal
        self._live = Live(console=self._console, refresh_per_second=4, transient=True) if live else None
        self._shown_s = time.monotonic()

    def __enter__(self) -> _View:  # noqa: PYI034  private
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, restarts: int) -> None:
        """Look, and say something if it is time to."""
        seen = self._watch.look()
        if self._live is not None:
            self._live.update(_table(seen, restarts))
            return
        every_s = 1.0 if self._as_json else _LINE_EVERY_S
        if time.monotonic() - self._shown_s >= every_s:
            self._shown_s = time.monotonic()
            self._say(seen, restarts, done=False)

    def tell(self, text: str) -> None:
        """Say something that people may want to know."""
        if not self._as_json:
            self._console.print(text, highlight=False)

    def finish(self, restarts: int) -> None:
        """Say how it ended."""
        self._say(self._watch.look(), restarts, done=True)

    def _say(self, seen: list[dict[str, Any]], restarts: int, *, done: bool) -> None:
        if self._as_json:
            sys.stdout.write(json.dumps({"done": done, "restarts": restarts, "channels": seen}) + "\n")
            sys.stdout.flush()
            return
        parts = [
            f"{row['name']}: epoch {row['last']}" + ("" if row["rows"] is None else f", {row['rows']:,} rows")
            for row in seen
            if row["last"] is not None
        ]
        restarted = f"; node restarted {restarts} times" if restarts else ""
        self._console.print(("done. " if done else "") + ("; ".join(parts) or "starting…") + restarted, highlight=False)


def _table(seen: list[dict[str, Any]], restarts: int) -> Table:
    title = "starting Spark…" if not any(row["last"] is not None for row in seen) else None
    table = Table(title=title, caption=f"node restarted {restarts} times" if restarts else None)
    for heading in ("channel", "epoch", "rows", "rows/s", "epochs/s"):
        table.add_column(heading, justify="left" if heading == "channel" else "right")
    for row in seen:
        figures = [_figure(row[key]) for key in ("last", "rows", "rows_per_s")]
        table.add_row(row["name"], *figures, f"{row['epochs_per_s']:.1f}")
    return table


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"
