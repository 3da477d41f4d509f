"""What protects a segment: one file per strategy."""

from anabranch.strategies.passive_standby import PassiveStandby

__all__ = ["PassiveStandby"]
