"""Delivering: epochs reach a sink in order, go on after the last acknowledged one, and a failure is not kept quiet.

What a user's function is given is here too: at least once, always under the same epoch.
"""

import os
import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest

import anabranch as ab
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Part, Producer
from anabranch.delivery import Delivery
from anabranch.errors import Corrupt, PipelineError
from anabranch.sinks.sink import Delivery as SinkDelivery
from anabranch.testing.wait import wait_until

SINK = "counts.parquet"
WAIT_S = 30.0


class Crash(BaseException):
    """The process is gone: no handler of the code under test may catch this."""


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def channel(tmp_path):
    return Channel.create(tmp_path / "counts", ChannelSpec("counts", pa.schema([("n", pa.int64())])))


def publish(channel, *rows):
    """Publish one epoch per number, with that many rows; the deliverers here do not read them."""
    for count in rows:
        last = channel.ledger.last()
        epoch = 0 if last is None else last + 1
        parts = (Part(f"{epoch}-r0-0-0.arrow", count, 1, 1),) if count else ()
        channel.release(Manifest(epoch, Producer("counts", "r0", 0), 0.0, rows=count, parts=parts))


class Notebook:
    """A deliverer that writes down what it gets."""

    def __init__(self, *, fails_at=None, error=None):
        self.epochs = []
        self._fails_at, self._error = fails_at, error

    def deliver(self, manifest):
        if manifest.epoch == self._fails_at:
            raise self._error
        self.epochs.append(manifest.epoch)


def deliveries(channel, deliverer, run="n1"):
    return Delivery(SINK, channel, deliverer, run=run, wake=threading.Condition())


def deliver_all(channel, deliverer, run="n1"):
    """Deliver what is there without a thread."""
    delivery = deliveries(channel, deliverer, run)
    while delivery._deliver_next():
        pass
    return delivery


@pytest.fixture
def started(channel):
    """Start deliveries in their threads; they are stopped whatever happens."""
    running = []

    def start(deliverer, run="n1"):
        running.append(deliveries(channel, deliverer, run))
        running[-1].start()
        return running[-1]

    yield start
    for delivery in running:
        delivery.stop()


def test_epochs_are_delivered_in_order_as_they_come(channel, started):
    """What is there and what comes later is delivered once; an epoch without rows is acknowledged, not delivered."""
    book = Notebook()
    publish(channel, 2, 0, 1)
    delivery = started(book)
    wait_until(lambda: delivery.delivered == 2, WAIT_S, "three epochs")
    publish(channel, 0, 3)
    wait_until(lambda: delivery.delivered == 4, WAIT_S, "two more epochs")
    assert book.epochs == [0, 2, 4]
    assert channel.received(SINK) == 4
    assert delivery.failure() is None


def test_a_stopped_delivery_is_gone_on_with(channel):
    """A new run begins after the last acknowledged epoch."""
    publish(channel, 1, 1, 1)
    deliver_all(channel, Notebook(), "n1")
    publish(channel, 1, 1)
    book = Notebook()
    assert deliver_all(channel, book, "n2").delivered == 4
    assert book.epochs == [3, 4]


@pytest.mark.parametrize(
    ("moment", "again"),
    [("before delivering", [1, 2]), ("before acknowledging", [1, 2]), ("after acknowledging", [2])],
)
def test_a_killed_delivery_repeats_the_same_epoch_at_most(channel, monkeypatch, moment, again):
    """Killed around epoch 1, the next run delivers it again under the same number, unless it was acknowledged."""
    publish(channel, 1, 1, 1)
    book = Notebook(fails_at=1 if moment == "before delivering" else None, error=Crash())
    delivery = deliveries(channel, book)
    assert delivery._deliver_next()
    real = channel.acknowledge

    def acknowledge(*given):
        if moment == "before acknowledging":
            raise Crash
        real(*given)
        raise Crash

    monkeypatch.setattr(channel, "acknowledge", acknowledge)
    with pytest.raises(Crash):
        delivery._deliver_next()
    monkeypatch.undo()
    heir = Notebook()
    deliver_all(channel, heir, "n2")
    assert book.epochs == ([0] if moment == "before delivering" else [0, 1])
    assert heir.epochs == again


def test_what_is_safe_counts_when_acks_are_lost(channel):
    """Acks may vanish in a power cut; what was declared safe is not delivered again."""
    publish(channel, 1, 1, 1)
    delivery = deliveries(channel, Notebook())
    delivery.declare_safe()
    assert channel.safe(SINK) == -1
    delivery._deliver_next()
    delivery._deliver_next()
    delivery.declare_safe()
    channel.forget_runs(SINK, "none of them")
    assert (channel.received(SINK), channel.safe(SINK)) == (-1, 1)
    book = Notebook()
    deliver_all(channel, book, "n2")
    assert book.epochs == [2]


