"""Delivering: one thread per sink takes published epochs, in order, to where they go.

A sink is a consumer like any unit: it acknowledges what it has delivered, and what it has delivered is safe. It goes on
after the last acknowledged epoch; an epoch that was delivered but not acknowledged is delivered again, and the
deliverer deals with that (see sink.py).
"""

from __future__ import annotations

import threading

from anabranch.channel.channel import Channel
from anabranch.sinks.sink import Deliverer

# How long an idle sink waits before it looks again; a release on this node wakes it at once.
_POLL_S = 0.02


class Delivery:
    """One sink's thread."""

    def __init__(
        self, name: str, channel: Channel, deliverer: Deliverer, *, run: str, wake: threading.Condition
    ) -> None:
        self.name = name
        self._channel = channel
        self._deliverer = deliverer
        self._run = run
        self._wake = wake
        self._stopping = False
        self._failure: BaseException | None = None
        self.delivered = max(channel.received(name), channel.safe(name), channel.ledger.floor())
        self._thread = threading.Thread(target=self._loop, name=f"sink {name}", daemon=True)

    def start(self) -> None:
        """Begin delivering."""
        self._thread.start()

    def failure(self) -> BaseException | None:
        """Return why delivering ended, None while it goes on."""
        return self._failure

    def declare_safe(self) -> None:
        """Tell the channel what this sink will never need again."""
        if self.delivered >= 0:
            self._channel.declare_safe(self.name, self.delivered)

    def stop(self) -> None:
        """End after the epoch in hand."""
        self._stopping = True
        with self._wake:
            self._wake.notify_all()
        self._thread.join()

    def _loop(self) -> None:
        try:
            while not self._stopping:
                if not self._deliver_next():
                    with self._wake:
                        self._wake.wait(_POLL_S)
        except BaseException as error:  # noqa: BLE001  handed to the node, which decides; a sink may call sys.exit
            self._failure = error

    def _deliver_next(self) -> bool:
        epoch = self.delivered + 1
        manifest = self._channel.manifest(epoch)
        if manifest is None:
            return False
        if manifest.rows:
            self._deliverer.deliver(manifest)
        self._channel.acknowledge(self.name, self._run, epoch)
        self.delivered = epoch
        with self._wake:
            self._wake.notify_all()
        return True
