"""`anabranch status`: who runs what, how far it is, and what went wrong."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from anabranch.cli.places import JsonOption, TraceOption, WorkOption, open_work
from anabranch.status import SILENT, collect


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
    there = [node for node in found["nodes"] if node["alive"] or node.get("phase") == SILENT]
    state = "running" if alive else SILENT if there else "not running"
    console.print(f"pipeline {found['pipeline'] or '(never built)'}: {state}", highlight=False)
    if there:
        published = {channel["name"]: channel["last"] for channel in found["channels"]}
        console.print(_units(there, published))
    for name, promised in found["promises"].items():
        how = "unprotected" if promised["strategy"] == "none" else promised["strategy"]
        text = f"{name}: {promised['promised']} ({promised['class']}, {how})"
        console.print(text, highlight=False, markup=False)
    for some in found["redundancy"] if alive else ():
        text = _redundancy(some)
        console.print(text, highlight=False, markup=False, style="yellow" if text.startswith(_WARNING) else None)
    console.print(_channels(found["channels"]))
    if found["failovers"]:
        console.print("takeovers", style="italic")
    for failover in found["failovers"]:
        console.print(_failover(failover), highlight=False, markup=False, soft_wrap=True)
    for event in found["events"]:
        details = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("kind", "at"))
        console.print(f"{event['kind']}: {details}", highlight=False, markup=False)


def _units(nodes: list[dict[str, Any]], published: dict[str, int | None]) -> Table:
    table = Table(title="units")
    for heading in ("node", "unit", "role", "epoch", "lag", "kept"):
        table.add_column(heading)
    for node in nodes:
        who = f"{node['name']} ({node['pid']})" + (f", {node['zone']}" if node["zone"] else "")
        for unit in node["units"]:
            at = unit["epoch"]
            lag = "–" if at < 0 else str(max(0, (published.get(unit["unit"]) or 0) - at))
            kept = "\n".join(map(_kept, unit.get("stores", []))) or "–"
            table.add_row(who, unit["unit"], _role(unit), "–" if at < 0 else str(at), lag, kept)
        if not node["units"]:
            table.add_row(who, "–", node["phase"], "–", "–", "–")
    return table


def _role(unit: dict[str, Any]) -> str:
    """Say in which generation a unit is led, or how it stands by; one without state waits, or warms its node up."""
    if unit["role"] == "primary":
        return f"primary, generation {unit['generation']}"
    return f"{unit['role']}, {'warming up' if unit.get('scratch') else unit['temperature']}"


def _redundancy(some: dict[str, Any]) -> str:
    """Say how many nodes may be lost now, and warn if these are fewer than asked for, or all in one zone."""
    present, wanted, zones = some["present"], some["wanted"], set(some["zones"])
    text = f"{some['unit']}: on {present} of {wanted} nodes, survives the loss of {max(0, present - 1)} at once"
    lacking = [f"asked for: {wanted - 1}"] if present < wanted else []
    if present > 1 and len(zones) == 1 and None not in zones:
        lacking.append(f"not of zone {zones.pop()}, where all are")
    return f"{_WARNING}{text} ({'; '.join(lacking)})" if lacking else text


_WARNING = "warning: "
_PHASES = {
    "detected_s": "noticed",
    "restore_s": "restored",
    "first_output_s": "first output",
    "catch_up_s": "caught up",
    "takeover_s": "all",
}


def _failover(event: dict[str, Any]) -> str:
    """Say who took what from whom, and below it how long that took, as far as it is known."""
    when = time.strftime("%H:%M:%S", time.localtime(event["at"]))
    text = f"{when} {event['unit']}: {event['from']} → {event['to']}, generation {event['generation']}"
    phases = ", ".join(f"{name} {event[key]:.2f}" for key, name in _PHASES.items() if event[key] is not None)
    return f"{text}, {event['reason']}" + (f"\n    {phases} s" if phases else "")


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
