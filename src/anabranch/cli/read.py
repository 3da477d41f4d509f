"""`anabranch read`: the rows of a channel, epoch by epoch, as JSON lines."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from anabranch.cli.places import JsonOption, TraceOption, WorkOption, open_work
from anabranch.reading import read_channel
from anabranch.sinks.directory import json_line


def read(
    channel: Annotated[str, typer.Argument(help="Name of a step, a source, or SOURCE.rejects.")],
    *,
    work: WorkOption = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new epochs until interrupted.")] = False,
    after: Annotated[
        int | None, typer.Option("--after", help="Begin after this epoch [default: the oldest kept]")
    ] = None,
    as_json: JsonOption = False,
    trace: TraceOption = False,
) -> None:
    """Print the rows of a channel, one JSON object a line; with --json each line also names its epoch.

    Examples:
      anabranch read counts
      anabranch read counts --follow --after 41 --json
    """
    del trace  # read by main
    try:
        for epoch, table in read_channel(open_work(work).path, channel, after=after, follow=follow):
            for batch in table.to_batches(max_chunksize=10_000):
                for row in batch.to_pylist():
                    line = {"epoch": epoch, "row": row} if as_json else row
                    sys.stdout.write(json_line(line) + "\n")
            sys.stdout.flush()
    except KeyboardInterrupt:
        return
