"""`anabranch stop`: end a running pipeline."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from anabranch.agent import ask
from anabranch.cli.places import JsonOption, TraceOption, WorkOption, open_work
from anabranch.errors import AgentError, AgentGone
from anabranch.presence import ask_to_stop
from anabranch.work import Announcement, Work

_LOOK_S = 0.1
# A node that ends may be too busy to answer; one that says nothing for this long is not ending.
_SILENT_S = 30.0


def stop(
    *,
    work: WorkOption = None,
    now: Annotated[
        bool, typer.Option("--now", help="End at once; what was taken is delivered by the next run.")
    ] = False,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Stop taking input, deliver everything taken, and end all nodes.

    Examples:
      anabranch stop
      anabranch stop --now --work /data/orders
    """
    del trace  # read by main
    opened = open_work(work)
    asked = ask_to_stop(opened, now=now)
    if not asked.heard and not asked.silent:
        raise AgentError(f"no node of {opened.path} is running", hint="`anabranch status` shows the work directory")
    silent = [*asked.silent, *_wait_for_end(opened, asked.heard)]
    stopped = sorted({node.name for node in asked.heard} - {node.name for node in silent})
    answer = {"stopped": stopped, "silent": sorted(node.name for node in silent), "now": now}
    if as_json:
        sys.stdout.write(json.dumps(answer) + "\n")
    elif stopped:
        sys.stdout.write(f"stopped {', '.join(stopped)}\n")
    if silent:
        who = " and ".join(f"{node.name} (process {node.pid})" for node in silent)
        raise AgentError(
            f"{who} does not answer, and will end when the request is heard",
            hint="it may be paused or overloaded: let it go on (kill -CONT), or kill it",
        )


def _wait_for_end(work: Work, nodes: list[Announcement]) -> list[Announcement]:
    """Wait until nodes are gone; return those that no longer answer and are not gone either."""
    heard_s = {node: time.monotonic() for node in nodes}
    while any(time.monotonic() - at_s < _SILENT_S for at_s in heard_s.values()):
        time.sleep(_LOOK_S)
        for node in list(heard_s):
            try:
                ask(node.address, work.token(), "ping")
                heard_s[node] = time.monotonic()
            except AgentGone:
                del heard_s[node]
            except AgentError:
                continue
    return list(heard_s)
