"""Damaged files: deleted, cut short, or with a bit turned. Each fault returns what it did.

What is damaged is kept, so that it can be put back as an operator would from a copy. A pipeline that cannot go on
without a file has to stop and to name it; nothing wrong may be delivered before that.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
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
    """Damage the state of the leading node's run of some unit, and kill the node, so that someone may need it."""
    unit = chance.choice(scene.units)
    leader = scene.leader(unit)
    runs = scene.cluster.work_path / "units" / unit / "runs"
    own = [run for run in runs.iterdir() if _text(run / "owner") == leader.name and (run / "checkpoint").is_dir()]
    files = [path for run in own for path in (run / "checkpoint").rglob("*") if path.is_file()]
    # Half a micro-batch later they would be others.
    if not kill_session(leader.pid):
        raise NotInjected(f"{leader.name} was gone already")
    hit = _damage(scene, chance, _newest(files, 12), _MOST_FILES, of=unit)
    return {"did": "checkpoint damaged, SIGKILL", "unit": unit, "files": hit, **told(leader)}


def store(scene: Scene, chance: random.Random) -> Done:
    """Kill all nodes, take one unit's own checkpoints away, and damage one of the newest files of the stores."""
    files = [path for path in store_path(scene.cluster.scratch).rglob("*") if path.is_file() and path.stat().st_size]
    if not files:
        raise NotInjected("nothing is stored yet")
    for node in scene.cluster.living():
        kill_session(node.pid)
    unit = chance.choice(scene.kept)
    for run in (scene.cluster.work_path / "units" / unit / "runs").iterdir():
        shutil.rmtree(run, ignore_errors=True)
    hit = _damage(scene, chance, _newest(files, 4), 1, of=unit)
    return {"did": "SIGKILL of all, own checkpoints removed, stored version damaged", "unit": unit, "files": hit}


def part(scene: Scene, chance: random.Random) -> Done:
    """Damage a part as soon as it is published, while somebody still has to read it."""
    name = chance.choice(scene.units)
    channel = scene.cluster.work.channel(name)
    before = channel.last_epoch()

    def fresh() -> list[tuple[int, Path]]:
        manifests = [channel.manifest(epoch) for epoch in range(before + 1, channel.last_epoch() + 1)]
        parts = [(one.epoch, part) for one in manifests if one is not None for part in one.parts]
        # What a reader has received it does not read again, unless it is killed before it has committed.
        read = min((channel.received(reader) for reader in scene.readers[name]), default=-1)
        return [(epoch, channel.parts / part.name) for epoch, part in parts if epoch > read]

    with scene.moment(fresh, f"a new part of {name}", 60.0):
        hit = _damage(scene, chance, [path for _, path in fresh()], 1, of=name)
    return {"did": "part damaged", "channel": name, "files": hit}


def manifest(scene: Scene, chance: random.Random) -> Done:
    """Damage the newest entry of a channel's ledger: a plan of a source, or what a unit has published."""
    name = chance.choice([*scene.sources, *scene.units])
    ledger = scene.cluster.work_path / "channels" / name / "ledger"
    files = [path for path in ledger.rglob("*") if path.is_file() and not path.name.startswith(".")]
    hit = _damage(scene, chance, _newest(files, 1), 1, of=name, deleting=False)
    return {"did": "manifest damaged", "channel": name, "files": hit}


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


def _damage(
    scene: Scene, chance: random.Random, files: list[Path], most: int, *, of: str, deleting: bool = True
) -> list[str]:
    """Damage some files of a unit or channel; they are put back when the pipeline has stopped of it, or at the end."""
    hit = []
    for path in chance.sample(files, min(most, len(files))):
        try:
            content = path.read_bytes()
            if not content:
                continue
            how = chance.choice(["deleted", "cut short", "bit turned"] if deleting else ["cut short", "bit turned"])
            if how == "deleted":
                path.unlink()
            elif how == "cut short":
                os.truncate(path, len(content) // 2)
            else:
                _turn_bit(path, chance.randrange(len(content)), chance.randrange(8))
            damaged = None if how == "deleted" else path.read_bytes()
        except FileNotFoundError:
            continue
        scene.later(
            _NEVER_S, f"{path.name} put back", partial(_put_back, path, content, damaged), (repr(of), path.name)
        )
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


def _put_back(path: Path, content: bytes, damaged: bytes | None) -> str | None:
    """Put a file's content back, into the same file if it is there: others may have links to it.

    Whoever has written it since made something else of it, which is left alone.
    """
    if path.exists():
        if damaged is None or path.read_bytes() != damaged:
            return "left alone, it was written since"
        with path.open("r+b") as file:
            file.truncate(len(content))
            file.write(content)
    elif damaged is not None or not path.parent.is_dir():
        return "left alone, it was removed since"
    else:
        path.write_bytes(content)
    return None
