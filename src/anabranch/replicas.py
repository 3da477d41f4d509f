"""The replicas of units on one node: primaries where it holds the lease, standbys elsewhere.

`reconcile` is called in the main loop with what the node holds, and brings what runs here towards that. Which standby
there is and how one takes over is the strategies' business; this module carries it out. Starting and ending queries
takes seconds and happens in a thread of its own, one after the other; promoting a standby that is ready takes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from anabranch.channel.channel import Channel
from anabranch.channel.manifest import Manifest, Producer
from anabranch.errors import StoreUnavailable, Trimmed
from anabranch.failures import of_files
from anabranch.plans import BuiltSegment, spark_message
from anabranch.setup import Setup
from anabranch.strategies.strategy import (
    WARM_BATCHES,
    Begin,
    Follow,
    Past,
    Renew,
    Takeover,
    View,
    merge_end,
)
from anabranch.unit import Unit
from anabranch.workshop import Workshop

# A standby that could not be begun is tried again after this long.
_NO_STANDBY_S = 5.0
WAITS_FOR_STORE = "waits for its store"
# A primary whose state is in a store that cannot be reached is tried again after this long.
_STORE_AWAY_S = 2.0
# A primary that is further behind what is published than this catches up at once.
_MOST_BEHIND = 3
# Which run could be gone on from is looked up this often.
_LOOK_FOR_SAVED_S = 1.0
# A primary whose files went while it was begun is begun again, this often.
_MOST_AGAIN = 3
# What is remembered of published epochs; whoever needs older ones reads them again.
_MOST_PAST = 20_000
_NOWHERE: Mapping[str, bool] = MappingProxyType({})


@dataclass
class Standby:
    """A replica that waits or withholds; `told_s` is when it was begun or last told something, `to` how far to go."""

    unit: Unit
    told_s: float
    empty: bool
    to: int = -1


@dataclass(frozen=True)
class _Job:
    """Something that takes long, and what to do with its result in the main thread."""

    kind: str
    future: Future[object]
    done: Callable[[Any], None]


class Replicas:
    """All replicas of one node."""

    def __init__(
        self,
        setup: Setup,
        workshop: Workshop,
        starter: Executor | None = None,
    ) -> None:
        self._setup = setup
        self._workshop = workshop
        self._starter = starter or ThreadPoolExecutor(1, thread_name_prefix="starter")
        self._jobs: dict[str, _Job] = {}
        self._built: dict[str, BuiltSegment] = {}
        self._past: dict[str, dict[int, Past]] = {}
        self._saved: dict[str, tuple[float, int]] = {}
        self._batches: dict[str, int] = {}
        self._no_standby_until_s: dict[str, float] = {}
        self._store_away_until_s: dict[str, float] = {}
        self._caught_up_to: dict[str, int] = {}
        self._again: Counter[str] = Counter()
        self.primaries: dict[str, Unit] = {}
        self.standbys: dict[str, Standby] = {}

    def assemble(self) -> None:
        """Make or open the channels."""
        self._built = self._workshop.assemble()

    @property
    def channels(self) -> dict[str, Channel]:
        """The channels of the pipeline."""
        return self._workshop.channels

    # The main loop

    def reconcile(self, held: Mapping[str, int], elsewhere: Mapping[str, bool] = _NOWHERE) -> None:
        """Bring what runs here towards what should, given the generations of the units that this node leads.

        `elsewhere` are units that others run; it says whether a replica that is here may go.
        """
        for name in self._setup.segments:
            if self._busy(name):
                continue
            if name in held and name not in self.primaries:
                self._lead(name, held[name])
            elif name in held:
                # A successor that was planned is gone again before it was ready: what runs here leads on.
                self.primaries[name].lead_on(held[name])
                self._catch_up(name)
            elif name not in held and name in self.primaries:
                self._step_down(name)
            elif elsewhere.get(name, False):
                self._leave(name)
            elif name not in elsewhere or name in self.standbys:
                self._stand_by(name)

    def _leave(self, name: str) -> None:
        """End a replica that others have replaced."""
        standby = self.standbys.pop(name, None)
        if standby is not None:
            self._start(name, "end", standby.unit.stop, lambda _: None)

    def _busy(self, name: str) -> bool:
        """Say whether something is under way for a unit; take the result of what has just ended."""
        job = self._jobs.get(name)
        if job is None:
            return False
        if not job.future.done():
            return True
        del self._jobs[name]
        error = job.future.exception()
        if error is None:
            job.done(job.future.result())
        elif job.kind == "primary" and isinstance(error, StoreUnavailable):
            self._wait_for_store(name, error)
        elif job.kind == "primary" and isinstance(error, FileNotFoundError) and self._again[name] < _MOST_AGAIN:
            # Who led before may live on for a moment, and tidy up what is being linked: the next look sees the rest.
            self._again[name] += 1
            self._setup.note("begun again", unit=name, error=spark_message(error))
        elif job.kind == "primary":
            raise error
        else:
            # The primary's files may go while they are linked; a query may not end in time.
            self._no_standby_until_s[name] = self._setup.clock.steady_s() + _NO_STANDBY_S
            self._setup.note("standby failed", unit=name, error=spark_message(error))
        return False

    def _wait_for_store(self, name: str, error: StoreUnavailable) -> None:
        """Try again later: ending would not bring the store back, and what it has must not be executed again."""
        if name not in self._store_away_until_s:
            self._setup.note(WAITS_FOR_STORE, unit=name, error=error.message)
        self._store_away_until_s[name] = self._setup.clock.steady_s() + _STORE_AWAY_S

    def _start(self, name: str, kind: str, work: Callable[[], object], done: Callable[[Any], None]) -> None:
        self._jobs[name] = _Job(kind, self._starter.submit(work), done)

    def _step_down(self, name: str) -> None:
        unit = self.primaries.pop(name)
        self._batches[name] = self._batches.get(name, 0) + unit.batches
        self._start(name, "end", unit.stop, lambda _: None)

    # Leading

    def _lead(self, name: str, generation: int) -> None:
        now_s = self._setup.clock.steady_s()
        if now_s < self._store_away_until_s.get(name, now_s):
            return
        standby = self.standbys.get(name)
        if standby is not None and (standby.unit.failure() is not None or _overtaken(standby)):
            self._end_standby(name)
            standby = None
        view = self.view(name, exactly=True)
        how = self._setup.strategy(name).takeover(view) if view.published >= 0 else Takeover("newest")
        if how.gaps is not None:
            self._give_up(name, generation, how.gaps)
        if how.use == "standby" and standby is not None:
            del self.standbys[name]
            self._store_away_until_s.pop(name, None)
            if standby.empty:
                standby.unit.begin_after(how.after, compare_from=how.compare_from, lost=how.lost)
            standby.unit.promote(generation, how)
            self.primaries[name] = standby.unit
            for read in self._setup.segments[name].inputs:
                # Else the pacer would give the run that led before time to keep in step. If it lives, it says so again.
                self.channels[read].forget_runs(name, standby.unit.run)
        else:
            self._start(
                name,
                "primary",
                lambda: self._begun(name, generation, how, view),
                lambda unit: self._leads(name, unit),
            )

    def _catch_up(self, name: str) -> None:
        """Let a primary that is behind what is published read several epochs at once, if it may.

        It has taken over from one that is well and goes on: epoch by epoch it would never get ahead of it.
        """
        unit, published = self.primaries[name], self.channels[name].last_epoch()
        at = unit.committed()
        if published - at <= _MOST_BEHIND or self._caught_up_to.get(name, -1) > at:
            return
        view = self.view(name)
        if view.mergeable and self._setup.strategy(name).policy != "shipped":
            end = merge_end(at, published, view.late)
            if end > at + 1:
                self._caught_up_to[name] = end
                unit.follow(end, go_on=True)

    def _give_up(self, name: str, generation: int, epochs: tuple[int, int]) -> None:
        """Publish epochs as gaps: what was in them is lost, and everyone shall know.

        The newest event time yet is passed on in them: what says it may be trimmed before the next epoch is published.
        """
        producer = Producer(name, f"n{self._setup.life[:8]}", generation)
        channel = self.channels[name]
        last = channel.last_epoch()
        newest = channel.manifest(last) if last >= 0 else None
        highest_ms = None if newest is None else newest.highest_ms
        for epoch in range(epochs[0], epochs[1] + 1):
            now_s = self._setup.clock.now_s()
            channel.release(Manifest(epoch, producer, now_s, rows=0, gap=True, highest_ms=highest_ms))
        self._setup.note("gap", unit=name, first=epochs[0], last=epochs[1])

    def _begun(self, name: str, generation: int, how: Takeover, view: View) -> Unit:
        self._end_standby(name)
        return self._workshop.primary(name, generation, how, view)

    def _leads(self, name: str, unit: Unit) -> None:
        self._store_away_until_s.pop(name, None)
        del self._again[name]
        self.primaries[name] = unit

    # Standing by

    def _stand_by(self, name: str) -> None:
        now_s = self._setup.clock.steady_s()
        if now_s < self._no_standby_until_s.get(name, now_s):
            return
        standby = self.standbys.get(name)
        failure = standby.unit.failure() if standby is not None else None
        if standby is not None and failure is not None:
            reason = spark_message(failure)
            self._setup.note("standby failed", unit=name, error=reason)
            if of_files(reason):
                standby.unit.doubt_base()
            self._no_standby_until_s[name] = now_s + _NO_STANDBY_S
            self._end_standby(name)
            return
        view = self.view(name)
        told = self._setup.strategy(name).standby(view)
        if isinstance(told, Begin):
            begin = told
            self._start(
                name,
                "standby",
                lambda: self._workshop.standby(name, begin),
                lambda unit: self._stands(name, unit, begin),
            )
        elif isinstance(told, Renew) and standby is not None:
            begin = Begin(told.open, standby.empty, scratch=standby.empty and view.batches < WARM_BATCHES)
            self._start(
                name,
                "standby",
                lambda: self._workshop.standby(name, begin),
                lambda unit: self._stands(name, unit, begin),
            )
        elif isinstance(told, Follow) and standby is not None and (view.at or 0) >= standby.to:
            standby.to, standby.told_s = told.to, now_s
            standby.unit.follow(told.to, go_on=told.open)

    def _stands(self, name: str, unit: Unit, begin: Begin) -> None:
        self._end_standby(name)
        unit.remove_former_runs()
        self.standbys[name] = Standby(unit, self._setup.clock.steady_s(), begin.empty)

    def _end_standby(self, name: str) -> None:
        standby = self.standbys.pop(name, None)
        if standby is not None:
            self._batches[name] = self._batches.get(name, 0) + standby.unit.batches
            standby.unit.stop()

    # What strategies are told

    def view(self, name: str, *, exactly: bool = False) -> View:
        """Return what is known of a unit; `exactly` looks up what is otherwise remembered for a while."""
        standby = self.standbys.get(name)
        built = self._built[name]
        return View(
            published=self.channels[name].last_epoch(),
            waiting=min(self.channels[read].last_epoch() for read in self._setup.segments[name].inputs),
            at=standby.unit.committed() if standby is not None else None,
            saved=self._newest_saved(name, exactly=exactly),
            since_s=self._setup.clock.steady_s() - standby.told_s if standby is not None else 0.0,
            told_to=standby.to if standby is not None else -1,
            batches=self.batches(name),
            scratch=standby is not None and standby.unit.scratch,
            mergeable=built.unmergeable is None,
            span=built.span,
            first=0 if self._setup.strategy(name).keeps_state else self.channels[name].safe(name) + 1,
            past=lambda epoch: self._known(name, epoch),
        )

    def batches(self, name: str) -> int:
        """Return how many micro-batches of a unit its standbys here have run: a node that has run many is warm."""
        standby = self.standbys.get(name)
        return self._batches.get(name, 0) + (standby.unit.batches if standby is not None else 0)

    def _newest_saved(self, name: str, *, exactly: bool) -> int:
        now_s = self._setup.clock.steady_s()
        looked_s, saved = self._saved.get(name, (now_s - _LOOK_FOR_SAVED_S, -1))
        if exactly or now_s - looked_s >= _LOOK_FOR_SAVED_S:
            owner = None if self._setup.strategy(name).keeps_state else self._setup.options.name
            saved = self._workshop.newest_saved(name, owner=owner)
            self._saved[name] = now_s, saved
        return saved

    def _known(self, name: str, epoch: int) -> Past | None:
        known = self._past.setdefault(name, {})
        if epoch not in known:
            try:
                manifest = self.channels[name].manifest(epoch)
            except Trimmed:
                return None
            if manifest is None:
                return None
            known[epoch] = Past(epoch, manifest.seen_ms, manifest.watermark_ms, manifest.late_rows)
            known.pop(epoch - _MOST_PAST, None)
        return known[epoch]

    def runs(self, name: str) -> set[str]:
        """Return the runs of a unit that are here."""
        units = [self.primaries.get(name), self.standbys[name].unit if name in self.standbys else None]
        return {unit.run for unit in units if unit is not None}

    def end(self, name: str) -> None:
        """End whatever replica of a unit is here."""
        self._end_standby(name)
        unit = self.primaries.pop(name, None)
        if unit is not None:
            unit.stop()

    def end_all(self) -> None:
        """End everything, and start nothing any more."""
        self._starter.shutdown(wait=False, cancel_futures=True)
        for job in self._jobs.values():
            # What is being started ends with the session.
            job.future.cancel()
        for name in [*self.primaries, *self.standbys]:
            self.end(name)


def _overtaken(standby: Standby) -> bool:
    """Say whether what a standby would read next is trimmed: it waited while others went on."""
    return not standby.empty and standby.unit.committed() < standby.unit.input_floor()
