"""What people see of a work directory: nodes, units, channels, and what went wrong. Read from files and agents only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anabranch.agent import ask
from anabranch.errors import AgentError, Trimmed
from anabranch.work import Work

_TAKEOVER = "took over"


def collect(work: Work) -> dict[str, Any]:
    """Return the status as one JSON object; see the documentation of `anabranch status --json`."""
    identity = work.identity() or {}
    history = work.history()
    return {
        "pipeline": identity.get("pipeline"),
        "nodes": [_node(work, path) for path in work.announcements()],
        "channels": [channel_status(work, name, identity) for name in work.channel_names()],
        "failovers": [_failover(event) for event in history if event["kind"] == _TAKEOVER][-20:],
        "events": [event for event in history if event["kind"] not in ("started", _TAKEOVER)][-20:],
    }


def _failover(event: dict[str, Any]) -> dict[str, Any]:
    fields = ("from", "to", "generation", "reason", "takeover_s", "at")
    return {"unit": event.get("role"), **{name: event.get(name) for name in fields}}


def _node(work: Work, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        record = {}
    found = {"name": path.stem, "pid": record.get("pid"), "alive": False, "zone": record.get("zone"), "units": []}
    try:
        answer = ask(record["address"], work.token(), "status")
    except (AgentError, KeyError):
        return found
    return {**found, "alive": True, "phase": answer["phase"], "units": answer["units"]}


def channel_status(work: Work, name: str, identity: dict[str, Any]) -> dict[str, Any]:
    """Return one channel's extent and how far its consumers are; `rows` counts the epochs that are kept."""
    channel = work.channel(name)
    slots = channel.ledger.slots()
    rows = 0
    known = True
    for slot in slots:
        try:
            manifest = channel.manifest(slot)
        except Trimmed:
            continue  # gone since the listing
        if manifest is None or manifest.rows is None:
            known = False
        else:
            rows += manifest.rows
    readers = [unit for unit, fields in identity.get("segments", {}).items() if name in fields["inputs"]]
    readers += [sink for sink, stream in identity.get("sinks", {}).items() if stream == name]
    received = {unit: max(channel.received(unit), channel.safe(unit)) for unit in readers}
    last = slots[-1] if slots else -1
    return {
        "name": name,
        "first": slots[0] if slots else None,
        "last": slots[-1] if slots else None,
        "rows": rows if known else None,
        "pending": last - min(received.values()) if received else 0,
        "consumers": received,
    }
