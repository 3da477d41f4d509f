"""Which work directory a command means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anabranch.errors import PipelineError, WorkDirectoryError
from anabranch.work import Work

DEFAULT_ROOT = Path(".anabranch")

WorkOption = Annotated[
    Path | None, typer.Option("--work", metavar="DIR", help="Work directory [default: .anabranch/PIPELINE]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
TraceOption = Annotated[bool, typer.Option("--trace", help="Show Python and JVM traces of errors.")]


def open_work(work: Path | None) -> Work:
    """Open the named work directory, or the only one below .anabranch."""
    if work is not None:
        return Work.open(work)
    found = sorted(path.parent for path in DEFAULT_ROOT.glob("*/channels")) if DEFAULT_ROOT.is_dir() else []
    # A pipeline that was refused leaves a directory in which nothing was ever built.
    found = [path for path in found if (path / "identity.json").exists()] or found
    if len(found) == 1:
        return Work.open(found[0])
    if not found:
        raise WorkDirectoryError(
            f"there is no work directory below {DEFAULT_ROOT}/",
            hint="run a pipeline first, or name one with --work DIR",
        )
    names = ", ".join(str(path) for path in found)
    raise WorkDirectoryError(f"there are several work directories: {names}", hint="name one with --work DIR")


def settings_of(pairs: list[str]) -> dict[str, str]:
    """Return Spark settings given as KEY=VALUE."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("spark."):
            raise PipelineError(f"--set {pair!r} is not a Spark setting", hint="write --set spark.some.key=value")
        settings[key] = value
    return settings
