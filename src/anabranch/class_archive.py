"""An archive of the classes that Spark loads, from which a JVM starts in about half the time and CPU.

Java calls it class data sharing: classes that were parsed and checked once are mapped into memory, by all nodes of a
machine together. The archive is made once (`anabranch.preparation`) and found by whoever starts Spark. Java itself
compares it with its own version and with every jar, and does without it if anything differs.

An archive is code: one that somebody else could have written is not used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from importlib.util import find_spec
from pathlib import Path

OFF = "off"
_VARIABLE = "ANABRANCH_ARCHIVE"
_USE = "-XX:SharedArchiveFile="
_MAKE = "-XX:ArchiveClassesAtExit="
# An archive that does not fit is no news for whoever runs a pipeline.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def archive_path() -> Path | None:
    """Return where the archive for this Java and this Spark is, or would be; None where it is not wanted.

    `ANABRANCH_ARCHIVE` names another directory than the user's cache; `off` does without.
    """
    place = os.environ.get(_VARIABLE, "")
    java, spark = _java(), find_spec("pyspark")
    if place == OFF or java is None or spark is None or spark.origin is None:
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anabranch"
    parts = [f"{path}:{path.stat().st_mtime_ns}" for path in (java, Path(spark.origin))]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return (Path(place) if place else cache).absolute() / f"spark-{name}.jsa"


def usable(path: Path) -> bool:
    """Say whether an archive is there that nobody but this user could have put there."""
    try:
        file, directory = path.lstat(), path.parent.stat()
    except OSError:
        return False
    mine = file.st_uid == directory.st_uid == os.getuid()
    others = (file.st_mode | directory.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    return mine and not others and stat.S_ISREG(file.st_mode) and file.st_size > 0


def with_archive(java_options: str) -> str:
    """Add to the options of a JVM what makes it use the archive, if there is one and no other is asked for."""
    path = archive_path()
    if path is None or not usable(path) or " " in str(path) or _USE in java_options or _MAKE in java_options:
        return java_options
    return f"{java_options} {_USE}{path} {_QUIET}".strip()


def that_makes(path: Path, java_options: str) -> str:
    """Add to the options of a JVM what makes it write an archive of its classes when it ends."""
    return f"{java_options} {_MAKE}{path} {_QUIET}".strip()


def _java() -> Path | None:
    """Find Java as Spark does: JAVA_HOME first, then the search path."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    return Path(found).resolve() if found else None
