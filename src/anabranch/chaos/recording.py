"""Keeps what the sources planned, as it is planned: the run itself forgets it once nobody needs it any more."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anabranch.channel.channel import Channel
from anabranch.errors import AnabranchError, Trimmed
from anabranch.work import Work

_LOOK_S = 0.1


class Recorder:
    """Copies the plans of the sources of a work directory to another one, from which they can be run again."""

    def __init__(self, work: Path, recorded: Path, sources: list[str]) -> None:
        self._work = work
        self._sources = sources
        self._channels: dict[str, Channel] = {}
        # The last piece that was taken of every file, by source.
        self._pieces: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in sources}
        self.recorded = Work.create(recorded)
        # What went before it could be copied: without it nothing can be judged.
        self.missed: str | None = None

    def look(self) -> None:
        """Copy what is new. To be called several times in the seconds that inputs are left for standbys."""
        for name in self._sources:
            try:
                channel = Work.open(self._work).channel(name)
                if name not in self._channels:
                    self._channels[name] = Channel.create(self.recorded.channel_path(name), channel.spec)
                mine = self._channels[name]
                for epoch in range(mine.last_epoch() + 1, channel.last_epoch() + 1):
                    manifest = channel.manifest(epoch)
                    if manifest is not None:
                        for part in manifest.parts:
                            shutil.copyfile(channel.parts / part.name, mine.parts / part.name)
                        mine.release(manifest)
                        for piece in (manifest.planned or {}).get("pieces", []):
                            self._pieces[name][piece["file"]] = piece
            except Trimmed as error:
                self.missed = f"plans of source {name!r} were forgotten before they were copied: {error.message}"
            except (AnabranchError, OSError):
                continue  # not there yet, or just being damaged: the next look sees it

    def took(self, source: str, file: Path) -> bool:
        """Say whether a source has taken all of a file: every row group, or every line that is whole."""
        piece = self._pieces[source].get(file.name, {"end": 0})
        if "groups" in piece:
            return bool(piece["end"] >= piece["groups"])
        return bool(piece["end"] >= file.read_bytes().rfind(b"\n") + 1)

    def complete(self) -> bool:
        """Say whether no plan was missed."""
        return all(
            name in self._channels
            and self._channels[name].last_epoch() == Work.open(self._work).channel(name).last_epoch()
            for name in self._sources
        )


class Lookout:
    """Looks all the time, in a thread of its own: what else there is to do in a run may take many seconds."""

    def __init__(self, *looks: Callable[[], None]) -> None:
        self._looks = looks
        # Why nobody looks any more.
        self.failed: str | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="lookout", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def end(self) -> None:
        """Look once more, and end."""
        self._ending.set()
        self._thread.join()
        self._look()

    def _look_on(self) -> None:
        try:
            while not self._ending.wait(_LOOK_S):
                self._look()
        except Exception as error:  # noqa: BLE001  what nobody saw, nobody can judge
            self.failed = f"{type(error).__name__}: {error}"

    def _look(self) -> None:
        for look in self._looks:
            look()


class Deliveries:
    """Watches what is delivered: a file that could be read once must stay as it was."""

    def __init__(self, directories: list[Path]) -> None:
        self._directories = directories
        self._seen: dict[str, tuple[int, int, int]] = {}
        self.rewritten: list[str] = []

    def look(self) -> None:
        """Note new files, and those that are no longer what they were."""
        there: dict[str, tuple[int, int, int]] = {}
        for directory in self._directories:
            with contextlib.suppress(FileNotFoundError):
                for entry in os.scandir(directory):
                    if entry.name.startswith("epoch-"):
                        found = entry.stat()
                        there[entry.path] = found.st_ino, found.st_size, found.st_mtime_ns
        for path, known in self._seen.items():
            if there.get(path) != known and path not in self.rewritten:
                self.rewritten.append(path)
        self._seen = there | self._seen
