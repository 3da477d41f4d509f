"""Stores side by side, in one run: the measurements of Vallés' thesis (chapters 4 and 5), with durable saves.

- *load*: 90 % saves and 10 % reads of 1 KiB, over 1,000 keys, at a rising rate until the store no longer follows;
- *keys*: saves per second against the number of keys that are there, up to a million;
- *rebuild*: opening an indexed log, ready to answer, against the number of keys;
- *checkpoint*: saving and restoring what a Spark query with 200 state partitions wrote, commit by commit.

Every backend does the same work in the same order, round after round, in alternating order.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anabranch.bench.report import Report
from anabranch.errors import StoreError
from anabranch.store.framing import framed
from anabranch.store.opening import open_store
from anabranch.store.store import Store

VALUE_BYTES = 1024
FIRST_LOAD = 250
PRELOAD_BATCH = 2_000
REBUILD_TAIL = 5_000


@dataclass(frozen=True)
class StoresOptions:
    """What is measured, and for how long."""

    kinds: tuple[str, ...] = ("files", "log", "redis")
    keys: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    # Enough to saturate every backend: the files' rate no longer rises beyond 16, the log's not beyond 32.
    threads: int = 32
    seconds: float = 4.0
    rounds: int = 3


def measure(options: StoresOptions, report: Report, say: Callable[[str], None]) -> dict[str, float]:
    """Run everything; return how many times as many saves a second the log takes as the files, and its rebuild."""
    directory = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    figures: dict[str, float] = {}
    try:
        with _addresses(options.kinds, directory, say) as addresses:
            for kind, url in addresses.items():
                _rising_load(kind, url, options, report, say)
            for keys in options.keys:
                figures |= _against_keys(addresses, directory, keys, options, (report, say))
            for keys in options.keys:
                figures[f"rebuild of {keys:,} keys, s"] = _rebuild(directory, keys, report, say)
            figures |= _checkpoint(addresses, directory, options, (report, say))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return figures


@contextmanager
def _addresses(kinds: tuple[str, ...], directory: Path, say: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Give every backend an address; a Redis server that flushes every save is started if there is one."""
    addresses = {kind: f"{kind}:{directory / kind}" for kind in kinds if kind != "redis"}
    program = shutil.which("redis-server")
    if "redis" not in kinds or program is None:
        if "redis" in kinds:
            say("redis-server is not installed: Redis is left out")
        yield addresses
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", str(directory)]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), *settings]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield {**addresses, "redis": f"redis://127.0.0.1:{port}/0"}
    finally:
        server.terminate()
        server.wait()


# Rising load


def _rising_load(kind: str, url: str, options: StoresOptions, report: Report, say: Callable[[str], None]) -> None:
    store = open_store(url, "load")
    store.write({_key(number): os.urandom(VALUE_BYTES) for number in range(1_000)})
    load = FIRST_LOAD
    while True:
        result = _drive(store, load, options)
        report.add(measure="load", kind=kind, load=load, **result)
        say(f"{kind}: asked for {load:,}/s, did {result['per_s']:,.0f}/s, saves {result['save_ms']:.2f} ms")
        if result["per_s"] < 0.8 * load:
            break
        load *= 2
    store.close()


def _drive(store: Store, load: int, options: StoresOptions) -> dict[str, float]:
    """Ask for so many operations a second, from all threads together; return what was done and how long each took."""
    saves: list[float] = []
    reads: list[float] = []
    every_s = options.threads / load

    def work(number: int) -> None:
        chance = random.Random(number)
        value = chance.randbytes(VALUE_BYTES)
        due_s = time.monotonic() + chance.random() * every_s
        until_s = time.monotonic() + options.seconds
        while due_s < until_s and time.monotonic() < until_s:
            pause_s = due_s - time.monotonic()
            if pause_s > 0:
                time.sleep(pause_s)
            key = _key(chance.randrange(1_000))
            began_s = time.monotonic()
            if chance.random() < 0.9:  # noqa: PLR2004  nine saves to one read
                store.write({key: value})
                saves.append(time.monotonic() - began_s)
            else:
                store.read(key)
                reads.append(time.monotonic() - began_s)
            due_s += every_s

    _in_threads(work, options.threads)
    return {
        "per_s": (len(saves) + len(reads)) / options.seconds,
        "save_ms": statistics.fmean(saves) * 1000,
        "save_p99_ms": statistics.quantiles(saves, n=100)[-1] * 1000,
        "read_ms": statistics.fmean(reads) * 1000,
    }


# Number of keys


