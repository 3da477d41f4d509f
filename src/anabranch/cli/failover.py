"""`anabranch failover`: move a unit to another node on purpose."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from anabranch.agent import ask
from anabranch.cli.places import JsonOption, TraceOption, WorkOption, open_work
from anabranch.errors import AgentError, PipelineError
from anabranch.status import nodes_of
from anabranch.work import Work

_LOOK_S = 0.05


def failover(
    unit: Annotated[str, typer.Argument(help="The unit to move; `anabranch status` lists them.")],
    *,
    to: Annotated[str | None, typer.Option("--to", metavar="NODE", help="Where to; by default its standby.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait for the new primary.")] = 120.0,
    work: WorkOption = None,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Move a unit to another node: the old primary goes on until the new one is close behind it.

    Examples:
      anabranch failover counts
      anabranch failover counts --to node-2 --work /data/orders
    """
    del trace  # read by main
    opened = open_work(work)
    nodes = [node for node in nodes_of(opened) if node["alive"]]
    holder = opened.lease(unit).holder() if unit in opened.channel_names() else None
    if holder is None:
        units = sorted({some["unit"] for node in nodes for some in node["units"]})
        raise PipelineError(f"there is no unit {unit!r}", hint=f"there are: {', '.join(units) or 'none running'}")
    target = _target(nodes, unit, holder.node, to)
    began_s = time.monotonic()
    answer = ask(_address(opened, target), opened.token(), "take", {"unit": unit})
    if "error" in answer:
        raise AgentError(answer["error"])
    first = _wait_for_output(opened, unit, holder.generation, began_s + timeout)
    took_s = time.monotonic() - began_s
    moved = {"unit": unit, "from": holder.node, "to": target, "epoch": first, "seconds": round(took_s, 3)}
    text = f"{unit} moved from {holder.node} to {target} with epoch {first}, {took_s:.1f} s after the request"
    sys.stdout.write((json.dumps(moved) if as_json else text) + "\n")


def _target(nodes: list[dict[str, Any]], unit: str, holder: str, to: str | None) -> str:
    others = [node for node in nodes if node["name"] != holder]
    if to is not None:
        if to == holder:
            raise PipelineError(f"{unit!r} is on {to} already", hint="name another node, or none")
        if to not in [node["name"] for node in others]:
            names = ", ".join(node["name"] for node in others) or "no other node"
            raise PipelineError(f"there is no node {to!r} that is running", hint=f"there is {names}")
        return to
    if not others:
        raise PipelineError(f"{unit!r} has nowhere to go", hint="run the pipeline with --nodes 2")
    standing_by = [node for node in others if any(some["unit"] == unit for some in node["units"])]
    return str((standing_by or others)[0]["name"])


def _address(work: Work, node: str) -> str:
    for known in work.announced():
        if known.name == node:
            return known.address
    raise AgentError(f"node {node} is gone", hint="`anabranch status` shows who is there")


def _wait_for_output(work: Work, unit: str, generation: int, deadline_s: float) -> int:
    """Wait until a newer generation has published an epoch; return it."""
    channel = work.channel(unit)
    while time.monotonic() < deadline_s:
        last = channel.last_epoch()
        manifest = channel.manifest(last) if last >= 0 else None
        if manifest is not None and manifest.producer.generation > generation:
            return last
        time.sleep(_LOOK_S)
    raise AgentError(
        f"the new primary of {unit!r} has published nothing yet",
        hint="it may still be starting, or there is no input; `anabranch status` shows it",
    )
