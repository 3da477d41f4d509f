"""The console sink: rows for people, on the standard output of `anabranch run`. At least once, like any screen."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.errors import PipelineError
from anabranch.sinks.sink import AT_LEAST_ONCE

if TYPE_CHECKING:
    from anabranch.channel.channel import Channel
    from anabranch.channel.manifest import Manifest
    from anabranch.sinks.sink import Delivery


@dataclass(frozen=True)
class ConsoleSink:
    """Prints up to `rows` rows of every epoch."""

    rows: int = 20

    @property
    def kind(self) -> str:
        return "console"

    @property
    def promise(self) -> str:
        return AT_LEAST_ONCE

    def check(self, work_id: str | None = None) -> None:
        if self.rows < 1:
            raise PipelineError(f"console sink: rows is {self.rows}", hint="print at least one row")

    def deliverer(self, delivery: Delivery) -> ConsoleDeliverer:
        return ConsoleDeliverer(delivery.channel, self.rows)


class ConsoleDeliverer:
    """Prints epochs; goes quiet when nobody is left to read (the launcher was killed)."""

    def __init__(self, channel: Channel, rows: int) -> None:
        self._channel = channel
        self._rows = rows
        self._listening = True

    def deliver(self, manifest: Manifest) -> None:
        if not self._listening:
            return
        lines = [f"-- {self._channel.spec.name} epoch {manifest.epoch}, {manifest.rows} rows"]
        left = self._rows
        for batch in self._channel.batches(manifest):
            shown = batch.slice(0, left).to_pylist()
            lines += ["  ".join(f"{name}={_text(value)}" for name, value in row.items()) for row in shown]
            left -= len(shown)
            if left <= 0:
                break
        if (manifest.rows or 0) > self._rows:
            lines.append(f"   … {(manifest.rows or 0) - self._rows} more")
        try:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()
        except (OSError, ValueError, AttributeError):
            # Closed, gone, or unable to show these letters: nobody is reading.
            self._listening = False


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}={_text(inner)}" for name, inner in value.items()) + "}"
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if isoformat is not None else str(value)


def console(rows: int = 20) -> ConsoleSink:
    """Print rows as they are published."""
    return ConsoleSink(rows)
