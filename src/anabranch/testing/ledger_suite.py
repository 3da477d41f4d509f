"""The ledger contract as tests: a backend subclasses `LedgerContract` and says how to make a ledger.

    class TestMyLedger(LedgerContract):
        def make_ledger(self, directory): return MyLedger(...)

Every property is stated over the contract alone, so that a new backend needs no test of its own for it. What a medium
can do to a claimer in the middle of a call is the backend's to arrange (`claim_asleep`). Needs pytest and Hypothesis.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from anabranch.errors import Trimmed
from anabranch.ledger.ledger import NO_FLOOR, Claim, Ledger
from anabranch.testing.ledger_race import Opener, Saw, check_sightings, claim_and_note, race

THREADS = 8
PROCESSES = 4


class LedgerContract:
    """What every ledger must do. Hooks first, then the properties."""

    #: Whether several processes can open the same ledger; then `opener` must be given too.
    processes = False

    def make_ledger(self, directory: Path) -> Ledger:
        """Make an empty ledger; `directory` is an empty directory of its own, which it may use."""
        raise NotImplementedError

    def open_again(self, ledger: Ledger) -> Ledger:
        """Return a second handle on the same ledger, as another process or a restart would have it."""
        return ledger

    def opener(self, ledger: Ledger) -> Opener:
        """Return a picklable function that opens the ledger in another process."""
        raise NotImplementedError

    def claim_asleep(self, ledger: Ledger, slot: int, record: bytes, meanwhile: Callable[[], None]) -> Claim:
        """Claim, with `meanwhile` happening as late in the call as possible before the record is in its slot.

        For a backend whose claim is one atomic step, that is before the call.
        """
        meanwhile()
        return ledger.claim(slot, record)

    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Ledger:
        """Give an empty ledger."""
        directory = tmp_path / "ledger-under-test"
        directory.mkdir()
        return self.make_ledger(directory)

    # One caller

    def test_a_new_ledger_is_empty(self, ledger: Ledger) -> None:
        """A new ledger has no slots, no newest slot and no floor."""
        assert (ledger.slots(), ledger.last(), ledger.floor(), ledger.read(0)) == ([], None, NO_FLOOR, None)

    def test_the_first_claim_wins(self, ledger: Ledger) -> None:
        """A claim of an empty slot wins, and the record can be read from any handle."""
        assert ledger.claim(0, b"first") == Claim(won=True, record=b"first")
        assert ledger.read(0) == b"first"
        assert self.open_again(ledger).read(0) == b"first"

    def test_the_second_claim_loses(self, ledger: Ledger) -> None:
        """A claim of a taken slot gets the winner's record and changes nothing."""
        ledger.claim(3, b"first")
        for handle in (ledger, self.open_again(ledger)):
            assert handle.claim(3, b"second") == Claim(won=False, record=b"first")
            assert handle.read(3) == b"first"

    def test_repeating_a_claim_loses_to_itself(self, ledger: Ledger) -> None:
        """A caller that claims again with its own record is told that it lost, to an equal record."""
        record = b"mine"
        ledger.claim(0, record)
        assert ledger.claim(0, record) == Claim(won=False, record=record)

    @pytest.mark.parametrize("slot", [-1, -7])
    def test_negative_slots_are_refused(self, ledger: Ledger, slot: int) -> None:
        """A negative slot is a mistake of the caller, not an empty slot."""
        with pytest.raises(ValueError, match=str(slot)):
            ledger.claim(slot, b"x")
        with pytest.raises((ValueError, Trimmed)):
            ledger.read(slot)
        assert ledger.slots() == []

    @pytest.mark.parametrize(
        "record",
        [
            b"",
            b"\n",
            b"\x00",
            bytes(range(256)),
            b"no newline",
            b"anabranch-slot 1 00 0\n",
            random.Random(7).randbytes(3 << 20),
        ],
        ids=["empty", "newline", "zero", "all bytes", "text", "like a header", "3 MiB"],
    )
    def test_any_bytes_are_a_record(self, ledger: Ledger, record: bytes) -> None:
        """A record of any length and content comes back as it was given, to reader, loser and restart."""
        assert ledger.claim(0, record) == Claim(won=True, record=record)
        assert ledger.claim(0, b"other").record == record
        assert self.open_again(ledger).read(0) == record

    def test_slots_may_have_holes(self, ledger: Ledger) -> None:
        """Slots are claimed in any order; a hole reads as empty and can be claimed later."""
        other = self.open_again(ledger)
        assert other.last() is None
        for slot in (5, 2, 9):
            ledger.claim(slot, b"%d" % slot)
        assert ledger.slots() == other.slots() == [2, 5, 9]
        assert ledger.last() == other.last() == 9
        assert ledger.read(3) is None
        assert other.claim(3, b"late") == Claim(won=True, record=b"late")
        assert ledger.slots() == [2, 3, 5, 9]

    def test_last_follows_other_handles(self, ledger: Ledger) -> None:
        """The newest slot is right after every claim of another handle, in order, with gaps, and after trims."""
        other = self.open_again(ledger)
        for step, slot in enumerate([0, 1, 2, 3, 7, 8, 5, 6, 4, 9, 20, 21]):
            ledger.claim(slot, b"")
            assert other.last() == ledger.last() == max(ledger.slots()), f"after step {step}"
        ledger.trim(19)
        assert other.last() == 21
        ledger.claim(22, b"")
        ledger.trim(21)
        assert (other.last(), other.slots()) == (22, [22])

    def test_last_survives_trims_between_looks(self, ledger: Ledger) -> None:
        """A handle that last looked long ago finds the newest slot after everything it knew was trimmed."""
        other = self.open_again(ledger)
        ledger.claim(0, b"")
        assert other.last() == 0
        for slot in range(1, 9):
            ledger.claim(slot, b"")
        ledger.trim(5)
        assert other.last() == 8
        ledger.trim(7)
        assert (other.last(), other.floor()) == (8, 7)

    # Trimming

    def test_trimmed_slots_are_gone(self, ledger: Ledger) -> None:
        """At and below the floor nothing can be seen, read or claimed, by any handle; above it all is as before."""
        for slot in (0, 1, 3, 4, 5):
            ledger.claim(slot, b"%d" % slot)
        other = self.open_again(ledger)
        ledger.trim(3)
        for handle in (ledger, other, self.open_again(ledger)):
            assert (handle.floor(), handle.slots(), handle.last()) == (3, [4, 5], 5)
            for slot in (0, 1, 2, 3):
                with pytest.raises(Trimmed):
                    handle.read(slot)
                with pytest.raises(Trimmed):
                    handle.claim(slot, b"again")
            assert handle.read(4) == b"4"
            assert handle.slots() == [4, 5]

    @pytest.mark.parametrize("floor", [2, 3, 10])
    def test_the_newest_slot_is_never_trimmed(self, ledger: Ledger, floor: int) -> None:
        """A floor that reaches the newest slot is refused and changes nothing."""
        for slot in (0, 1, 2):
            ledger.claim(slot, b"")
        with pytest.raises(ValueError, match="newest"):
            ledger.trim(floor)
        assert (ledger.floor(), ledger.slots()) == (NO_FLOOR, [0, 1, 2])

    def test_an_empty_ledger_cannot_be_trimmed(self, ledger: Ledger) -> None:
        """Without a slot there is no newest one to keep, so no floor can be set."""
        ledger.trim(NO_FLOOR)
        with pytest.raises(ValueError, match="newest"):
            ledger.trim(0)
        assert ledger.claim(0, b"x").won

    def test_the_floor_never_falls(self, ledger: Ledger) -> None:
        """Trimming again, or lower, changes nothing, from any handle."""
        for slot in range(6):
            ledger.claim(slot, b"")
        other = self.open_again(ledger)
        ledger.trim(3)
        for floor in (3, 1, NO_FLOOR, -5):
            other.trim(floor)
            ledger.trim(floor)
            assert (ledger.floor(), other.floor(), other.slots()) == (3, 3, [4, 5])
        other.trim(4)
        assert (ledger.floor(), ledger.slots()) == (4, [5])

    @pytest.mark.parametrize("claimed_before", [True, False])
    def test_who_sleeps_through_a_trim_has_lost(self, ledger: Ledger, claimed_before: bool) -> None:  # noqa: FBT001
        """A claimer that froze in the middle of its claim while the slot was trimmed brings nothing back."""
        for slot in (0, 2, 3) if not claimed_before else (0, 1, 2, 3):
            ledger.claim(slot, b"history")
        other = self.open_again(ledger)
        with pytest.raises(Trimmed):
            self.claim_asleep(ledger, 1, b"zombie", lambda: other.trim(2))
        for handle in (ledger, other, self.open_again(ledger)):
            assert (handle.floor(), handle.slots(), handle.last()) == (2, [3], 3)
            with pytest.raises(Trimmed):
                handle.read(1)

    def test_who_sleeps_through_a_claim_has_lost(self, ledger: Ledger) -> None:
        """A claimer that froze in the middle of its claim gets the record of whoever was faster."""
        other = self.open_again(ledger)

        def overtake() -> None:
            assert other.claim(0, b"faster").won

        assert self.claim_asleep(ledger, 0, b"slower", overtake) == Claim(won=False, record=b"faster")

    # Many callers

    def test_threads_racing_agree(self, ledger: Ledger) -> None:
        """Among many threads exactly one wins each slot, and every loser gets the winner's record."""
        seen = self._race_threads(ledger, [_shuffled(range(40), seed) for seed in range(THREADS)])
        assert sum(bool(saw.won) for saw in seen) == 40
        check_sightings(ledger, seen)

    def test_threads_racing_a_trimmer_agree(self, ledger: Ledger) -> None:
        """No slot is won twice while it is trimmed under the claimers' feet."""
        seen = self._race_threads(ledger, [list(range(60))] * THREADS, trim_lag=1)
        check_sightings(ledger, seen)
        assert ledger.last() == 59

    def test_processes_racing_agree(self, ledger: Ledger, tmp_path: Path) -> None:
        """Among many processes exactly one wins each slot, and every loser gets the winner's record."""
        self._need_processes()
        orders = [list(range(60)), list(range(60)), *(_shuffled(range(60), seed) for seed in range(PROCESSES - 2))]
        seen = race(self.opener(ledger), tmp_path, orders)
        assert sum(bool(saw.won) for saw in seen) == 60
        check_sightings(ledger, seen)

    def test_processes_racing_a_trimmer_agree(self, ledger: Ledger, tmp_path: Path) -> None:
        """No slot is won twice by processes while another one trims."""
        self._need_processes()
        seen = race(self.opener(ledger), tmp_path, [list(range(150))] * PROCESSES, trim_lag=1)
        check_sightings(ledger, seen)
        assert (ledger.last(), len(ledger.slots())) == (149, 149 - ledger.floor())

    def test_behaves_like_a_dictionary(self, tmp_path: Path) -> None:
        """Any sequence of calls and reopenings gives what a dictionary with a floor would give."""
        numbers = iter(range(1_000_000))

        def make() -> Ledger:
            directory = tmp_path / f"model-{next(numbers)}"
            directory.mkdir()
            return self.make_ledger(directory)

        run_state_machine_as_test(
            lambda: LedgerModel(make, self.open_again),  # type: ignore[arg-type]  # Hypothesis takes any factory
            settings=settings(max_examples=40, stateful_step_count=25, deadline=None),
        )

    def _need_processes(self) -> None:
        if not self.processes:
            pytest.skip("this ledger lives in one process")

    def _race_threads(self, ledger: Ledger, orders: list[list[int]], trim_lag: int | None = None) -> list[Saw]:
        gun = threading.Barrier(len(orders))

        def run(number: int) -> list[Saw]:
            handle = self.open_again(ledger) if number % 2 else ledger
            gun.wait()
            seen = []
            for slot in orders[number]:
                seen.append(claim_and_note(handle, f"thread-{number}", slot))
                if number == 0 and trim_lag is not None:
                    handle.trim((handle.last() or 0) - trim_lag)
            return seen

        with ThreadPoolExecutor(len(orders)) as pool:
            return [saw for seen in pool.map(run, range(len(orders))) for saw in seen]


