"""Looking at anything, and repairing what can be repaired without losing data.

Repairing only ever removes files that a finding names, and only after they were copied to a directory beside the one
that was looked at. Everything else is for a restore, which the advice says.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from anabranch.doctor.checkpoints import is_checkpoint, look_at_checkpoint
from anabranch.doctor.finding import Finding
from anabranch.doctor.stores import look_at_store
from anabranch.doctor.works import is_work, look_at_work
from anabranch.errors import StoreError, WorkDirectoryError
from anabranch.presence import refuse_if_used
from anabranch.store.opening import SCHEMES, check_url
from anabranch.work import Work


def look(place: str) -> list[Finding]:
    """Return what is wrong with a work directory, a checkpoint directory, or a store."""
    path = Path(place)
    if is_work(path):
        return list(look_at_work(path))
    if is_checkpoint(path):
        return list(look_at_checkpoint(path))
    try:
        check_url(place)
    except StoreError as error:
        if place.partition(":")[0] in SCHEMES:
            raise
        raise WorkDirectoryError(
            f"{place} is neither a work directory, nor a checkpoint directory, nor a store",
            hint="name a directory with channels/ or offsets/ in it, or log:DIR, files:DIR, redis://…",
        ) from error
    return list(look_at_store(place))


def repair(place: str, findings: list[Finding], backup: Path) -> list[Path]:
    """Copy what can go to a backup, then remove it; return what was removed. Refuses while a node runs there."""
    if is_work(Path(place)):
        refuse_if_used(Work.open(Path(place)), "the doctor")
    present = [path for finding in findings for path in finding.remove if path.exists()]
    for path in present:
        copy = backup / os.path.relpath(path, place)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    for path in present:
        path.unlink()
    return present
