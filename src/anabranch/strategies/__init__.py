"""What protects a segment: one file per strategy."""

from anabranch.strategies.active_standby import ActiveStandby
from anabranch.strategies.passive_standby import PassiveStandby
from anabranch.strategies.trailing_standby import TrailingStandby

Strategy = ActiveStandby | PassiveStandby | TrailingStandby

__all__ = ["ActiveStandby", "PassiveStandby", "Strategy", "TrailingStandby"]
