"""Bringing a version back: the directory of a run, as it was at an epoch, anywhere.

Lazily: only the files that the version names are fetched, when they are needed. Eagerly: a standby calls
`WarmCopy.refresh` from time to time; then nearly everything is already there, and taking over fetches the rest.
Every file is checked against the record before the directory gets its name: a version comes back whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from anabranch.durable import TEMPORARY_PREFIX
from anabranch.errors import AnabranchError, Corrupt, StoreError
from anabranch.keeper.version import PREFIX, KeptFile, Version, decode
from anabranch.store.opening import namespaces, open_store
from anabranch.store.store import Store


def newest_version(store: Store) -> Version | None:
    """Return the newest version of a run's store, None if there is none."""
    for key in reversed(store.keys(PREFIX)):
        record = store.read(key)
        if record is not None:
            return decode(record, key)
    return None


@dataclass(frozen=True)
class Found:
    """A version and where it is."""

    version: Version
    url: str
    namespace: str

    @property
    def home(self) -> str:
        """The work directory it was kept from, as stores name it."""
        return self.namespace.partition("/")[0]

    def opened(self) -> contextlib.closing[Store]:
        """Open the store it is in, for reading, until the end of a `with`."""
        return contextlib.closing(open_store(self.url, self.namespace, writing=False))


def find_versions(urls: Iterable[str], prefix: str = "") -> dict[str, list[Found]]:
    """Return the versions of every unit in namespaces with a prefix, newest first.

    A record that cannot be read is left out: others may be whole. `StoreError` if no store can be read.
    """
    found, problems = _search(urls, prefix)
    if problems and not found:
        raise problems[0]
    return found


def _search(urls: Iterable[str], prefix: str) -> tuple[dict[str, list[Found]], list[StoreError]]:
    """Return what `find_versions` does, and why some stores could not be read."""
    found: dict[str, list[Found]] = {}
    problems: list[StoreError] = []
    for url in urls:
        try:
            for namespace in namespaces(url, prefix):
                # One that is damaged, or half removed, is no reason to do without the others.
                with contextlib.suppress(Corrupt):
                    for version in _readable_versions(url, namespace):
                        found.setdefault(version.unit, []).append(Found(version, url, namespace))
        except StoreError as error:
            problems.append(error)
    for versions in found.values():
        versions.sort(key=lambda some: some.version.preference, reverse=True)
    return found, problems


def _readable_versions(url: str, namespace: str) -> Iterator[Version]:
    with contextlib.closing(open_store(url, namespace, writing=False)) as store:
        for key in store.keys(PREFIX):
            with contextlib.suppress(Corrupt):
                record = store.read(key)
                if record is not None:
                    yield decode(record, key)


@dataclass(frozen=True)
class Accept:
    """Which versions may be gone on from: by their record, and by the directory that one has become."""

    record: Callable[[Version], bool] = lambda _: True
    directory: Callable[[Path, Version], bool] = lambda _directory, _version: True


ANY_VERSION = Accept()


def restore_unit(
    stores: Iterable[str], home: str, unit: str, directory: Path, accept: Accept = ANY_VERSION
) -> Version | None:
    """Rebuild a unit's directory at the newest acceptable version that any store has of it; None if there is none.

    A version of which something is missing or altered gives way to the next one. If none is left then, `StoreError`
    if a store could not be read, which may have one, else `Corrupt`.
    """
    found, unread = _search(stores, f"{home}/{unit}/")
    problems: list[AnabranchError] = [*unread]
    for some in found.get(unit, []):
        if not accept.record(some.version):
            continue
        try:
            with some.opened() as store:
                materialise(store, some.version, directory)
        except Corrupt as error:
            problems.append(error)
            continue
        if accept.directory(directory, some.version):
            return some.version
        shutil.rmtree(directory)
    if problems:
        raise problems[0]
    return None


def fetch(store: Store, file: KeptFile) -> bytes:
    """Return a file of a version; `Corrupt` if it is missing or not what was kept."""
    pieces = []
    for key in file.keys():  # noqa: SIM118  a method
        piece = store.read(key)
        if piece is None:
            raise Corrupt(f"the store lacks {key!r}, though a version names it", hint="try an older version")
        pieces.append(piece)
    content = b"".join(pieces)
    if len(content) != file.size_bytes or zlib.crc32(content) != file.crc:
        raise Corrupt(f"{file.path!r} in the store was altered: its size or checksum is not the version's")
    return content


def materialise(store: Store, version: Version, directory: Path, *, have: Path | None = None) -> None:
    """Rebuild a run's directory at a version; it appears whole or not at all. `have` is a warm copy, if any."""
    unfinished = directory.with_name(f"{TEMPORARY_PREFIX}{directory.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    for file in run_files(version):
        target = unfinished / inside(file.path.removeprefix(f"{version.run_path}/"))
        bring(store, file, target, have=None if have is None else have / file.path)
    unfinished.rename(directory)


def run_files(version: Version) -> list[KeptFile]:
    """Return the files of a version that are the run's own."""
    return [file for file in version.files if file.path.startswith(f"{version.run_path}/")]


def bring(store: Store, file: KeptFile, target: Path, *, have: Path | None = None) -> None:
    """Put a file of a version in its place, from a warm copy if that has it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if have is not None and _is(have, file):
        os.link(have, target)
    else:
        target.write_bytes(fetch(store, file))


class WarmCopy:
    """A directory that follows the newest version of a run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.version: Version | None = None

    def refresh(self, store: Store) -> Version | None:
        """Fetch what the newest version has and the copy lacks; drop what it no longer names."""
        version = newest_version(store)
        if version is None or version == self.version:
            return self.version
        files = run_files(version)
        for file in files:
            target = self.directory / inside(file.path)
            if not _is(target, file):
                target.parent.mkdir(parents=True, exist_ok=True)
                aside = target.with_name(f"{TEMPORARY_PREFIX}{target.name}")
                aside.write_bytes(fetch(store, file))
                os.replace(aside, target)
        named = {file.path for file in files}
        for directory, _, names in os.walk(self.directory):
            for name in names:
                path = os.path.join(directory, name)
                if os.path.relpath(path, self.directory) not in named:
                    os.unlink(path)
        self.version = version
        return version


def inside(path: str) -> str:
    """Refuse a path that leaves the directory: a record is data, whoever wrote it."""
    if os.path.isabs(path) or ".." in Path(path).parts:
        raise Corrupt(f"a version names the file {path!r}, which is outside of its directory")
    return path


def _is(path: Path, file: KeptFile) -> bool:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    return len(content) == file.size_bytes and zlib.crc32(content) == file.crc
