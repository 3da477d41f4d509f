"""Damaged files: deleted, cut short, or with a bit turned. Each fault returns what it did.

What is damaged is kept, so that it can be put back as an operator would from a copy. A pipeline that cannot go on
without a file has to stop and to name it; nothing wrong may be delivered before that.
"""

from __future__ import annotations

import contextlib
import os
import random
from functools import partial
from pathlib import Path
from typing import Any

from anabranch.chaos.scene import NotInjected, Scene, told
from anabranch.elsewhere import store_path
from anabranch.processes import kill_session

Done = dict[str, Any]
_MOST_FILES = 3
_NEVER_S = 1e9


def checkpoint(scene: Scene, chance: random.Random) -> Done:
    """Damage the state of the leading node's run, and kill the node, so that someone may need it."""
    unit = scene.units[-1]
    leader = scene.leader(unit)
    runs = scene.cluster.work_path / "units" / unit / "runs"
    own = [run for run in runs.iterdir() if _text(run / "owner") == leader.name and (run / "checkpoint").is_dir()]
    files = [path for run in own for path in (run / "checkpoint").rglob("*") if path.is_file()]
    # Half a micro-batch later they would be others.
    kill_session(leader.pid)
    hit = _damage(scene, chance, _newest(files, 12), _MOST_FILES)
    return {"did": "checkpoint damaged, SIGKILL", "files": hit, **told(leader)}


def store(scene: Scene, chance: random.Random) -> Done:
    """Damage one of the newest files of the stores, and kill all nodes."""
    files = [path for path in store_path(scene.cluster.scratch).rglob("*") if path.is_file() and path.stat().st_size]
    if not files:
        raise NotInjected("nothing is stored yet")
    for node in scene.cluster.living():
        kill_session(node.pid)
    hit = _damage(scene, chance, _newest(files, 4), 1)
    return {"did": "stored version damaged, SIGKILL of all", "files": hit}


def part(scene: Scene, chance: random.Random) -> Done:
    """Damage a part as soon as it is published."""
    channel = scene.cluster.work.channel(scene.units[-1])
    before = channel.last_epoch()

    def fresh() -> list[Path]:
        manifests = [channel.manifest(epoch) for epoch in range(before + 1, channel.last_epoch() + 1)]
        return [channel.parts / part.name for manifest in manifests if manifest is not None for part in manifest.parts]

    with scene.moment(fresh, "a new part", 60.0):
        hit = _damage(scene, chance, fresh(), 1)
    return {"did": "part damaged", "files": hit}


def manifest(scene: Scene, chance: random.Random) -> Done:
    """Damage the newest entry of a channel's ledger."""
    ledger = scene.cluster.work_path / "channels" / scene.units[-1] / "ledger"
    files = [path for path in ledger.rglob("*") if path.is_file() and not path.name.startswith(".")]
    hit = _damage(scene, chance, _newest(files, 1), 1, deleting=False)
    return {"did": "manifest damaged", "files": hit}


def _newest(files: list[Path], most: int) -> list[Path]:
    aged = []
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            aged.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(aged)[-most:]]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _damage(scene: Scene, chance: random.Random, files: list[Path], most: int, *, deleting: bool = True) -> list[str]:
    """Damage some files; they are put back when the pipeline has stopped because of it, or at the end."""
    hit = []
    for path in chance.sample(files, min(most, len(files))):
        try:
            content = path.read_bytes()
            how = chance.choice(["deleted", "cut short", "bit turned"] if deleting else ["cut short", "bit turned"])
            if how == "deleted":
                path.unlink()
            elif how == "cut short" or not content:
                os.truncate(path, len(content) // 2)
            else:
                _turn_bit(path, chance.randrange(len(content)), chance.randrange(8))
        except FileNotFoundError:
            continue
        scene.later(_NEVER_S, f"{path.name} put back", partial(_put_back, path, content))
        hit.append(f"{path.relative_to(scene.cluster.scratch)}: {how}")
    if not hit:
        raise NotInjected("the files were gone already")
    return hit


def _turn_bit(path: Path, place: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ (1 << bit)]))


def _put_back(path: Path, content: bytes) -> None:
    """Put a file's content back, into the same file if it is there: others may have links to it."""
    if path.exists():
        with path.open("r+b") as file:
            file.truncate(len(content))
            file.write(content)
    elif path.parent.is_dir():
        path.write_bytes(content)
