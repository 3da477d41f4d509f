"""Which state a new run goes on from. Pure: what is known of runs, of kept versions and of the output goes in.

A run is known by its directory (runs.py) or, in the simulator, by a record of the same shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from anabranch.channel.manifest import Manifest
from anabranch.errors import Corrupt, Trimmed

# The state of a run that began with another's is the right one from the start.
ALWAYS = -1
# This often a version is brought back before another one is tried.
_IN_VAIN = 2


class Candidate(Protocol):
    """A run that may be gone on from.

    `boot` is the start of the operating system that it belongs to, `owner` its node. The state of a `scratch` run is
    nobody's. `doubted` is the epoch of the state on which a query failed before it had run anything. A run that began
    without state has the right one since an epoch, `whole_since`, or not yet: None. `origin` is the run that came to
    the state with which this one began, and the epoch of that state; `version` the one in a store that this was brought
    back from, if it was: who kept it, and its epoch.
    """

    @property
    def name(self) -> str: ...
    @property
    def boot(self) -> object: ...
    @property
    def owner(self) -> str | None: ...
    @property
    def scratch(self) -> bool: ...
    @property
    def doubted(self) -> int | None: ...
    @property
    def whole_since(self) -> int | None: ...
    @property
    def origin(self) -> tuple[str, int]: ...
    @property
    def version(self) -> tuple[str, int] | None: ...

    def committed(self) -> int | None:
        """Return the epoch of its last commit, None if there is none; the same whenever it is asked."""

    def pending_until(self, epoch: int) -> list[Manifest]:
        """Return what it has written up to an epoch and not published, oldest first."""


class Kept(Protocol):
    """A version in a store: its epoch, the run that came to that state, and the epochs that are pending with it."""

    @property
    def epoch(self) -> int: ...
    @property
    def made_by(self) -> str: ...
    @property
    def pending(self) -> Collection[int]: ...


class Output(Protocol):
    """What a unit has published; `manifest` raises `Trimmed` where that is forgotten."""

    def last_epoch(self) -> int: ...
    def manifest(self, epoch: int) -> Manifest | None: ...


@dataclass(frozen=True)
class Wanted:
    """What a run must be to be gone on from.

    With `owner`, that node's; with `output`, one whose state belongs to what is published there, and if `settled` one
    that is not ahead of it.
    """

    owner: str | None = None
    output: Output | None = None
    settled: bool = False


ANY = Wanted()
C = TypeVar("C", bound=Candidate)


def newest(runs: Iterable[C], wanted: Wanted = ANY, *, boot: object = None, sure: bool = False) -> C | None:
    """Return the run with the newest committed epoch, None if there is none to go on from.

    With `boot`, only runs of that start of the operating system count: the files of earlier ones may be torn or gone.
    With `sure`, neither do those whose files cannot be read or are doubted, or are links to such files.
    """
    runs = list(runs)
    doubted = {(made_by(run, run.doubted), run.doubted) for run in runs if run.doubted is not None} if sure else set()
    counting = [(run, _counts(run, wanted, boot, sure=sure)) for run in runs]
    found = [
        (epoch, run.name, run)
        for run, epoch in counting
        if epoch is not None and (made_by(run, epoch), epoch) not in doubted
    ]
    return max(found, key=lambda one: one[:2])[2] if found else None


def choose(
    runs: Callable[[], Iterable[C]], restore: Callable[[bool], C] | None, wanted: Wanted, *, boot: object, floor: int
) -> C | None:
    """Return what a new run goes on from: the newest run that can be trusted, or a version that `restore` brings back.

    Failing these, it begins anew if nothing of its inputs is trimmed, else what may be damaged is better than nothing:
    a version that was brought back in vain before (`restore(True)`), then files, those of an earlier start of the
    system last. What lies before the floor of an input is of no use, and neither is, where nothing that is published
    may be executed again, what lies before that. What is ahead of it there would be published before anyone knows
    whether the state that belongs to it can be read: it is executed again, if it can be, rather than trusted after a
    crash of the system; and a standby, for which nothing is restored, does without.
    """
    least = floor if wanted.output is None else max(floor, wanted.output.last_epoch())
    trusted = newest(runs(), wanted, boot=boot, sure=True)
    if trusted is not None and _reaches(trusted, least):
        return trusted
    restored = None if restore is None else restore(False)
    if restored is not None and _reaches(restored, least) and _belongs(restored, wanted):
        return restored
    readable = newest(runs(), replace(wanted, settled=True), sure=True)
    if readable is not None and _reaches(readable, least):
        return readable
    if least < 0 or (restore is None and wanted.output is not None):
        return None  # everything is still there from the beginning, or nothing is needed yet
    restored = None if restore is None else restore(True)
    if restored is not None and _reaches(restored, least) and _belongs(restored, wanted):
        return restored
    return newest(runs(), wanted, boot=boot) or newest(runs(), wanted)


def discredited(runs: Iterable[Candidate]) -> set[tuple[str, int]]:
    """Return the versions that were brought back, and could not be gone on from: another one is tried next.

    Once is not enough: a query may fail of something else. It is for a copy that another run kept than the one that
    came to the state: that was linked from files which may have been damaged.
    """
    tried = [(run.version, run.origin[0]) for run in runs if run.version and run.doubted == run.version[1]]
    times = Counter(version for version, _ in tried)
    return {version for version, made in tried if made != version[0] or times[version] >= _IN_VAIN}


def fits(output: Output, run: Candidate, epoch: int) -> bool:
    """Say whether the state of a run at a commit belongs to what is published.

    It does if the published epoch is the run's own, or that of the run whose state it began with; or if it is ahead of
    what is published and everything in between is pending.
    """
    published = output.last_epoch()
    if epoch < 0:
        return published < 0  # Spark's batch over nothing, before there was an epoch
    pending = run.pending_until(epoch)
    if any(not _agrees(output, manifest) for manifest in pending if manifest.epoch <= published):
        return False
    if epoch > published:
        ahead = [manifest.epoch for manifest in pending if manifest.epoch > published]
        return ahead == list(range(published + 1, epoch + 1))
    return _producer(output, epoch) in (run.name, made_by(run, epoch))


def acceptable(output: Output, version: Kept) -> bool:
    """Say of a version in a store what `fits` says of a run on disk."""
    published = output.last_epoch()
    if version.epoch > published:
        return set(range(published + 1, version.epoch + 1)) <= set(version.pending)
    return _producer(output, version.epoch) == version.made_by


def made_by(run: Candidate, epoch: int) -> str:
    """Return the run that came to the state that a run has at an epoch: itself, or the one that it goes on from."""
    origin, began = run.origin
    return origin if began == epoch else run.name


def _counts(run: Candidate, wanted: Wanted, boot: object, *, sure: bool) -> int | None:
    """Return the epoch of a run that counts, None for one that does not."""
    if run.scratch or boot not in (None, run.boot) or wanted.owner not in (None, run.owner):
        return None
    try:
        epoch = run.committed()
    except (Corrupt, OSError):
        if not sure:
            raise
        return None
    if epoch is None:
        return None
    since = run.whole_since
    whole = since is not None and epoch >= since
    if wanted.settled and wanted.output is not None and epoch > wanted.output.last_epoch():
        return None
    return epoch if whole and (wanted.output is None or fits(wanted.output, run, epoch)) else None


def _belongs(run: Candidate, wanted: Wanted) -> bool:
    epoch = run.committed()
    return wanted.output is None or (epoch is not None and fits(wanted.output, run, epoch))


def _reaches(run: Candidate, floor: int) -> bool:
    epoch = run.committed()
    return epoch is not None and epoch >= floor


def _producer(output: Output, epoch: int) -> str | None:
    try:
        manifest = output.manifest(epoch)
    except Trimmed:
        return None
    return None if manifest is None else manifest.producer.run


def _agrees(output: Output, manifest: Manifest) -> bool:
    try:
        published = output.manifest(manifest.epoch)
    except Trimmed:
        return True
    return published is not None and (published.digest, published.rows) == (manifest.digest, manifest.rows)
