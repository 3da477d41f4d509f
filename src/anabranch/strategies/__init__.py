"""What protects a segment: one file per strategy."""

from anabranch.strategies.active_standby import ActiveStandby
from anabranch.strategies.amnesia import Amnesia
from anabranch.strategies.k_safe import KSafe
from anabranch.strategies.passive_standby import PassiveStandby
from anabranch.strategies.strategy import Strategy
from anabranch.strategies.trailing_standby import TrailingStandby
from anabranch.strategies.upstream_backup import UpstreamBackup

__all__ = ["ActiveStandby", "Amnesia", "KSafe", "PassiveStandby", "Strategy", "TrailingStandby", "UpstreamBackup"]
