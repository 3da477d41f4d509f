"""`anabranch stop`: end a running pipeline."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from anabranch.agent import ask
from anabranch.cli.places import JsonOption, TraceOption, WorkOption, open_work
from anabranch.errors import AgentError
from anabranch.presence import ask_to_stop

_LOOK_S = 0.1


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
    if not asked:
        raise AgentError(f"no node of {opened.path} is running", hint="`anabranch status` shows the work directory")
    waiting = dict(asked)
    while waiting:
        time.sleep(_LOOK_S)
        for name, address in list(waiting.items()):
            try:
                ask(address, opened.token(), "ping")
            except AgentError:
                del waiting[name]
    answer = {"stopped": sorted(asked), "now": now}
    sys.stdout.write((json.dumps(answer) if as_json else f"stopped {', '.join(sorted(asked))}") + "\n")
