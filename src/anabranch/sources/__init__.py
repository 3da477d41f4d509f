"""Where rows come from: one file per kind, and `source.py` is the contract."""

from __future__ import annotations

from typing import Any

from anabranch.errors import AnabranchError, Corrupt
from anabranch.sources.csv import CsvFiles, read_csv
from anabranch.sources.jsonl import JsonlFiles, read_jsonl
from anabranch.sources.parquet import ParquetFiles, read_parquet
from anabranch.sources.parsed import MALFORMED
from anabranch.sources.replicas import ReplicaChannels, read_replicas
from anabranch.sources.source import Limit, Planner, Range, Source, TakingPlanner
from anabranch.sources.text import TextFiles, read_text
from anabranch.sources.words import Words, generate_words

__all__ = [
    "MALFORMED",
    "CsvFiles",
    "JsonlFiles",
    "Limit",
    "ParquetFiles",
    "Planner",
    "Range",
    "ReplicaChannels",
    "Source",
    "TakingPlanner",
    "TextFiles",
    "Words",
    "copied",
    "epochs_decided_elsewhere",
    "from_spec",
    "generate_words",
    "read_csv",
    "read_jsonl",
    "read_parquet",
    "read_replicas",
    "read_text",
]

_VERSION = 1
_KINDS: dict[str, type[Words | TextFiles | JsonlFiles | CsvFiles | ParquetFiles | ReplicaChannels]] = {
    "words": Words,
    "text": TextFiles,
    "jsonl": JsonlFiles,
    "csv": CsvFiles,
    "parquet": ParquetFiles,
    "replicas": ReplicaChannels,
}


def epochs_decided_elsewhere(source: Source) -> bool:
    """Say whether a source comes in epochs that must be taken as they are."""
    return isinstance(source, ReplicaChannels) and source.aligned


def copied(spec: dict[str, Any] | None) -> bool:
    """Say whether the rows of a source are copied into its channel when they are taken."""
    return spec is not None and spec.get("kind") == "replicas"


def may_become(before: dict[str, Any] | None, after: dict[str, Any] | None) -> bool:
    """Say whether a source may go on as another. Pure.

    Only what does not change the rows that were already taken may differ: malformed rows may be diverted from now on,
    for until now there were none; replicas may be elsewhere, and there may be more of them. Where rows are taken, it is
    noted by number how far each replica was read: one that is still there keeps its number.
    """
    if before == after:
        return True
    if before is None or after is None:
        return False
    if before.get("kind") == "replicas":
        were, are = before["works"], after.get("works", [])
        moved = [work for work in were if work in are and are.index(work) != were.index(work)]
        in_order = before.get("timestamp") is None or not moved
        return {**before, "works": are} == after and len(are) >= len(were) and in_order
    return {**before, "malformed": "divert"} == after and before.get("malformed") == "fail"


def from_spec(spec: dict[str, Any]) -> Source:
    """Make the source that a `spec()` describes; `Corrupt` if this version does not know what it says. Cheap."""
    fields = dict(spec)
    kind, version = fields.pop("kind", None), fields.pop("version", None)
    if kind not in _KINDS or version != _VERSION:
        raise Corrupt(
            f"a source is described as kind {kind!r}, version {version!r}",
            hint=f"this version of Anabranch knows {', '.join(_KINDS)}, version {_VERSION}",
        )
    try:
        source: Source = _KINDS[kind](**fields)
    except (TypeError, AnabranchError) as error:
        raise Corrupt(f"the description of a {kind} source is damaged: {error}", hint="restore it") from error
    return source
