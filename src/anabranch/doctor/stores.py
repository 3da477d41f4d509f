"""Looking at a store: every version's record, and every file that a version names."""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.doctor.finding import Finding
from anabranch.errors import Corrupt, StoreError
from anabranch.keeper.restoring import fetch
from anabranch.keeper.version import PREFIX, Version, decode
from anabranch.store.opening import namespaces, open_store
from anabranch.store.store import Store, without_password

_OTHER = "other versions may be whole; the pipeline ships a new one as soon as it runs"


def look_at_store(url: str) -> Iterator[Finding]:
    """Yield what is wrong with a store."""
    found = namespaces(url, "")
    shown = without_password(url)
    if not found:
        yield Finding("empty store", shown, "holds no run of any unit", advice="check the address")
    for namespace in found:
        try:
            store = open_store(url, namespace, writing=False)
        except (Corrupt, StoreError) as error:
            yield Finding("store damaged", f"{shown} {namespace}", error.message, advice=error.hint)
            continue
        try:
            yield from _versions(store, f"{shown} {namespace}")
        finally:
            store.close()


def _versions(store: Store, where: str) -> Iterator[Finding]:
    checked: set[str] = set()
    for key in store.keys(PREFIX):
        try:
            version = decode(store.read(key) or b"", key)
        except Corrupt as error:
            yield Finding("version unreadable", f"{where} {key}", error.message, advice=_OTHER)
            continue
        yield from _files(store, version, where, checked)


def _files(store: Store, version: Version, where: str, checked: set[str]) -> Iterator[Finding]:
    for file in version.files:
        if file.path in checked:
            continue
        checked.add(file.path)
        try:
            fetch(store, file)
        except Corrupt as error:
            yield Finding("kept file damaged", f"{where} {file.path}", error.message, advice=_OTHER)
