"""Passive standby: checkpoints are shipped to stores, and whoever takes over restores the newest one.

The cost is checkpoint traffic; taking over costs restoring, and executing again what came after the last version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from anabranch.errors import PipelineError
from anabranch.keeper.calibration import Trigger
from anabranch.store.opening import check_url


@dataclass(frozen=True)
class PassiveStandby:
    """Ship a version every `every` epochs or every `every_s` seconds, to one store or to several.

    `store` is an address: `log:DIR`, `files:DIR`, `redis://HOST:PORT/DB`. Each store alone is enough to restore from.
    While a store is behind, the epochs that it lacks are held; at `most_behind` of them no more input is taken.
    """

    store: str | Sequence[str]
    every: int | None = 1
    every_s: float | None = None
    most_behind: int = 5_000
    stores: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        stores = (self.store,) if isinstance(self.store, str) else tuple(self.store)
        object.__setattr__(self, "stores", stores)
        if not stores:
            raise PipelineError("PassiveStandby has no store", hint='name one, such as store="log:DIR"')
        for url in stores:
            check_url(url)
        if len(set(stores)) < len(stores):
            raise PipelineError("PassiveStandby names a store twice", hint="name each store once")
        if self.every is None and self.every_s is None:
            raise PipelineError("PassiveStandby never ships", hint="give every=EPOCHS or every_s=SECONDS")
        for name, value in (("every", self.every), ("every_s", self.every_s), ("most_behind", self.most_behind)):
            if value is not None and not value > 0:
                raise PipelineError(f"PassiveStandby: {name} is {value!r}", hint=f"{name} must be more than zero")

    @property
    def trigger(self) -> Trigger:
        """When a version is due: at the latest when half of what may be held for a store is held."""
        latest = max(1, self.most_behind // 2)
        return Trigger(min(self.every or latest, latest), self.every_s)
