"""How long takeovers take, phase by phase, and what is told of them."""

from prometheus_client.parser import text_string_to_metric_families

from anabranch import metrics
from anabranch.takeovers import Recovery, Seen, Taken, Takeovers


class Watching:
    """A takeover of `counts` at second 100, 0.3 s after its holder was last heard."""

    def __init__(self):
        self.notes = []
        self.takeovers = Takeovers(lambda kind, **fields: self.notes.append((kind, fields)))
        self.takeovers.begin(Taken("counts", 4, 100.0, 0.25))

    def look(self, now_s, *, running=True, first_output_s=None, published=7, waiting=9):
        self.takeovers.look(now_s, lambda _: Seen(running, first_output_s, published, waiting))
        return self.notes


def test_each_phase_is_counted_from_the_one_before():
    """Noticing, restoring, the first output, catching up."""
    watching = Watching()
    assert watching.look(100.5, running=False) == []
    assert watching.look(101.0) == []
    assert watching.look(103.0, first_output_s=102.5) == []
    [(kind, told)] = watching.look(106.0, first_output_s=102.5, published=8)
    assert kind == "recovered"
    assert told == {
        "role": "counts",
        "generation": 4,
        "detected_s": 0.25,
        "restore_s": 1.0,
        "first_output_s": 1.5,
        "catch_up_s": 3.5,
        "total_s": 6.25,
    }


def test_a_takeover_that_is_over_is_told_once():
    """And one that another node took over in turn is not told at all."""
    watching = Watching()
    assert len(watching.look(101.0, first_output_s=100.5, published=9)) == 1
    assert len(watching.look(102.0, first_output_s=100.5, published=9)) == 1
    watching.takeovers.begin(Taken("counts", 6, 110.0, None))
    watching.takeovers.drop("counts")
    assert len(watching.look(111.0, first_output_s=110.5, published=9)) == 1


def test_output_may_come_before_the_loop_looks():
    """A standby that withheld an epoch publishes it while the node is still at it."""
    watching = Watching()
    [(_, told)] = watching.look(100.5, first_output_s=100.125, published=9)
    assert (told["restore_s"], told["first_output_s"], told["catch_up_s"]) == (0.5, 0.0, 0.0)


def test_metrics_are_what_prometheus_reads():
    """Every value with its labels, and failovers as a histogram."""
    store = {"store": "log:s", "lag_epochs": 2, "size_bytes": 900, "age_s": 1.5}
    units = [
        {"unit": "counts", "role": "primary", "epoch": 8, "generation": 4, "stores": [store]},
        {"unit": "joined", "role": "standby", "epoch": 6, "generation": None, "stores": [{**store, "age_s": None}]},
    ]
    channels = [{"name": "lines", "last": 9, "waiting": None}, {"name": "counts", "last": 8, "waiting": 9}]
    recoveries = [Recovery("counts", n, 0.25, 0.5, 0.5, 0.0, total_s) for n, total_s in enumerate((0.9, 4.0, 90.0))]
    text = metrics.render({"units": units}, channels, recoveries).decode()
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["anabranch_epoch", "counts", "primary"] == 8
    assert found["anabranch_lease_generation", "counts"] == 4
    assert ("anabranch_lease_generation", "joined") not in found
    assert found["anabranch_checkpoint_age_seconds", "counts", "log:s"] == 1.5
    assert ("anabranch_checkpoint_age_seconds", "joined", "log:s") not in found
    assert found["anabranch_unpublished_epochs", "counts"] == 1
    assert found["anabranch_failover_duration_seconds_bucket", "1.0", "counts"] == 1
    assert found["anabranch_failover_duration_seconds_bucket", "5.0", "counts"] == 2
    assert found["anabranch_failover_duration_seconds_bucket", "+Inf", "counts"] == 3
    assert found["anabranch_failover_duration_seconds_sum", "counts"] == 94.9
    assert found["anabranch_failover_phase_seconds_total", "counts", "restore"] == 1.5
