"""Failure detection with a clock that is moved by hand: what is suspected, when, and what is not."""

import pytest

from anabranch.clock import ManualClock
from anabranch.detector import Limits, NodeWatch, Progress, ProgressWatch, Rounds

# Eighths of a second add up without a remainder.
STEP_S = 0.125
LIMITS = Limits(ping_every_s=STEP_S, silent_s=3 * STEP_S, hanging_s=2.0, stalled_s=5.0, grace_s=30.0)


class Watching:
    """A watcher that looks every eighth of a second until it is told otherwise."""

    def __init__(self, watch):
        self.clock = ManualClock(100.0)
        self.watch = watch(self.clock.steady_s())

    def after(self, seconds, *what, heard=None):
        """Look on for some time; return the first suspicion and when it came."""
        for step in range(int(seconds / STEP_S)):
            self.clock.advance(STEP_S)
            if heard is not None:
                self.watch.heard(heard, self.clock.steady_s())
            reason = self.watch.suspicion(*what, self.clock.steady_s())
            if reason is not None:
                return (step + 1) * STEP_S, reason
        return None


@pytest.fixture
def node():
    """A node that has answered fast for a while."""
    return known(Watching(lambda now_s: NodeWatch(LIMITS, now_s)))


def known(watching):
    for _ in range(300):
        watching.watch.heard(0.0, watching.clock.steady_s())
    return watching


def unit(generation=1, waiting=7, published=7):
    return Watching(lambda now_s: ProgressWatch(LIMITS, Progress(generation, waiting, published), now_s))


def test_a_node_that_answers_is_trusted(node):
    """For as long as it answers."""
    assert node.after(60, heard=0.0) is None


def test_a_silent_node_is_suspected_soon(node):
    """A dead process and a paused one look the same: no answer."""
    node.after(5, heard=0.0)
    assert node.after(10) == (3 * STEP_S, "silent for 0.4 s")


def test_one_lost_answer_is_nothing(node):
    """Silence ends with the next answer."""
    for _ in range(20):
        assert node.after(2 * STEP_S) is None
        assert node.after(STEP_S, heard=0.0) is None


def test_the_watchers_own_pause_is_nobodys_silence(node):
    """A watcher that was stopped for a minute does not suspect everyone when it wakes up, but goes on to listen."""
    node.after(5, heard=0.0)
    node.clock.advance(60.0)
    assert node.watch.suspicion(node.clock.steady_s()) is None
    assert node.after(10) == (STEP_S, "silent for 0.4 s")


def test_a_node_that_answers_but_hangs_is_suspected(node):
    """Its agent answers from a thread of its own; its main loop is stuck, say on a disk that is gone."""
    assert node.after(1, heard=1.9) is None
    assert node.after(1, heard=2.0) == (STEP_S, "hanging for 2.0 s")


def test_a_main_loop_hangs_when_it_is_busy_for_too_long():
    """At once if it does not come round; after a minute if it has something to do that may take long."""
    clock = ManualClock()
    rounds = Rounds(clock)
    clock.advance(500.0)
    assert rounds.hanging_s() == 0.0, "it has not begun"
    rounds.looked()
    clock.advance(3.0)
    assert rounds.hanging_s() == 3.0
    with rounds.busy():
        clock.advance(59.0)
        assert rounds.hanging_s() == 0.0
        clock.advance(10.0)
        assert rounds.hanging_s() == 9.0
    assert rounds.hanging_s() == 0.0


def test_a_node_that_is_slow_to_answer_is_given_longer(node):
    """On a busy machine answers take long, and silence must be longer than that; it shortens again afterwards."""
    node.watch.heard(0.0, node.clock.steady_s(), 0.25)
    assert node.after(5) == (1.0, "silent for 1.0 s")
    known(node)
    assert node.after(5) == (3 * STEP_S, "silent for 0.4 s")


def test_a_node_that_has_just_come_is_given_longer():
    """It is busy starting, and so may be its machine."""
    node = Watching(lambda now_s: NodeWatch(LIMITS, now_s))
    assert node.after(5) == (12 * STEP_S, "silent for 1.5 s")


def test_a_dead_process_is_known_at_once(node):
    """Where nobody listens there is nothing to wait for; a node that answers again is back."""
    node.after(5, heard=0.0)
    node.watch.refused()
    assert node.after(5) == (STEP_S, "dead: nobody listens at its address")
    assert node.after(1, heard=0.0) is None