class LedgerModel(RuleBasedStateMachine):
    """A ledger beside a dictionary; Hypothesis looks for a sequence of calls after which they differ."""

    def __init__(self, make: Callable[[], Ledger], open_again: Callable[[Ledger], Ledger]) -> None:
        super().__init__()
        self._open_again = open_again
        self._ledger = make()
        self._records: dict[int, bytes] = {}
        self._floor = NO_FLOOR

    @rule(slot=st.integers(0, 12), record=st.binary(max_size=40))
    def claim(self, slot: int, record: bytes) -> None:
        if slot <= self._floor:
            with pytest.raises(Trimmed):
                self._ledger.claim(slot, record)
            return
        won = slot not in self._records
        assert self._ledger.claim(slot, record) == Claim(won, self._records.setdefault(slot, record))

    @rule()
    def claim_the_next(self) -> None:
        self.claim(max(self._records, default=self._floor) + 1, b"next")

    @rule(slot=st.integers(0, 14))
    def read(self, slot: int) -> None:
        if slot <= self._floor:
            with pytest.raises(Trimmed):
                self._ledger.read(slot)
        else:
            assert self._ledger.read(slot) == self._records.get(slot)

    @rule(floor=st.integers(-2, 14))
    def trim(self, floor: int) -> None:
        if floor > self._floor and floor >= max(self._records, default=NO_FLOOR):
            with pytest.raises(ValueError, match="newest"):
                self._ledger.trim(floor)
            return
        self._ledger.trim(floor)
        self._floor = max(self._floor, floor)
        self._records = {slot: record for slot, record in self._records.items() if slot > self._floor}

    @rule()
    def reopen(self) -> None:
        self._ledger = self._open_again(self._ledger)

    @invariant()
    def looks_alike(self) -> None:
        assert self._ledger.last() == max(self._records, default=None)
        assert self._ledger.slots() == sorted(self._records)
        assert self._ledger.floor() == self._floor


def _shuffled(slots: range, seed: int) -> list[int]:
    return random.Random(seed).sample(slots, len(slots))
