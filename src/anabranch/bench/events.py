"""Input for pipelines that are broken on purpose: rows out of order, some late but in time, some hopelessly late."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2026, 1, 1, tzinfo=UTC)
DELAY_S = 10
FILES_BEFORE_TOO_LATE = 8
TOO_LATE = 0.01


def write_input(directory: Path, *, files: int = 48, rows: int = 150, seed: int = 0) -> None:
    """Write `files` files of `rows` events, and loads that run far ahead of them and then fall silent.

    Rows marked `too_late` are a day old and come after the watermark has certainly passed them, so every correct
    run drops them where a watermark is declared.
    """
    chance = random.Random(seed)
    for name, count, share in (("events", files, 1.0), ("loads", files // 4, 4.0)):
        (directory / name).mkdir(parents=True)
        for number in range(count):
            lines = []
            for index in range(rows):
                # Each file covers one second of event time (loads: four); rows come up to 8 s late.
                at_s = (number + index / rows) * share - chance.random() * 8
                too_late = number >= FILES_BEFORE_TOO_LATE and chance.random() < TOO_LATE
                at = START + timedelta(seconds=at_s) - timedelta(days=1 if too_late else 0)
                row = {
                    "ts": at.isoformat(timespec="milliseconds"),
                    "key": f"k{chance.randrange(200)}",
                    "value": chance.randrange(1000),
                    "too_late": too_late,
                }
                lines.append(json.dumps(row))
            (directory / name / f"{number:05d}.jsonl").write_text("\n".join(lines) + "\n")
