"""`anabranch restore`: rebuild a work directory elsewhere, from stores."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli.places import JsonOption, TraceOption
from anabranch.rebuilding import rebuild


def restore(
    stores: Annotated[list[str], typer.Argument(metavar="STORE…", help="log:DIR, files:DIR or redis://HOST:PORT/DB.")],
    *,
    work: Annotated[Path, typer.Option("--work", help="The new work directory; must be empty or not exist.")],
    of: Annotated[str | None, typer.Option("--of", help="Which work directory, if the stores keep several.")] = None,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Rebuild a whole work directory from the stores its pipeline was kept in.

    Every unit goes on after the newest version that joins the others; what came later is executed again.

    Examples:
      anabranch restore log:/backup/orders --work /data/orders
      anabranch restore redis://backup:6379/0 --work /data/orders
    """
    del trace  # read by main
    epochs = rebuild(stores, work.absolute(), of=of, say=_say if not as_json else _say_nothing)
    if as_json:
        sys.stdout.write(json.dumps({"work": str(work), "units": epochs}) + "\n")
    else:
        sys.stdout.write(f"restored to {work}; go on with: anabranch run FILE --work {work}\n")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _say_nothing(text: str) -> None:
    del text
