"""What is decided of rows that replicas bring in any order, tried without Spark on random interleavings."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from anabranch.tuples.deciding import Arrivals, released, windows

seeds = st.integers(0, 1 << 32)


def replica_streams(chance, replicas):
    """Return rows with their times, and what each replica makes of them: other orders, true punctuations, other cuts.

    A replica holds back any row for as long as it likes; it punctuates only what all rows it has yet to bring lie
    behind. All but one may end early.
    """
    rows = [(chance.choice("abcd"), at) for at in range(1, 40) for _ in range(chance.choice([0, 1, 1, 3]))]
    streams = []
    for number in range(replicas):
        left, held, stream = list(rows), [], []
        while left or held:
            taken = chance.randrange(1, 4)
            held += left[:taken]
            del left[:taken]
            chance.shuffle(held)
            stream += [("row", held.pop()) for _ in range(chance.randrange(len(held) + 1))]
            pending = [at for _, at in [*held, *left[:1]]]
            if chance.random() < 0.5:
                stream.append(("punctuation", min(pending, default=100) - 1))
        whole = number == 0 or chance.random() < 0.5
        streams.append(stream if whole else stream[: chance.randrange(len(stream) + 1)])
    chance.shuffle(streams)
    return rows, streams


def micro_batches(chance, streams):
    """Yield what comes together: stretches of any streams, each in its own order."""
    left = {number: list(stream) for number, stream in enumerate(streams)}
    while any(left.values()):
        batch = []
        for number, stream in left.items():
            taken = chance.choice([0, 0, 1, 3, 10])
            batch.append((number, stream[:taken]))
            del stream[:taken]
        yield batch


@given(seeds, st.integers(1, 4))
def test_every_row_arrives_once(seed, replicas):
    """Any interleaving of replicas, some of which fall behind or end, gives the rows as often as they are there.

    As in Spark, the watermark of the last micro-batch drops rows, and that of this one forgets them, if it has any.
    """
    chance = random.Random(seed)
    rows, streams = replica_streams(chance, replicas)
    noted, passed, past, punctuation = None, Counter(), -1, -1
    for batch in micro_batches(chance, streams):
        late, past = past, punctuation
        arrivals, asked = Arrivals(noted), False
        come = [(number, what) for number, stretch in batch for kind, what in stretch if kind == "row"]
        chance.shuffle(come)
        for number, row in come:
            asked = True
            if row[1] > late and arrivals.first(repr(row), row[1], number):
                passed[row] += 1
        if asked:
            arrivals.forget(past)
            noted = arrivals.noted()
        marks = [what for _, stretch in batch for kind, what in stretch if kind == "punctuation"]
        punctuation = max([punctuation, *marks])
    assert passed == Counter(rows)


@given(seeds)
def test_what_is_past_is_forgotten(seed):
    """State does not outlive the punctuation."""
    chance = random.Random(seed)
    rows, _ = replica_streams(chance, 1)
    arrivals = Arrivals()
    for row in rows:
        arrivals.first(repr(row), row[1], 0)
    arrivals.forget(100)
    assert arrivals.noted() is None


@given(seeds, st.integers(1, 5), st.integers(1, 7))
def test_count_windows_are_those_of_the_sorted_rows(seed, size, slide):
    """However rows come and punctuations lie, windows are those over all rows in their one order, each once."""
    chance = random.Random(seed)
    rows = [(chance.randrange(30), chance.randrange(1000)) for _ in range(chance.randrange(40))]
    come = sorted(rows, key=lambda row: row[0] + chance.randrange(10))
    waiting, kept, position, found, until = [], [], 0, [], -1
    for number, row in enumerate(come):
        if row[0] > until:
            waiting.append(row)
        if chance.random() < 0.3:
            until = max(until, min((later[0] for later in come[number + 1 :]), default=100) - 1)
            ready, waiting = released(waiting, until, lambda row: row)
            some, kept = windows(kept, position, ready, size, slide)
            position += len(ready)
            found += some
    ready, _ = released(waiting, 1000, lambda row: row)
    found += windows(kept, position, ready, size, slide)[0]
    ordered = sorted(rows)
    assert found == [(begin, ordered[begin : begin + size]) for begin in range(0, len(ordered) - size + 1, slide)]


@given(st.integers(1, 5), st.integers(1, 9))
def test_no_more_rows_are_kept_than_a_window_needs(size, slide):
    """Between windows that lie apart, rows are dropped as they come."""
    kept = []
    for position in range(50):
        _, kept = windows(kept, position, ["row"], size, slide)
        assert len(kept) < size
