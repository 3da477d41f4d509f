"""Every strategy by the name that people type after `--strategy`; variants that promise other things have their own."""

from __future__ import annotations

from anabranch.strategies.active_standby import ActiveStandby
from anabranch.strategies.amnesia import Amnesia
from anabranch.strategies.k_safe import KSafe
from anabranch.strategies.passive_standby import PassiveStandby
from anabranch.strategies.strategy import Strategy, Unprotected
from anabranch.strategies.trailing_standby import TrailingStandby
from anabranch.strategies.upstream_backup import UpstreamBackup


def by_name(store: str) -> dict[str, Strategy]:
    """Return all of them; `store` is where checkpoints go if they are shipped."""
    return {
        "none": Unprotected(),
        "amnesia": Amnesia(),
        "upstream": UpstreamBackup(),
        "passive": PassiveStandby(store=store),
        "shipped": PassiveStandby(store=store, release="shipped"),
        "trailing": TrailingStandby(),
        "active": ActiveStandby(),
        "written": ActiveStandby(release="written"),
        "ksafe": KSafe(),
    }
