"""Pictures of the measurements, from their JSON lines."""

from __future__ import annotations

from pathlib import Path

from anabranch.bench.report import lines_of

_COLOURS = {"bare_spark": "#9aa5b1", "anabranch": "#1f77b4"}


def plot_throughput(report: Path, picture: Path) -> None:
    """Draw one bar per side and function, with every round as a dot."""
    from matplotlib.figure import Figure

    lines = lines_of(report)
    functions = sorted({line["function"] for line in lines})
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for offset, (side, colour) in enumerate(_COLOURS.items()):
        for place, function in enumerate(functions):
            rates = [line["rows_per_s"] / 1e6 for line in lines if (line["side"], line["function"]) == (side, function)]
            at = place + (offset - 0.5) * 0.35
            axes.bar(at, sum(rates) / len(rates), 0.32, color=colour, label=side if place == 0 else None)
            axes.plot([at] * len(rates), rates, "k.", markersize=5)
    axes.set_xticks(range(len(functions)), functions)
    axes.set_ylabel("million rows/s")
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture)


def plot_latency(report: Path, picture: Path) -> None:
    """Draw how latencies are distributed on each side, all rounds together."""
    import numpy as np
    from matplotlib.figure import Figure

    lines = lines_of(report)
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for side, colour in _COLOURS.items():
        counts = np.sum([line["histogram"] for line in lines if line["side"] == side], axis=0)
        share = np.cumsum(counts) / max(1, counts.sum())
        axes.plot(np.linspace(0, 5, len(counts)), share, color=colour, label=side)
    axes.set_xlabel("seconds from creation to delivery")
    axes.set_ylabel("share of rows")
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture)


