"""A copy of the package in which one thing is other than it should be."""

from __future__ import annotations

import shutil
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "anabranch"


def changed_package(directory: Path, path: str, old: str, new: str) -> Path:
    """Copy the package below a directory, with some code replaced that must be there once; return the copy."""
    copy = directory / "src" / "anabranch"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / path).read_text()
    assert text.count(old) == 1, f"the code of the rule is no longer found in {path}"
    (copy / path).write_text(text.replace(old, new))
    return copy