def _against_keys(
    addresses: dict[str, str],
    directory: Path,
    keys: int,
    options: StoresOptions,
    out: tuple[Report, Callable[[str], None]],
) -> dict[str, float]:
    report, say = out
    stores = {kind: _preloaded(kind, url, directory, keys) for kind, url in addresses.items()}
    rates: dict[str, list[float]] = {kind: [] for kind in stores}
    for number in range(options.rounds):
        for kind in list(stores) if number % 2 == 0 else list(stores)[::-1]:
            rate = _saves_per_s(stores[kind], keys, options)
            rates[kind].append(rate)
            report.add(measure="keys", kind=kind, keys=keys, round=number, saves_per_s=rate)
    for store in stores.values():
        store.close()
    medians = {kind: statistics.median(found) for kind, found in rates.items()}
    say(f"{keys:,} keys: " + ", ".join(f"{kind} {rate:,.0f} saves/s" for kind, rate in medians.items()))
    figures = {f"saves/s of the log at {keys:,} keys": medians["log"]} if "log" in medians else {}
    if "log" in medians and "files" in medians:
        figures[f"log / files at {keys:,} keys"] = medians["log"] / medians["files"]
    return figures


def _preloaded(kind: str, url: str, directory: Path, keys: int) -> Store:
    """Open a store that holds so many keys. Files are put in place without a flush each: that is not measured."""
    namespace = f"keys-{keys}"
    if kind == "files":
        items = directory / "files" / namespace / "items"
        items.mkdir(parents=True)
        content = framed(os.urandom(VALUE_BYTES))
        for number in range(keys):
            (items / f"{_key(number)}~").write_bytes(content)
        os.sync()
        return open_store(url, namespace)
    store = open_store(url, namespace)
    value = os.urandom(VALUE_BYTES)
    for start in range(0, keys, PRELOAD_BATCH):
        store.write({_key(number): value for number in range(start, min(keys, start + PRELOAD_BATCH))})
    return store


def _saves_per_s(store: Store, keys: int, options: StoresOptions) -> float:
    done = [0] * options.threads
    until_s = time.monotonic() + options.seconds

    def work(number: int) -> None:
        chance = random.Random(number)
        value = chance.randbytes(VALUE_BYTES)
        while time.monotonic() < until_s:
            store.write({_key(chance.randrange(keys)): value})
            done[number] += 1

    began_s = time.monotonic()
    _in_threads(work, options.threads)
    return sum(done) / (time.monotonic() - began_s)


# Opening a log


def _rebuild(directory: Path, keys: int, report: Report, say: Callable[[str], None]) -> float:
    """Measure opening the log that `_against_keys` left, after a further tail that its index does not know."""
    url, namespace = f"log:{directory / 'log'}", f"keys-{keys}"
    store = open_store(url, namespace)
    for number in range(0, REBUILD_TAIL, 100):
        store.write({_key((number + offset) % keys): b"tail" for offset in range(100)})
    times = []
    for _ in range(5):
        began_s = time.monotonic()
        reader = open_store(url, namespace, writing=False)
        if reader.read(_key(0)) is None:
            raise StoreError("the rebuilt index lacks a key")
        times.append(time.monotonic() - began_s)
        reader.close()
    store.close()
    seconds = statistics.median(times)
    report.add(measure="rebuild", keys=keys, tail=REBUILD_TAIL, seconds=seconds)
    say(f"rebuilding an index of {keys:,} keys: {seconds * 1000:.0f} ms")
    return seconds


# A Spark checkpoint


def _checkpoint(
    addresses: dict[str, str], directory: Path, options: StoresOptions, out: tuple[Report, Callable[[str], None]]
) -> dict[str, float]:
    """Save what every commit of a query with 200 partitions added, as one batch each; then read it all."""
    report, say = out
    commits = _commits_of_200_partitions(directory / "query")
    size_bytes = sum(len(content or b"") for commit in commits for content in commit.values())
    files = sum(len(commit) for commit in commits)
    say(f"a query with 200 partitions: {len(commits)} commits, {files:,} files, {size_bytes:,} bytes")
    saves: dict[str, list[float]] = {kind: [] for kind in addresses}
    for number in range(options.rounds):
        for kind in list(addresses) if number % 2 == 0 else list(addresses)[::-1]:
            store = open_store(addresses[kind], f"checkpoint-{number}")
            began_s = time.monotonic()
            for commit in commits:
                store.write(commit)
            saved_s = time.monotonic()
            for key in store.keys():  # noqa: SIM118  a method
                store.read(key)
            restored_s = time.monotonic()
            store.close()
            saves[kind].append((saved_s - began_s) / len(commits))
            report.add(
                measure="checkpoint",
                kind=kind,
                round=number,
                commits=len(commits),
                files=files,
                size_bytes=size_bytes,
                save_s=saves[kind][-1],
                restore_s=restored_s - saved_s,
            )
    medians = {kind: statistics.median(times) for kind, times in saves.items()}
    say("per commit: " + ", ".join(f"{kind} {seconds * 1000:.0f} ms" for kind, seconds in medians.items()))
    if "log" in medians and "files" in medians:
        return {"files / log, seconds per commit of 200 partitions": medians["files"] / medians["log"]}
    return {}


def _commits_of_200_partitions(directory: Path) -> list[dict[str, bytes | None]]:
    """Run a real query and return, for every commit, the files it added."""
    from anabranch.bench.checkpoint_to_keep import commits

    return commits(directory)


def _key(number: int) -> str:
    return f"element-{number:07d}"


def _in_threads(work: Callable[[int], None], threads: int) -> None:
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001  raised below
            failures.append(error)

    running = [threading.Thread(target=guarded, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
