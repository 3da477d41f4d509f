"""Following what happens in a work directory: the growth of its channels, and its history; everything is read once."""

from __future__ import annotations

import json
import time
from collections import deque
from typing import Any

from anabranch.channel.channel import Channel
from anabranch.errors import Trimmed
from anabranch.work import Work

# Rates are taken over this long, so that they neither jump nor lag.
_WINDOW_S = 5.0


class _Followed:
    """One channel's counters."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.next_epoch = channel.ledger.floor() + 1
        # None once an epoch's rows are not known: a source of files plans bytes, not rows.
        self.rows: int | None = 0
        self.samples: deque[tuple[float, int | None, int]] = deque()

    def look(self) -> None:
        while True:
            try:
                manifest = self.channel.manifest(self.next_epoch)
            except Trimmed:
                self.next_epoch = self.channel.ledger.floor() + 1
                continue
            if manifest is None:
                break
            if self.rows is not None:
                self.rows = None if manifest.rows is None else self.rows + manifest.rows
            self.next_epoch += 1
        now_s = time.monotonic()
        self.samples.append((now_s, self.rows, self.next_epoch))
        while now_s - self.samples[0][0] > _WINDOW_S:
            self.samples.popleft()

    def summary(self) -> dict[str, Any]:
        first, last = self.samples[0], self.samples[-1]
        seconds = max(last[0] - first[0], 1e-9)
        rows_per_s = None if first[1] is None or last[1] is None else (last[1] - first[1]) / seconds
        return {
            "name": self.channel.spec.name,
            "last": self.next_epoch - 1 if self.next_epoch > 0 else None,
            "rows": self.rows,
            "rows_per_s": rows_per_s,
            "epochs_per_s": (last[2] - first[2]) / seconds,
        }


class Watch:
    """All channels of a work directory, as they appear."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._followed: dict[str, _Followed] = {}

    def look(self) -> list[dict[str, Any]]:
        """Read what is new and return a summary per channel."""
        for name in self._work.channel_names():
            if name not in self._followed:
                self._followed[name] = _Followed(self._work.channel(name))
        for followed in self._followed.values():
            followed.look()
        return [followed.summary() for followed in self._followed.values()]


class News:
    """What is new in the history of a work directory since the last look."""

    def __init__(self, work: Work) -> None:
        self._path = work.path / "history.jsonl"
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def look(self) -> list[dict[str, Any]]:
        """Return the events that were written since; a line that is not whole yet comes next time."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as history:
            history.seek(self._offset)
            content = history.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [event for line in whole.splitlines() if isinstance(event := _event(line), dict)]


def _event(line: bytes) -> Any:  # noqa: ANN401  JSON
    try:
        return json.loads(line)
    except ValueError:
        return None  # torn by a power cut
