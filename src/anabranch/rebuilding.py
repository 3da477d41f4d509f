"""Rebuilding a whole work directory from stores: another disk, another machine, another datacenter.

For every unit a version is chosen such that the pieces join: a unit's version is at most as new as those of the units
it reads, else its producer would publish epochs again that the unit has already taken. Then the files of all chosen
versions are brought, checked, and put where they were. Channels begin, in the new directory, with the first epoch that
was kept. What came after the chosen versions is executed again from the recorded plans of the sources.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from anabranch.channel.channel import Channel
from anabranch.durable import TEMPORARY_PREFIX
from anabranch.errors import StoreError, WorkDirectoryError
from anabranch.keeper.restoring import Found, bring, fetch, find_versions, inside
from anabranch.store.opening import namespaces
from anabranch.store.store import without_password


def choose(found: Mapping[str, list[Found]], inputs: Mapping[str, tuple[str, ...]]) -> dict[str, Found]:
    """Choose for every unit the newest version that joins those of the units it reads. Pure.

    `inputs` names for every unit what it reads, in an order in which producers come first.
    """
    chosen: dict[str, Found] = {}
    for unit, reads in inputs.items():
        limit = min((chosen[name].version.epoch for name in reads if name in chosen), default=None)
        fitting = [some for some in found.get(unit, []) if limit is None or some.version.epoch <= limit]
        if not fitting:
            raise StoreError(
                f"the stores hold no version of unit {unit!r}"
                + ("" if limit is None else f" at or before epoch {limit}, where its inputs end"),
                hint="name every store that the pipeline was kept in",
            )
        chosen[unit] = fitting[0]
    return chosen


def rebuild(
    urls: list[str], target: Path, *, of: str | None = None, say: Callable[[str], None] = lambda _: None
) -> dict[str, int]:
    """Make a work directory from stores, whole or not at all; return the epoch of every unit.

    `of` names one of the work directories that are kept in the stores, if there are several.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise WorkDirectoryError(f"{target} is not an empty directory", hint="restore into a new directory")
    found = find_versions(urls, "" if of is None else f"{of}/")
    homes = sorted({some.home for versions in found.values() for some in versions})
    if len(homes) > 1:
        raise StoreError(
            f"the stores keep several work directories: {', '.join(homes)}", hint=f"name one, such as --of {homes[0]}"
        )
    if not found:
        raise _nothing(urls, of)
    identity = _identity(found)
    chosen = choose(found, {name: tuple(segment["inputs"]) for name, segment in identity["segments"].items()})
    unfinished = target.with_name(f"{TEMPORARY_PREFIX}{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for unit, some in chosen.items():
            origin = without_password(some.url)
            say(f"unit {unit}: epoch {some.version.epoch}, {len(some.version.files)} files from {origin}")
            _bring_all(some, unfinished)
        for name in ("channels", "leases", "units", "nodes", "logs"):
            (unfinished / name).mkdir(parents=True, exist_ok=True)
        for name in sorted(os.listdir(unfinished / "channels")):
            _begin_where_kept(unfinished / "channels" / name)
        if target.exists():
            target.rmdir()
        unfinished.rename(target)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, OSError):
            what = f"{target} cannot be made: {error.strerror or error}"
            raise WorkDirectoryError(what, hint="choose a place that this user can write") from error
        raise
    return {unit: some.version.epoch for unit, some in chosen.items()}


def _nothing(urls: list[str], of: str | None) -> StoreError:
    """Return why there is nothing to restore, as precisely as can be said."""
    shown = ", ".join(map(without_password, urls))
    homes = sorted({namespace.partition("/")[0] for url in urls for namespace in namespaces(url, "")})
    if not homes:
        return StoreError(f"there is nothing in {shown}", hint="check the addresses")
    if of is not None and of not in homes:
        return StoreError(f"{shown} keeps nothing of {of!r}", hint=f"it keeps {', '.join(homes)}")
    hint = f"`anabranch doctor {without_password(urls[0])}` says why"
    return StoreError(f"no version in {shown} can be read", hint=hint)


def _identity(found: Mapping[str, list[Found]]) -> dict[str, Any]:
    """Read what the directory was made with, from the newest version that says so."""
    for some in sorted((all_of[0] for all_of in found.values()), key=lambda some: -some.version.at_s):
        for file in some.version.files:
            if file.path == "identity.json":
                with some.opened() as store:
                    content: dict[str, Any] = json.loads(fetch(store, file))
                return content
    raise StoreError(
        "the versions in the stores do not say what pipeline they are of",
        hint="they can be restored into their own work directory only: run the pipeline there",
    )


def _bring_all(some: Found, directory: Path) -> None:
    with some.opened() as store:
        for file in some.version.files:
            target = directory / inside(file.path)
            if not target.exists():
                bring(store, file, target)


def _begin_where_kept(path: Path) -> None:
    """Raise a channel's floor to just before the first of the epochs that were kept without a hole."""
    for name in ("ledger", "parts", "acks", "positions"):
        (path / name).mkdir(exist_ok=True)
    channel = Channel.open(path)
    slots = channel.ledger.slots()
    first = slots[-1]
    while first - 1 in slots:
        first -= 1
    if first > 0:
        channel.ledger.trim(first - 1)
