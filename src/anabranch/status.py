"""What people see of a work directory: nodes, units, channels, and what went wrong. Read from files and agents only."""

from __future__ import annotations

from typing import Any

from anabranch.agent import ask
from anabranch.errors import AgentError, AgentGone, Trimmed
from anabranch.work import Announcement, Work

_TAKEOVER = "took over"
_RECOVERY = "recovered"
_MOST_BEHIND = 10
# What is said of a node that is there but does not answer: it is paused, overloaded or cut off.
SILENT = "does not answer"


def collect(work: Work) -> dict[str, Any]:
    """Return the status as one JSON object; see the documentation of `anabranch status --json`."""
    identity = work.identity() or {}
    history = work.history()
    nodes, promises = nodes_of(work), work.promises()
    channels = [channel_status(work, name, identity) for name in work.channel_names()]
    return {
        "pipeline": identity.get("pipeline"),
        "nodes": nodes,
        "promises": promises,
        "redundancy": redundancy(nodes, promises, {channel["name"]: channel["last"] for channel in channels}),
        "channels": channels,
        "failovers": failovers_in(history)[-20:],
        "events": [event for event in history if event["kind"] not in ("started", _TAKEOVER, _RECOVERY)][-20:],
    }


def redundancy(
    nodes: list[dict[str, Any]], promises: dict[str, dict[str, Any]], published: dict[str, int | None]
) -> list[dict[str, Any]]:
    """Return, for units that run on several nodes at once, on how many they should, on how many they do, in what zones.

    One that hangs, or is far behind for another reason, could not go on by itself, and does not count. Pure.
    """
    zones: dict[str, list[str | None]] = {}
    for node in nodes:
        for unit in node["units"] if node["alive"] else ():
            behind = (published.get(unit["unit"]) or 0) - unit["epoch"]
            if not unit.get("scratch") and behind <= _MOST_BEHIND:
                zones.setdefault(unit["unit"], []).append(node["zone"])
    wanted = {name: promised["copies"] for name, promised in promises.items() if "copies" in promised}
    return [
        {"unit": name, "wanted": count, "present": len(zones.get(name, ())), "zones": zones.get(name, [])}
        for name, count in wanted.items()
    ]


def failovers_in(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the takeovers with their phases; a phase is None while it lasts, and for roles other than units."""
    ended = {(event["role"], event["generation"]): event for event in history if event["kind"] == _RECOVERY}
    found = []
    for event in history:
        if event["kind"] != _TAKEOVER:
            continue
        phases = ended.get((event["role"], event["generation"]), {})
        found.append(
            {
                "unit": event["role"],
                **{name: event.get(name) for name in ("from", "to", "generation", "reason", "detected_s", "at")},
                "takeover_s": phases.get("total_s"),
                **{name: phases.get(name) for name in ("restore_s", "first_output_s", "catch_up_s")},
            }
        )
    return found


def nodes_of(work: Work) -> list[dict[str, Any]]:
    """Return what the nodes say of themselves; one that does not answer is silent, or gone, and not alive."""
    return [_node(work, node) for node in work.announced()]


def _node(work: Work, node: Announcement) -> dict[str, Any]:
    found = {"name": node.name, "pid": node.pid, "alive": False, "zone": node.zone, "units": []}
    try:
        answer = ask(node.address, work.token(), "status")
    except AgentGone:
        return found
    except AgentError:
        return {**found, "phase": SILENT}
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
