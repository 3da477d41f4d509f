"""The strategies that measured pipelines can be protected by, by name."""

import os
from collections.abc import Callable

import anabranch as ab
from anabranch.strategies import Strategy

STRATEGIES: dict[str, Callable[[], Strategy | None]] = {
    "none": lambda: None,
    "amnesia": ab.Amnesia,
    "upstream": ab.UpstreamBackup,
    "passive-cold": lambda: ab.PassiveStandby(store=os.environ["BENCH_STORE"], temperature="cold"),
    "passive-warm": lambda: ab.PassiveStandby(store=os.environ["BENCH_STORE"], temperature="warm"),
    "passive-gated": lambda: ab.PassiveStandby(store=os.environ["BENCH_STORE"], temperature="gated"),
    "shipped": lambda: ab.PassiveStandby(store=os.environ["BENCH_STORE"], release="shipped"),
    "trailing": ab.TrailingStandby,
    "active": ab.ActiveStandby,
    "written": lambda: ab.ActiveStandby(release="written"),
    "ksafe": ab.KSafe,
    "ksafe-2": lambda: ab.KSafe(2),
}
