"""Where a malformed record stands. A failing query shows the record; people need its file and line."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from anabranch.sources.parsed import MALFORMED
from anabranch.sources.source import Range, Source

_SHOWN = re.compile(rf"{re.escape(MALFORMED)}: (.*?)(?: SQLSTATE: \w+)?$", re.DOTALL)


def malformed_record(message: str) -> str | None:
    """Return the (beginning of the) record that an error message shows, None if it is about something else."""
    found = _SHOWN.search(message)
    return found[1].strip() if found else None


def locate_record(source: Source, planned: Range, record: str) -> str | None:
    """Return "FILE, line N" of the first record in a range that begins like this one, None if there is none."""
    located, directory = getattr(source, "located", None), getattr(source, "directory", None)
    if located is None or directory is None or not planned:
        return None
    for batch in located().read(planned):
        # As bytes: what does not fit may not even be text.
        values = batch.column("value").cast(pa.binary()).to_pylist()
        for value, name, offset in zip(values, batch["file"].to_pylist(), batch["offset"].to_pylist(), strict=True):
            if value.decode("utf-8", "replace").strip().startswith(record):
                path = Path(directory) / name
                return f"{path}, line {path.read_bytes()[:offset].count(10) + 1}"
    return None
