"""The keeper of one run: notices commits, decides when a version is due, and offers it to every store's lane.

It follows `commits/`, nothing else: a commit means that output and state of an epoch agree. Linking a version's files
takes milliseconds and happens here, before Spark's own clean-up could take them; reading and storing happen in the
lanes. So a slow or absent store never holds up the pipeline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.checkpoint import Commit, last_batch, last_commit
from anabranch.clock import Clock
from anabranch.errors import Corrupt
from anabranch.keeper.calibration import Trigger, due
from anabranch.keeper.contents import CommitContents
from anabranch.keeper.lane import Counters, Lane, LaneOptions, Target, Waiting
from anabranch.keeper.version import Version, run_path

# How soon a commit is noticed; Spark keeps the files of a commit for many batches more.
_LOOK_S = 0.05
# A file may vanish between listing and linking; this often in a row means that it is lost.
_MOST_VANISHED = 50


@dataclass(frozen=True)
class KeeperOptions:
    """What is kept: a run of a unit in a work directory, and how often.

    `surroundings(epoch)` names further files of the work directory that belong to a version. `ceiling()` is the newest
    epoch that may be kept now; None: any. `origin(epoch)` is the run that came to the state of an epoch, if another.
    """

    work: Path
    unit: str
    run: str
    trigger: Trigger = field(default_factory=Trigger)
    surroundings: Callable[[int], list[str]] = lambda _: []
    ceiling: Callable[[], int | None] = lambda: None
    origin: Callable[[int], str] = lambda _: ""


class Keeper:
    """Ships the versions of one run to one or more stores, each named by its address."""

    def __init__(
        self,
        stores: Mapping[str, Target],
        options: KeeperOptions,
        clock: Clock,
        *,
        shipped: Callable[[str, Version], None] = lambda _store, _version: None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._run_path = run_path(options.unit, options.run)
        self._directory = options.work / self._run_path
        self._checkpoint = self._directory / "checkpoint"
        self._contents = CommitContents(self._checkpoint)
        self._offered: dict[str, tuple[int, float]] = {}
        self._lanes = {
            name: self._lane(number, name, store, shipped) for number, (name, store) in enumerate(stores.items())
        }
        self._seen: Commit | None = None
        self._inherited = False
        self._vanished = 0
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name=f"keeper of {options.unit}", daemon=True)

    def _lane(self, number: int, name: str, store: Target, shipped: Callable[[str, Version], None]) -> Lane:
        options = LaneOptions(self._options.work, self._directory / "kept" / str(number), ceiling=self._options.ceiling)
        self._offered[name] = (-1, self._clock.steady_s())
        return Lane(store, options, self._clock, lambda version: shipped(name, version))

    def start(self) -> None:
        """Begin keeping."""
        for lane in self._lanes.values():
            lane.start()
        self._thread.start()

    def shipped_epoch(self) -> int:
        """Return the epoch that every store can restore, -1 if none."""
        return min(lane.counters.shipped_epoch for lane in self._lanes.values())

    def counters(self) -> dict[str, Counters]:
        """Return what every lane has done."""
        return {name: lane.counters for name, lane in self._lanes.items()}

    def failure(self) -> BaseException | None:
        """Return why keeping ended by itself, None while it goes on."""
        return self._failure or next(filter(None, (lane.failure() for lane in self._lanes.values())), None)

    def finish(self, timeout_s: float) -> bool:
        """Ship the last commit, whatever the trigger says; False if a store does not take it in time."""
        self._stopping.set()
        self._thread.join()
        commit = last_commit(self._checkpoint)
        if commit is None or commit.epoch < 0:
            return True
        late = [name for name, (epoch, _) in self._offered.items() if epoch < commit.epoch]
        self._offer(commit, late)
        deadline_s = self._clock.steady_s() + timeout_s
        return all(
            lane.wait_until_shipped(commit.epoch, deadline_s - self._clock.steady_s()) for lane in self._lanes.values()
        )

    def stop(self) -> None:
        """End; what is not stored whole is left out."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for lane in self._lanes.values():
            lane.stop()

    def _loop(self) -> None:
        try:
            while not self._stopping.wait(_LOOK_S):
                self.look()
        except BaseException as error:  # noqa: BLE001  handed to the node, which decides
            self._failure = error

    def look(self) -> None:
        """Offer a version to every store for which one is due."""
        if self._seen is None or last_batch(self._checkpoint / "commits") != self._seen.batch_id:
            self._seen = last_commit(self._checkpoint)
            self._inherited = self._seen is not None and self._made_by(self._seen.epoch) != self._options.run
        commit = self._seen
        if commit is None or commit.epoch < 0:
            return
        now_s = self._clock.steady_s()
        ready = [
            name
            for name, (epoch, at_s) in self._offered.items()
            if due(self._options.trigger, epochs=commit.epoch - epoch, seconds=now_s - at_s, inherited=self._inherited)
            and not self._lanes[name].held_back
        ]
        self._offer(commit, ready)

    def _made_by(self, epoch: int) -> str:
        return self._options.origin(epoch) or self._options.run

    def _offer(self, commit: Commit, names: list[str]) -> None:
        if not names:
            return
        paths = [f"{self._run_path}/checkpoint/{path}" for path in self._contents.files(commit.batch_id)]
        noted = last_batch(self._directory / "watermarks")
        if noted is not None:
            # Where any are noted, those of the commit belong to it; if they are gone, so is the commit.
            paths.append(f"{self._run_path}/watermarks/{commit.batch_id}")
        paths += self._options.surroundings(commit.epoch)
        waiting = Waiting(
            unit=self._options.unit,
            run=self._options.run,
            epoch=commit.epoch,
            batch_id=commit.batch_id,
            committed_s=self._clock.now_s(),
            paths=tuple(paths),
            origin=self._made_by(commit.epoch),
        )
        for name in names:
            try:
                self._lanes[name].offer(waiting)
            except FileNotFoundError as error:
                # Spark's clean-up or a trim was faster: there is a newer commit by now, or the next look sees less.
                self._vanished += 1
                if self._vanished > _MOST_VANISHED:
                    raise Corrupt(f"{error.filename} is gone, though the last commit needs it") from None
                continue
            self._vanished = 0
            self._offered[name] = (commit.epoch, self._clock.steady_s())
