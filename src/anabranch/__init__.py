"""Anabranch keeps PySpark streaming pipelines flowing through failures.

`import anabranch as ab`, then `ab.Pipeline`, sources (`ab.read_…`), steps and sinks; see README.md.
"""

from anabranch.errors import AnabranchError
from anabranch.pipeline import Pipeline, Stream
from anabranch.reading import Epoch, read_channel
from anabranch.settings import Settings
from anabranch.sinks import call, console, jsonl, parquet
from anabranch.sources import generate_words, read_csv, read_jsonl, read_parquet, read_replicas, read_text
from anabranch.strategies import ActiveStandby, Amnesia, KSafe, PassiveStandby, TrailingStandby, UpstreamBackup

__version__ = "0.1.0"

__all__ = [
    "ActiveStandby",
    "Amnesia",
    "AnabranchError",
    "Epoch",
    "KSafe",
    "PassiveStandby",
    "Pipeline",
    "Settings",
    "Stream",
    "TrailingStandby",
    "UpstreamBackup",
    "call",
    "console",
    "generate_words",
    "jsonl",
    "parquet",
    "read_channel",
    "read_csv",
    "read_jsonl",
    "read_parquet",
    "read_replicas",
    "read_text",
]
