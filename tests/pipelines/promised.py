"""Every step of `promised_steps` beside the others, over the same events.

`PROMISED_STEPS` chooses some, `PROMISED_STRATEGIES` how each is protected (`windows:active,totals:trailing`).
"""

import os

from pyspark.sql import DataFrame

import anabranch as ab
from promised_steps import STEPS

COLUMNS = "ts timestamp, key string, value long, x double, d decimal(12, 2), items array<long>"
STRATEGIES = {
    "active": ab.ActiveStandby(),
    "written": ab.ActiveStandby(release="written"),
    "trailing": ab.TrailingStandby(every_s=1),
    "passive": ab.PassiveStandby(store="log:store"),
    "upstream": ab.UpstreamBackup(),
    "shipped": ab.PassiveStandby(store="log:store", release="shipped"),
    "amnesia": ab.Amnesia(),
}

pipe = ab.Pipeline("promised", settings=ab.Settings(largest_epoch_bytes=1, pending_epochs=2, state_partitions=2))
events = pipe.source("events", ab.read_jsonl("events", schema=COLUMNS))


def named(name):
    """Return the function of one step."""

    def step(events: DataFrame) -> DataFrame:
        return STEPS[name].build(events)

    step.__name__ = name
    return step


for _name in filter(None, os.environ.get("PROMISED_STEPS", ",".join(STEPS)).split(",")):
    pipe.step(events, output_mode=STEPS[_name].mode)(named(_name))

for _protected in filter(None, os.environ.get("PROMISED_STRATEGIES", "").split(",")):
    _step, _, _strategy = _protected.partition(":")
    pipe.protect(_step, strategy=STRATEGIES[_strategy])
