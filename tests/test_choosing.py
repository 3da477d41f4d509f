"""Which state a new run goes on from where nothing that is published may be executed again."""

from dataclasses import dataclass

from anabranch.channel.manifest import Manifest, Producer
from anabranch.choosing import ALWAYS, Wanted, choose, discredited

BOOT = "this boot"


@dataclass
class Run:
    """A run on a disk, or a version that was brought back; see `choosing.Candidate`."""

    name: str
    epoch: int | None
    boot: str = BOOT
    doubted: int | None = None
    origin: tuple[str, int] = ("", -1)
    owner: str = "node-1"
    scratch: bool = False
    whole_since: int | None = ALWAYS
    version: tuple[str, int] | None = None

    def committed(self):
        return self.epoch

    def pending_until(self, epoch):
        return []


@dataclass
class Output:
    """Epochs 0 to `last`, all published by one run."""

    last: int
    by: str = "r1"

    def last_epoch(self):
        return self.last

    def manifest(self, epoch):
        return Manifest(epoch, Producer("counts", self.by, 0), 0.0, rows=0) if epoch <= self.last else None


def chosen(output, runs, restored=None, floor=-1):
    nothing = Run("restored", None)
    return choose(lambda: runs, lambda _: restored or nothing, Wanted(output=output), boot=BOOT, floor=floor)


def test_a_state_older_than_what_is_published_gives_way_to_a_store():
    """Files that a power cut set back may be readable, and of use for nothing: the store has what was published."""
    behind = Run("r3", 0, origin=("r1", 0))
    kept = Run("restored", 1, origin=("r1", 1))
    assert chosen(Output(1), [behind], kept) is kept
    level = Run("r4", 1, origin=("r1", 1))
    assert chosen(Output(1), [behind, level], kept) is level


def test_a_run_that_began_without_state_is_gone_on_from_once_it_has_the_right_one():
    """Before that, windows are open of which it has seen a part only; amnesia may never come to the right state."""
    whole = Run("r1", 3)
    assert chosen(None, [whole, Run("r2", 5, whole_since=6)]) is whole
    assert chosen(None, [whole, Run("r2", 5, whole_since=None)]) is whole
    caught_up = Run("r2", 6, whole_since=6)
    assert chosen(None, [whole, caught_up]) is caught_up


def test_where_nothing_is_published_nothing_is_contradicted():
    """A first state that cannot be read, and was never stored, is made again; once it is published, never."""
    broken = Run("r3", 0, doubted=0)
    assert chosen(Output(-1), [broken]) is None
    assert chosen(Output(0, by="r3"), [broken]) is broken, "its error is told"


def test_links_to_doubted_files_are_doubted():
    """Standbys were begun from a state before anyone found that it cannot be read: each would fail in its turn."""
    broken = Run("r1", 3, doubted=3)
    linked = Run("r5", 3, origin=("r1", 3))
    linked_twice = Run("r6", 3, origin=("r1", 3), doubted=3)
    kept = Run("restored", 3, origin=("r1", 3))
    assert chosen(Output(3), [broken, linked], kept) is kept
    assert chosen(Output(3), [linked, linked_twice], kept) is kept
    further = Run("r7", 4, origin=("r1", 3))
    assert chosen(Output(4, by="r7"), [broken, linked, further], kept) is further, "it ran since"


@dataclass
class Ahead(Run):
    """One that has written what is not published yet."""

    def pending_until(self, epoch):
        return [Manifest(epoch, Producer("counts", self.name, 0), 0.0, rows=0)]


def test_what_is_not_published_is_not_trusted_after_a_crash_of_the_system():
    """It would be shipped and published before anyone knows whether its state can be read; it can be executed again."""
    ahead, level = Ahead("r1", 3, boot="earlier"), Run("r2", 2, boot="earlier", origin=("r1", 2))
    kept = Run("restored", 2, origin=("r1", 2))
    assert chosen(Output(2), [ahead], kept) is kept
    assert chosen(Output(2), [ahead, level]) is level
    assert chosen(Output(2), [ahead]) is ahead, "there is nothing else"
    assert chosen(Output(-1), [Ahead("r1", 0, boot="earlier")]) is None, "nothing is lost by beginning anew"
    trusted = Ahead("r1", 3)
    assert chosen(Output(2), [trusted, level], kept) is trusted


def test_a_standby_waits_on_what_can_be_trusted():
    """Or on what is published; with anything else it could publish what nobody can go on from."""

    def stood_by(output, *runs):
        return choose(lambda: runs, None, Wanted(output=output), boot=BOOT, floor=0)

    ahead, level = Ahead("r1", 3, boot="earlier"), Run("r2", 2, boot="earlier", origin=("r1", 2))
    assert stood_by(Output(2), ahead) is None
    assert stood_by(Output(2), ahead, level) is level
    assert stood_by(Output(2), trusted := Ahead("r1", 3)) is trusted
    assert stood_by(None, Run("r1", 3, boot="earlier")).name == "r1", "where epochs may be executed again, anything"


def test_a_version_that_was_brought_back_in_vain_is_not_tried_again():
    """Once is enough only for a copy of what another run came to; what was gone on from is not to blame for later."""
    assert discredited(
        [
            Run("r4", 3, doubted=3, version=("r1", 3), origin=("r1", 3)),
            Run("r5", 3, doubted=3, version=("r1", 3), origin=("r1", 3)),
            Run("r5", 3, doubted=3, version=("r0", 3), origin=("r0", 3)),
            Run("r6", 7, doubted=7, version=("r2", 3), origin=("r2", 3)),
            Run("r7", 3, version=("r4", 3), origin=("r4", 3)),
            Run("r8", 3, doubted=3),
            Run("r9", 3, doubted=3, version=("r3", 3), origin=("r1", 3)),
        ]
    ) == {("r1", 3), ("r3", 3)}
