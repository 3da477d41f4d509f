"""The input of a run: copies of the user's own files, which come bit by bit, some of them twice, late or all at once.

Sources that make their own rows need none of this. The order in which files came is kept for the batch oracle: from it
follows which rows may have come too late. Few files come while nodes start, nearly all while faults do: a pipeline that
has nothing to process cannot show that it survives.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anabranch.elsewhere import input_path
from anabranch.errors import SourceError
from anabranch.pipeline import Graph
from anabranch.sources.files import list_files

_LOOK_S = 0.05
_HELD_BACK = 0.05
# What comes until all nodes are ready, and over how long.
_EARLY, _EARLY_S = 0.1, 30.0


class Workload:
    """Gives the files of every source over some seconds once all are ready; in the end what is left, at once."""

    def __init__(self, graph: Graph, scratch: Path, *, seconds: float, seed: int) -> None:
        self._chance = random.Random(seed)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._resting = threading.Event()
        self._thread = threading.Thread(target=self._give_all, name="workload", daemon=True)
        self._targets: dict[str, Path] = {}
        self._of_lines: set[str] = set()
        self._waiting: dict[str, list[Path]] = {}
        self._late: dict[str, list[Path]] = {}
        # How many files should have come by now and have not.
        self._due: dict[str, float] = {}
        # How many files a second, and how many wait for now.
        self._pace: dict[str, tuple[float, int]] = {}
        self.order: dict[str, list[str]] = {}
        # When the last file came; None if no source reads files.
        self.last_given_s: float | None = None
        for name, node in graph.sources.items():
            source: Any = node.source
            if hasattr(source, "directory"):
                if source.spec()["kind"] != "parquet":
                    self._of_lines.add(name)
                self._take(name, source.directory, source.pattern, scratch)

    def _take(self, name: str, directory: str, pattern: str, scratch: Path) -> None:
        files = [Path(entry.path) for entry in list_files(directory, pattern).values()]
        if not files:
            raise SourceError(
                f"source {name!r} has no files in {directory}",
                hint="chaos runs the pipeline over copies of what its sources hold now; put some files there",
            )
        self._targets[name] = input_path(scratch, name)
        self._targets[name].mkdir(parents=True)
        # The first file is needed at once; of the first half, some are held back.
        early = files[1 : len(files) // 2]
        late = set(self._chance.sample(early, math.ceil(_HELD_BACK * len(early))))
        self._late[name] = sorted(late)
        self._waiting[name] = [path for path in files if path not in late]
        self.order[name] = []
        # A schema may have to be read from the first file before anything starts.
        self._give(name, self._waiting[name].pop(0))
        first = math.ceil(_EARLY * len(self._waiting[name]))
        self._pace[name] = first / _EARLY_S, len(self._waiting[name]) - first

    def start(self) -> None:
        """Begin to give."""
        self._thread.start()

    def ready(self) -> None:
        """Give from now on what is left, evenly."""
        with self._lock:
            self._due.clear()
            self._pace = {name: (len(paths) / self._seconds, 0) for name, paths in self._waiting.items()}

    def finish(self) -> None:
        """Give what is left."""
        self._ending.set()
        self._resting.clear()
        self._thread.join()
        with self._lock:
            for name in self._targets:
                for path in [*self._waiting[name], *self._late[name]]:
                    self._give(name, path)
                self._waiting[name], self._late[name] = [], []

    def given(self) -> Mapping[str, int]:
        """Return how many files every source was given."""
        return {name: len(names) for name, names in self.order.items()}

    # Faults of the input

    def duplicate(self, chance: random.Random) -> str:
        """Give a file once more, under another name."""
        with self._lock:
            name = chance.choice(list(self._targets))
            old = chance.choice(self.order[name])
            copy = Path(old).with_stem(f"{Path(old).stem}-again-{len(self.order[name])}").name
            shutil.copyfile(self._targets[name] / old, self._targets[name] / f".{copy}")
            (self._targets[name] / f".{copy}").rename(self._targets[name] / copy)
            self.order[name].append(copy)
        return f"{name}: {old} again as {copy}"

    def late(self, chance: random.Random) -> str | None:
        """Give a file that had been held back; None if there is none left."""
        with self._lock:
            names = [name for name, paths in self._late.items() if paths]
            if not names:
                return None
            name = chance.choice(names)
            path = self._late[name].pop()
            self._give(name, path)
        return f"{name}: {path.name}"

    def rest(self) -> bool:
        """Give nothing until `burst`; say whether there is anything left to give."""
        self._resting.set()
        return any(self._waiting.values())

    def burst(self) -> None:
        """Give at once what would have been given in the meantime."""
        self._resting.clear()

    # Giving

    def _give_all(self) -> None:
        while not self._ending.wait(_LOOK_S):
            with self._lock:
                for name, (per_s, kept) in self._pace.items():
                    self._due[name] = self._due.get(name, 0.0) + per_s * _LOOK_S
                    while not self._resting.is_set() and self._due[name] >= 1 and len(self._waiting[name]) > kept:
                        self._due[name] -= 1
                        self._give(name, self._waiting[name].pop(0))

    def _give(self, name: str, path: Path) -> None:
        target, hidden = self._targets[name] / path.name, self._targets[name] / f".{path.name}"
        if name in self._of_lines and _unfinished(path):
            # A stream waits for the end of a line, a batch query does not.
            hidden.write_bytes(path.read_bytes() + b"\n")
            hidden.rename(target)
        else:
            try:
                os.link(path, target)
            except OSError:  # another disk
                shutil.copyfile(path, hidden)
                hidden.rename(target)
        self.order[name].append(path.name)
        self.last_given_s = time.time()


def _unfinished(path: Path) -> bool:
    """Say whether the last line of a file has no end."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
