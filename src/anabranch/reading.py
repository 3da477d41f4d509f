"""Reading a channel from any Python program: an iterator of Arrow tables, one per epoch, without Spark.

    for epoch, table in ab.read_channel(".anabranch/wordcount", "counts", follow=True): …

Epochs come in order, each once, whole. Reading below what the channel still keeps is an error, never a silent gap.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from anabranch.errors import Trimmed
from anabranch.work import Work

# How soon a follower sees a new epoch.
_POLL_S = 0.02


class Epoch(NamedTuple):
    """One epoch and its rows."""

    number: int
    table: pa.Table


def read_channel(
    work: str | os.PathLike[str], channel: str, *, after: int | None = None, follow: bool = False
) -> Iterator[Epoch]:
    """Yield the epochs of a channel after epoch `after` (default: from the oldest kept), following it if asked."""
    opened = Work.open(Path(work)).channel(channel)
    floor = opened.ledger.floor()
    if after is not None and after < floor:
        raise Trimmed(
            f"channel {channel!r} keeps epochs from {floor + 1} on, epoch {after + 1} is gone",
            hint=f"read after {floor}, or let the pipeline retain more epochs (settings: retain_epochs)",
        )
    number = (floor if after is None else after) + 1
    while True:
        table = opened.table(number)
        if table is not None:
            yield Epoch(number, table)
            number += 1
        elif follow:
            time.sleep(_POLL_S)
        else:
            return