def plot_endurance(report: Path, picture: Path) -> None:
    """Draw memory and the number of files over time."""
    from matplotlib.figure import Figure

    lines = lines_of(report)
    times = [line["at_s"] for line in lines]
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for kind in ("jvm_mib", "node_mib", "workers_mib", "launcher_mib"):
        axes.plot(times, [line[kind] for line in lines], label=kind.removesuffix("_mib"))
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB resident")
    files = axes.twinx()
    files.plot(times, [line["files"] for line in lines], "k:", label="files")
    files.set_ylabel("files in the work directory (dotted)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture)


def plot_stores(report: Path, picture: Path) -> None:
    """Draw latency against load, saves against keys, rebuilding against keys, and the checkpoint of a real query."""
    from matplotlib.figure import Figure

    lines = lines_of(report)
    colours = {"files": "#9aa5b1", "log": "#1f77b4", "redis": "#d62728"}
    kinds = [kind for kind in colours if any(line.get("kind") == kind for line in lines)]
    figure = Figure(figsize=(11, 7))
    load, keys, rebuild, checkpoint = figure.subplots(2, 2).flat
    for place, kind in enumerate(kinds):
        mine = [line for line in lines if line.get("kind") == kind]
        loads = [line for line in mine if line["measure"] == "load"]
        load.plot([x["per_s"] for x in loads], [x["save_ms"] for x in loads], "o-", color=colours[kind], label=kind)
        rates = [line for line in mine if line["measure"] == "keys"]
        keys.plot([x["keys"] for x in rates], [x["saves_per_s"] for x in rates], "o", color=colours[kind], label=kind)
        saves = [line["save_s"] * 1000 for line in mine if line["measure"] == "checkpoint"]
        checkpoint.bar(place, sum(saves) / max(1, len(saves)), color=colours[kind])
    rebuilds = [line for line in lines if line["measure"] == "rebuild"]
    rebuild.plot([x["keys"] for x in rebuilds], [x["seconds"] * 1000 for x in rebuilds], "o-", color=colours["log"])
    load.set(xlabel="operations/s (90 % saves)", ylabel="ms per save", xscale="log", yscale="log")
    keys.set(xlabel="keys", ylabel="saves/s", xscale="log", yscale="log")
    rebuild.set(xlabel="keys", ylabel="ms to rebuild the index", xscale="log")
    checkpoint.set(ylabel="ms per commit of 200 partitions", xticks=range(len(kinds)), xticklabels=kinds)
    load.legend()
    figure.tight_layout()
    figure.savefig(picture)


def plot_keeper(report: Path, picture: Path) -> None:
    """Draw one bar with and one without the keeper, with every round as a dot."""
    from matplotlib.figure import Figure

    lines = lines_of(report)
    figure = Figure(figsize=(5, 4))
    axes = figure.subplots()
    for place, keeper in enumerate(("off", "on")):
        times = [line["epoch_s"] for line in lines if line["keeper"] == keeper]
        axes.bar(place, sum(times) / max(1, len(times)), color="#1f77b4")
        axes.plot([place] * len(times), times, "k.")
    axes.set(xticks=(0, 1), xticklabels=("keeper off", "keeper on"), ylabel="seconds per epoch")
    figure.tight_layout()
    figure.savefig(picture)


def plot_failover(report: Path, picture: Path) -> None:
    """Draw the output of every strategy through a typical fault, and the gaps of all kills."""
    from matplotlib.figure import Figure

    kills = [line for line in lines_of(report) if line["kind"] == "kill"]
    names = list(dict.fromkeys(line["strategy"] for line in kills))
    figure = Figure(figsize=(11, 4))
    flow, gaps = figure.subplots(1, 2)
    for place, name in enumerate(names):
        some = sorted((line for line in kills if line["strategy"] == name), key=lambda line: line["gap_s"])
        typical = some[len(some) // 2]["outputs"]
        before = sum(at_s <= 0 for at_s in typical)
        flow.plot(typical, [number + 1 - before for number in range(len(typical))], drawstyle="steps-post", label=name)
        gaps.plot([place] * len(some), [line["gap_s"] for line in some], "k.", alpha=0.5)
    flow.axvline(0, color="red", linewidth=1)
    flow.set(
        xlabel="seconds after the kill (a typical one)",
        ylabel="epochs that a reader has seen since",
        xlim=(-5, 20),
        ylim=(-10, 4),
    )
    flow.legend(fontsize=7, loc="lower right")
    ticks = (0.2, 0.5, 1, 2, 5, 10, 20, 50)
    gaps.set(ylabel="seconds without output", yscale="log", xticks=range(len(names)), yticks=ticks, ylim=(0.2, 50))
    gaps.set_yticks([], minor=True)
    gaps.set_yticklabels([f"{tick:g}" for tick in ticks])
    gaps.grid(axis="y", alpha=0.3)
    gaps.set_xticklabels(names, rotation=30, fontsize=7)
    figure.tight_layout()
    figure.savefig(picture)


def plot_overhead(report: Path, picture: Path) -> None:
    """Draw the CPU of both nodes, and the time an epoch takes, for every strategy."""
    from matplotlib.figure import Figure

    lines = lines_of(report)
    names = list(dict.fromkeys(line["strategy"] for line in lines))
    figure = Figure(figsize=(9, 4))
    cpu, latency = figure.subplots(1, 2)
    for place, name in enumerate(names):
        some = [line for line in lines if line["strategy"] == name]
        mean = {key: sum(line[key] for line in some) / len(some) for key in ("primary_cpu", "standby_cpu", "latency_s")}
        cpu.bar(place, mean["primary_cpu"], color="#1f77b4", label="primary" if place == 0 else None)
        under, label = mean["primary_cpu"], "standby" if place == 0 else None
        cpu.bar(place, mean["standby_cpu"], bottom=under, color="#9aa5b1", label=label)
        latency.bar(place, mean["latency_s"], color="#1f77b4")
    for axes, what in ((cpu, "cores used"), (latency, "seconds from claim to publication, median")):
        axes.set(ylabel=what, xticks=range(len(names)))
        axes.set_xticklabels(names, rotation=30, fontsize=7)
    cpu.legend()
    figure.tight_layout()
    figure.savefig(picture)


def plot_ksafe(report: Path, picture: Path) -> None:
    """Draw CPU and latency by degree of replication, and the longest gaps beside those without a fault."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    lines = lines_of(report)
    degrees = [line for line in lines if line["part"] == "degrees"]
    kills = [line for line in lines if line["part"] == "kills" and "longest_s" in line]
    figure = Figure(figsize=(14, 4))
    cpu, rows, latency, gaps = figure.subplots(1, 4)
    for kind in dict.fromkeys(line["kind"] for line in degrees):
        some = [line for line in degrees if line["kind"] == kind]
        numbers = [line["k"] for line in some]
        cpu.plot(numbers, [line["cpu_per_replica"] for line in some], "o-", label=kind)
        rows.plot(numbers, [line["most_rows_per_s"] for line in some], "o-", label=kind)
        latency.plot(numbers, [line["p99_s"] for line in some], "o-", label=f"{kind}, p99")
        latency.plot(numbers, [line["latency_s"] for line in some], "o--", label=f"{kind}, median")
    for line in kills:
        gaps.plot([line["k"] - 0.1], [line["calm_s"]], ".", color="#9aa5b1")
        gaps.plot([line["k"] + 0.1], [line["longest_s"]], ".", color="#d62728")
    for axes, what in (
        (cpu, "cores per replica"),
        (rows, "rows/s when flooded"),
        (latency, "seconds from claim to publication"),
    ):
        axes.set(xlabel="k", ylabel=what, ylim=(0, None))
        if degrees:
            axes.legend(fontsize=7)
    gaps.set(xlabel="k nodes killed at once", ylabel="longest gap, s (grey: without a fault)", ylim=(0, None))
    for axes in (cpu, rows, latency, gaps):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.tight_layout()
    figure.savefig(picture)