def test_a_delivery_begins_above_the_floor(channel):
    """Epochs that are trimmed, which every sink had declared safe, are not asked for."""
    publish(channel, 1, 1, 1, 1)
    channel.trim(1)
    book = Notebook()
    deliver_all(channel, book)
    assert book.epochs == [2, 3]


@pytest.mark.parametrize("error", [ValueError("no such table"), OSError(28, "disk full"), SystemExit(1)])
def test_a_failing_sink_is_heard_of(channel, started, error):
    """The error of a deliverer is handed on as it is; the epoch counts as not delivered, and nothing follows it."""
    publish(channel, 1, 1, 1)
    book = Notebook(fails_at=1, error=error)
    delivery = started(book)
    wait_until(lambda: not delivery._thread.is_alive(), WAIT_S, "the thread's end")
    assert delivery.failure() is error
    assert (delivery.delivered, channel.received(SINK), book.epochs) == (0, 0, [0])


def test_a_damaged_epoch_is_heard_of(channel, started):
    """An unreadable manifest ends delivering with an error, instead of a gap in what is delivered."""
    publish(channel, 1)
    channel.ledger.claim(1, b"not a manifest")
    publish(channel, 1)
    book = Notebook()
    delivery = started(book)
    wait_until(delivery.failure, WAIT_S, "a failure")
    assert isinstance(delivery.failure(), Corrupt)
    assert book.epochs == [0]


def test_stopping_waits_for_the_epoch_in_hand(channel):
    """A stop lets the epoch in hand be delivered and acknowledged, and takes no other."""
    publish(channel, 1, 1)
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Notebook):
        def deliver(self, manifest):
            begun.set()
            assert go_on.wait(WAIT_S)
            super().deliver(manifest)

    book = Slow()
    delivery = deliveries(channel, book)
    delivery.start()
    assert begun.wait(WAIT_S)
    stopper = threading.Thread(target=delivery.stop)
    stopper.start()
    wait_until(lambda: delivery._stopping, WAIT_S, "the stop to be heard")
    go_on.set()
    stopper.join(WAIT_S)
    assert (book.epochs, channel.received(SINK), delivery.failure()) == ([0], 0, None)


def test_a_delivery_wakes_whoever_waits_for_it(channel):
    """The pacer waits for the slowest sink: each delivered epoch is announced."""
    publish(channel, 1)
    delivery = deliveries(channel, Notebook())
    woken = []
    with delivery._wake:
        waiter = threading.Thread(target=delivery._deliver_next)
        waiter.start()
        woken.append(delivery._wake.wait(WAIT_S))
    waiter.join()
    assert woken == [True]


# Functions


class FakeSpark:
    """Reads an epoch as a "frame" that is just the options it was asked for."""

    sparkContext = SimpleNamespace(defaultParallelism=2)  # noqa: N815  Spark's name

    @property
    def read(self):
        return self

    def format(self, name):
        return self

    def schema(self, schema):
        return self

    def options(self, **options):
        return SimpleNamespace(schema=lambda _: SimpleNamespace(load=lambda: options))


@pytest.mark.parametrize("wants", [2, 3])
def test_a_function_gets_its_epoch(channel, wants):
    """A function of two gets frame and epoch, one of three the generation too; a redelivery is the same epoch."""
    got = []
    functions = {
        2: lambda frame, epoch: got.append((frame, epoch)),
        3: lambda frame, epoch, generation: got.append((frame, epoch, generation)),
    }
    manifest = Manifest(6, Producer("counts", "r0", 0), 0.0, rows=0)
    sink = ab.call(functions[wants])
    sink.check()
    for generation in (4, 5):
        sink.deliverer(SinkDelivery(FakeSpark(), channel, "work-1", generation)).deliver(manifest)
    assert [given[1:] for given in got] == ([(6,), (6,)] if wants == 2 else [(6, 4), (6, 5)])
    assert got[0][0] == got[1][0]
    assert (got[0][0]["channel"], got[0][0]["after"]) == (str(channel.path), "5")


@pytest.mark.parametrize(
    "function",
    [
        7,
        lambda: None,
        lambda frame: frame,
        lambda a, b, c, d: (a, b, c, d),
        lambda frame, epoch, *, table: (frame, epoch, table),
    ],
)
def test_a_function_that_cannot_be_called_so_is_refused(function):
    """What is no function of two or three arguments is found before anything runs."""
    with pytest.raises(PipelineError, match=r"ab\.call got") as caught:
        ab.call(function).check()
    assert "(frame, epoch, generation)" in caught.value.hint
