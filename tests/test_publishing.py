"""What a run publishes of a micro-batch: whether it is marked as incomplete. Without Spark."""

from anabranch.channel.manifest import Manifest, Producer
from anabranch.channel.writer import Planned, Written
from anabranch.publishing import Publishing, Seen, UnitEvents
from anabranch.spans import Span

NO_ROWS = Written((), 0, "0" * 32, None)
RUNNING = Span(None, "a running count")


class Release:
    """What is published, as far as it is not trimmed."""

    run, generation = "r1", 0

    def __init__(self, incomplete, first, last):
        self.manifests = {
            epoch: Manifest(epoch, Producer("counts", "r0", 0), 0.0, rows=0, incomplete=epoch in incomplete)
            for epoch in range(first, last + 1)
        }

    def last_published(self):
        return max(self.manifests)

    def published(self, epoch):
        return self.manifests.get(epoch)


def marked(release, after):
    publishing = Publishing("counts", {}, release, UnitEvents(lambda *_: None, lambda *_: None), span=RUNNING)
    publishing.go_on_after(after)
    return publishing.executed(Planned(after + 1, None), NO_ROWS, Seen()).incomplete


def test_who_goes_on_from_an_incomplete_state_says_so():
    """Also where the epoch that said it is trimmed by now: those after it say it too."""
    incomplete = range(3, 10)
    assert marked(Release(incomplete, first=0, last=9), after=5)
    assert marked(Release(incomplete, first=7, last=9), after=5)
    assert not marked(Release((), first=7, last=9), after=5)
    assert not marked(Release(incomplete, first=0, last=9), after=2)
