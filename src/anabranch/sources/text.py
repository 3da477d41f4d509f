"""Plain text: one row per line, as Spark's own text reader gives it, blank lines included."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from anabranch.sources.files import absolute
from anabranch.sources.lines import LineSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def read_text(directory: str | os.PathLike[str], *, pattern: str = "*") -> TextFiles:
    """Return a source of `value string`: the lines of the files in a directory, which may grow.

    A line is a row once its newline is written. Bytes that are not UTF-8 are passed on as they are, as in Spark.
    """
    return TextFiles(directory=absolute(directory), pattern=pattern)


@dataclass(frozen=True, kw_only=True)
class TextFiles(LineSource):
    """The source; made by `read_text`."""

    kind: ClassVar[str] = "text"

    def shape(self, raw: DataFrame) -> DataFrame:
        return raw.select("value")
