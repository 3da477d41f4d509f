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
    if not nodes:
        raise AgentError(f"no node of {opened.path} answers", hint="`anabranch status` shows who is there")
    target = _target(nodes, unit, holder.node, to)
    began_s = time.monotonic()
    answer = ask(_address(opened, target), opened.token(), "take", {"unit": unit})
    if "error" in answer:
        raise AgentError(answer["error"], hint="it is starting: try again when `anabranch status` shows its units")
    first = _wait_for_output(opened, unit, (holder.generation, target), began_s + timeout)
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
        raise PipelineError(
            f"{unit!r} has nowhere to go: no other node is running",
            hint="run the pipeline with --nodes 2, or wait until the other node is back",
        )
    standing_by = [node for node in others if any(some["unit"] == unit for some in node["units"])]
    return str((standing_by or others)[0]["name"])


def _address(work: Work, node: str) -> str:
    for known in work.announced():
        if known.name == node:
            return known.address
    raise AgentError(f"node {node} is gone", hint="`anabranch status` shows who is there")


def _wait_for_output(work: Work, unit: str, move: tuple[int, str], deadline_s: float) -> int:
    """Wait until the target has published an epoch in a newer generation; return it."""
    channel, lease = work.channel(unit), work.lease(unit)
    before, target = move
    while time.monotonic() < deadline_s:
        holder = lease.holder()
        if holder is not None and holder.generation > before and holder.node != target:
            raise AgentError(
                f"{unit!r} is on {holder.node}, not on {target}: it was taken over in the meantime",
                hint="`anabranch status` shows who is there, and why",
            )
        last = channel.last_epoch()
        manifest = channel.manifest(last) if last >= 0 else None
        if manifest is not None and manifest.producer.generation > before:
            return last
        time.sleep(_LOOK_S)
    raise AgentError(
        f"the new primary of {unit!r} has published nothing yet",
        hint="it may still be starting, or there is no input; `anabranch status` shows it",
    )