def test_a_node_that_acts_lives_though_it_is_not_heard(node):
    """Two nodes that are cut off from each other do not take everything from each other without end."""
    node.after(5, heard=0.0)
    for given_s in (3 * STEP_S, 5.0, 10.0, 20.0, 30.0, 30.0):
        assert node.after(60)[0] == given_s
        node.watch.acted()
        assert node.watch.suspicion(node.clock.steady_s()) is None
    node.after(5, heard=0.0)
    assert node.after(5)[0] == 3 * STEP_S, "it was heard again"


def test_what_is_seen_just_after_a_death_is_no_sign_of_life(node):
    """The ledgers show the last things that a node did a moment after its process was found dead."""
    node.after(5, heard=0.0)
    node.watch.refused()
    for _ in range(4):
        assert node.after(STEP_S) == (STEP_S, "dead: nobody listens at its address")
        node.watch.acted()


def test_a_node_that_acts_lives_though_it_is_refused(node):
    """Something between the two refuses: from then on that is silence, or they would depose each other without end."""
    node.after(5, heard=0.0)
    node.watch.refused()
    for _ in range(12):
        assert node.after(STEP_S) is not None
    node.watch.acted()
    node.watch.refused()
    assert node.after(60)[0] == 5.0
    node.watch.acted()
    node.watch.refused()
    assert node.after(60)[0] == 10.0
    node.after(1, heard=0.0)
    node.watch.refused()
    assert node.after(5)[0] == STEP_S, "it was heard since, and is dead now"


def test_what_is_published_counts_like_an_answer(node):
    """A node that publishes is not suspected, however long it is silent."""
    node.after(5, heard=0.0)
    for _ in range(100):
        assert node.after(2 * STEP_S) is None
        node.watch.acted()
    assert node.after(5)[0] == 3 * STEP_S


def test_a_unit_without_input_may_be_quiet():
    """Nothing is published because nothing waits."""
    assert unit().after(1_000, Progress(1, 7, 7)) is None


def test_a_unit_that_publishes_is_trusted():
    """However slow it is against its input."""
    some = unit()
    for epoch in range(8, 60):
        assert some.after(4.75, Progress(1, 100, epoch)) is None


def test_a_hung_query_behind_a_live_process_is_suspected():
    """Input waits, and nothing was published for the limit."""
    some = unit()
    for epoch in range(8, 40):
        assert some.after(0.5, Progress(1, epoch, epoch)) is None
    assert some.after(60, Progress(1, 40, 39)) == (5.0, "epoch 40 waits, nothing published for 5.0 s")


def test_a_unit_whose_epochs_take_long_is_given_longer():
    """Up to a limit; and so is one that has hardly begun, because all that starts beside it is slow too."""
    some = unit()
    some.after(1, Progress(1, 9, 8))
    assert some.after(60, Progress(1, 10, 9))[0] > 15.0
    for epoch in range(10, 40):
        assert some.after(2.5, Progress(1, 50, epoch)) is None
    assert some.after(60, Progress(1, 50, 40))[0] == pytest.approx(10.0, abs=0.5)
    for epoch in range(41, 44):
        some.after(20, Progress(1, 50, epoch))
    assert some.after(60, Progress(1, 50, 44))[0] == pytest.approx(30.0, abs=0.5)


def test_a_new_generation_is_given_time_to_restore():
    """It is judged by a longer limit until it has published something."""
    some = unit()
    assert some.after(1, Progress(1, 9, 8)) is None
    assert some.after(STEP_S, Progress(2, 9, 8)) is None
    assert some.after(29, Progress(2, 9, 8)) is None
    assert some.after(STEP_S, Progress(2, 9, 9)) is None
    assert some.after(60, Progress(2, 10, 9))[0] < 30.0


def test_patience_doubles_with_generations_that_publish_nothing():
    """So that takeovers of a unit that needs long do not chase each other for ever; what is published resets it."""
    some = unit()
    some.after(1, Progress(1, 9, 8))
    waits = []
    for generation in range(2, 6):
        some.after(STEP_S, Progress(generation, 9, 8))
        waits.append(some.after(1_000, Progress(generation, 9, 8))[0])
    assert waits == [30.0, 60.0, 120.0, 240.0]
    some.after(STEP_S, Progress(5, 9, 9))
    assert some.after(1_000, Progress(5, 10, 9))[0] <= 30.0, "it works by now, and hangs"
    some.after(STEP_S, Progress(6, 10, 9))
    assert some.after(1_000, Progress(6, 10, 9))[0] == 30.0


def test_a_watcher_that_was_paused_does_not_call_a_unit_stalled():
    """Its own pause does not count."""
    some = unit()
    some.after(1, Progress(1, 8, 8))
    some.after(1, Progress(1, 9, 8))
    some.clock.advance(100.0)
    assert some.watch.suspicion(Progress(1, 9, 8), some.clock.steady_s()) is None
