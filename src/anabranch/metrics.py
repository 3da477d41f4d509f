"""What a node tells Prometheus, in its text format; made anew for every scrape from what the node knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from anabranch.takeovers import Recovery

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S = (0.25, 0.5, 1.0, 2.0, 3.5, 5.0, 10.0, 20.0, 60.0)


def render(node: dict[str, Any], channels: Sequence[dict[str, Any]], recoveries: Sequence[Recovery]) -> bytes:
    """Return the metrics of one node: its replicas, the channels it knows, and the takeovers it has done."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape([*_replicas(node), *_channels(channels), *_failovers(recoveries)]))
    return generate_latest(registry)


class _Scrape:
    """What the client library wants: something that gives metrics."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self._metrics


def _replicas(node: dict[str, Any]) -> Iterable[Metric]:
    epochs = GaugeMetricFamily("anabranch_epoch", "Last committed epoch of a replica.", labels=["unit", "role"])
    generations = GaugeMetricFamily("anabranch_lease_generation", "Generation of a lease held here.", labels=["unit"])
    labels = ["unit", "store"]
    ages = GaugeMetricFamily("anabranch_checkpoint_age_seconds", "Age of the newest version in a store.", labels=labels)
    lags = GaugeMetricFamily("anabranch_checkpoint_lag_epochs", "Epochs that a store lacks.", labels=labels)
    sizes = CounterMetricFamily("anabranch_checkpoint_bytes", "Bytes shipped to a store.", labels=labels)
    for unit in node["units"]:
        epochs.add_metric([unit["unit"], unit["role"]], unit["epoch"])
        if unit["generation"] is not None:
            generations.add_metric([unit["unit"]], unit["generation"])
        for store in unit["stores"]:
            where = [unit["unit"], store["store"]]
            lags.add_metric(where, store["lag_epochs"])
            sizes.add_metric(where, store["size_bytes"])
            if store["age_s"] is not None:
                ages.add_metric(where, store["age_s"])
    return epochs, generations, ages, lags, sizes


def _channels(channels: Sequence[dict[str, Any]]) -> Iterable[Metric]:
    published = GaugeMetricFamily("anabranch_published_epoch", "Newest epoch of a channel.", labels=["channel"])
    behind = GaugeMetricFamily(
        "anabranch_unpublished_epochs", "Epochs that wait at the inputs of a unit.", labels=["unit"]
    )
    for channel in channels:
        published.add_metric([channel["name"]], channel["last"])
        if channel["waiting"] is not None:
            behind.add_metric([channel["name"]], max(0, channel["waiting"] - channel["last"]))
    return published, behind


def _failovers(recoveries: Sequence[Recovery]) -> Iterable[Metric]:
    whole = HistogramMetricFamily(
        "anabranch_failover_duration_seconds",
        "From the last sign of life of a unit's holder until the unit has caught up elsewhere.",
        labels=["unit"],
    )
    phases = CounterMetricFamily(
        "anabranch_failover_phase_seconds", "Seconds spent in each phase of takeovers.", labels=["unit", "phase"]
    )
    for unit in sorted({recovery.role for recovery in recoveries}):
        some = [recovery for recovery in recoveries if recovery.role == unit]
        buckets = [(str(top), float(sum(one.total_s <= top for one in some))) for top in _BUCKETS_S]
        total_s = sum(one.total_s for one in some)
        whole.add_metric([unit], [*buckets, ("+Inf", float(len(some)))], sum_value=total_s)
        for phase in ("detected_s", "restore_s", "first_output_s", "catch_up_s"):
            seconds = sum(getattr(one, phase) or 0.0 for one in some)
            phases.add_metric([unit, phase.removesuffix("_s")], seconds)
    return whole, phases
