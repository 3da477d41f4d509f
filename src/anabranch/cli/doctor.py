"""`anabranch doctor`: look at a directory or a store, and say what is wrong."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli.places import JsonOption, TraceOption
from anabranch.doctor.doctor import look, repair

UNSOUND = 8


def doctor(
    place: Annotated[str, typer.Argument(help="A work directory, a checkpoint directory of any query, or a store.")],
    *,
    mend: Annotated[bool, typer.Option("--repair", help="Do what cannot lose data, after a backup.")] = False,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Look at a work directory, any Structured Streaming checkpoint, or a store; exit code 8 if it is damaged.

    Examples:
      anabranch doctor .anabranch/orders
      anabranch doctor /data/checkpoints/orders --repair
      anabranch doctor log:/backup/orders
    """
    del trace  # read by main
    findings = look(place)
    removed: list[Path] = []
    backup = Path(f"{place.rstrip('/')}.doctor-{time.strftime('%Y%m%d-%H%M%S')}")
    if mend and any(finding.remove for finding in findings):
        removed = repair(place, findings, backup)
        findings = look(place)
    if as_json:
        report = {"findings": [finding.to_json() for finding in findings], "removed": [str(path) for path in removed]}
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        for path in removed:
            sys.stdout.write(f"removed {path} (a copy is in {backup})\n")
        for finding in findings:
            sys.stdout.write(f"{finding.severity}: {finding.where}: {finding.what}\n")
            if finding.advice:
                sys.stdout.write(f"        {finding.advice}\n")
        if not findings:
            sys.stdout.write(f"{place} is sound\n")
    if any(finding.severity == "damage" for finding in findings):
        raise typer.Exit(UNSOUND)
