"""`anabranch status`: who runs what, how far it is, and what went wrong."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from anabranch.cli.places import JsonOption, TraceOption, WorkOption, open_work
from anabranch.status import collect


def status(*, work: WorkOption = None, as_json: JsonOption = False, trace: TraceOption = False) -> None:
    """Show nodes, units and channels of a pipeline.

    Examples:
      anabranch status
      anabranch status --work /data/orders --json
    """
    del trace  # read by main
    found = collect(open_work(work))
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    console = Console()
    alive = [node for node in found["nodes"] if node["alive"]]
    console.print(f"pipeline {found['pipeline']}: {'running' if alive else 'not running'}", highlight=False)
    if alive:
        console.print(_units(alive))
    console.print(_channels(found["channels"]))
    if found["failovers"]:
        console.print(_failovers(found["failovers"]))
    for event in found["events"]:
        details = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("kind", "at"))
        console.print(f"{event['kind']}: {details}", highlight=False, markup=False)


def _units(nodes: list[dict[str, Any]]) -> Table:
    table = Table(title="units")
    for heading in ("node", "process", "unit", "role", "generation", "epoch", "kept"):
        table.add_column(heading)
    for node in nodes:
        for unit in node["units"]:
            cells = (node["name"], node["pid"], unit["unit"], unit["role"], unit["generation"], unit["epoch"])
            table.add_row(*map(str, cells), "\n".join(map(_kept, unit.get("stores", []))) or "–")
    return table


def _failovers(failovers: list[dict[str, Any]]) -> Table:
    table = Table(title="takeovers")
    phases = {"noticed": "detected_s", "restored": "restore_s", "first output": "first_output_s"}
    phases |= {"caught up": "catch_up_s", "all": "takeover_s"}
    for heading in ("when", "unit", "from", "to", "generation", "reason", *phases):
        table.add_column(heading)
    for event in failovers:
        when = time.strftime("%H:%M:%S", time.localtime(event["at"]))
        cells = (event["unit"], event["from"], event["to"], event["generation"], event["reason"])
        seconds = ("–" if event[key] is None else f"{event[key]:.2f} s" for key in phases.values())
        table.add_row(when, *map(str, cells), *seconds)
    return table


def _kept(store: dict[str, Any]) -> str:
    """Say up to which epoch a store can restore a unit, and what is wrong with it, if anything."""
    epoch = store["shipped_epoch"]
    text = f"{store['store']}: {'nothing yet' if epoch < 0 else f'epoch {epoch}'}"
    if store["lag_epochs"]:
        text += f", {store['lag_epochs']} behind"
    return text + (f" ({store['error']})" if store["error"] else "")


def _channels(channels: list[dict[str, Any]]) -> Table:
    table = Table(title="channels")
    for heading in ("channel", "first", "last", "rows kept", "pending", "consumers"):
        table.add_column(heading)
    for channel in channels:
        rows = "–" if channel["rows"] is None else f"{channel['rows']:,}"
        readers = ", ".join(f"{name} at {epoch if epoch >= 0 else '–'}" for name, epoch in channel["consumers"].items())
        cells = ["–" if channel[key] is None else str(channel[key]) for key in ("name", "first", "last")]
        table.add_row(*cells, rows, str(channel["pending"]), readers)
    return table
