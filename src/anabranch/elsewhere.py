"""The same pipeline in another place: it reads copies, delivers to a directory of its own, and keeps its own stores.

So a pipeline can be tried, and broken, without touching what it reads, what it has delivered, or what it keeps. Sources
that make their own rows stay as they are, and so do stores that are not directories: versions of different work
directories never meet there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from anabranch.pipeline import Graph, SinkNode, SourceNode
from anabranch.sinks import parquet
from anabranch.store.opening import check_url
from anabranch.strategies import PassiveStandby, Strategy


def input_path(scratch: Path, source: str) -> Path:
    """Return where a source reads its files."""
    return scratch / "input" / source


def output_path(scratch: Path, sink: str) -> Path:
    """Return where a sink delivers, as Parquet."""
    return scratch / "output" / sink


def store_path(scratch: Path) -> Path:
    """Return where checkpoints are kept."""
    return scratch / "stores"


def moved(graph: Graph, scratch: Path) -> Graph:
    """Return a pipeline that does the same below a directory. Pure."""
    return replace(
        graph,
        sources={name: _source(node, scratch) for name, node in graph.sources.items()},
        sinks={name: _sink(node, scratch) for name, node in graph.sinks.items()},
        strategies={name: _strategy(strategy, scratch) for name, strategy in graph.strategies.items()},
    )


def _source(node: SourceNode, scratch: Path) -> SourceNode:
    source: Any = node.source
    if not hasattr(source, "directory"):
        return node
    return replace(node, source=replace(source, directory=str(input_path(scratch, node.name))))


def _sink(node: SinkNode, scratch: Path) -> SinkNode:
    return replace(node, sink=parquet(output_path(scratch, node.name)))


def _strategy(strategy: Strategy, scratch: Path) -> Strategy:
    if not isinstance(strategy, PassiveStandby):
        return strategy
    stores = []
    for number, url in enumerate(strategy.stores):
        kind, _ = check_url(url)
        stores.append(f"{kind}:{store_path(scratch) / str(number)}" if kind in ("log", "files") else url)
    return replace(strategy, store=tuple(stores))
