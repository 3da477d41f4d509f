"""A run of chaos for people: one HTML page with a picture, made from the history alone."""

from __future__ import annotations

import html
import io
from collections import defaultdict
from pathlib import Path
from typing import Any

from anabranch.chaos.history import read_history

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
td, th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d9dfe5; vertical-align: top; }
.held { color: #12723b; } .broken { color: #b3261e; } code { font-size: 90%; } svg { max-width: 100%; height: auto; }
"""
_SHOWN = 200


def write_report(history: Path, page: Path) -> Path:
    """Write the page; return where it is."""
    # What was seen in the ledgers is noted when all is over.
    lines = sorted(read_history(history), key=lambda line: float(line["at_s"]))
    verdict: dict[str, Any] = next((line for line in reversed(lines) if line["kind"] == "verdict"), {})
    began = next((line for line in lines if line["kind"] == "began"), {})
    name, word = _text(Path(str(began.get("file", ""))).name), "held" if verdict.get("held") else "broken"
    parts = [
        f"<!doctype html><meta charset=utf-8><title>Chaos: {name}</title><style>{_STYLE}</style>",
        f"<h1>{name}: <span class={word}>{word}</span></h1>",
        _summary(began, verdict),
        _picture(lines),
        "<h2>What was done to it</h2>",
        _table(
            ("s", "fault", "what", "whom"),
            [
                (line["at_s"], line["fault"], line.get("did") or f"not injected: {line.get('why')}", _whom(line))
                for line in lines
                if line["kind"] in ("fault", "not injected")
            ],
        ),
        "<h2>What it did about it</h2>",
        _table(
            ("s", "what", "role", "who"),
            [
                _reaction(line)
                for line in lines
                if line["kind"] in ("took over", "stopped", "diverged", "gap", "failed")
            ],
        ),
        _differences(verdict),
        _impossible(began),
    ]
    page.write_text("\n".join(part for part in parts if part))
    return page


def _summary(began: dict[str, Any], verdict: dict[str, Any]) -> str:
    rows = [
        ("protected by", ", ".join(sorted(set(began.get("strategies", {}).values())))),
        ("promise", verdict.get("guarantee", "")),
        ("seed", began.get("seed", "")),
        ("epochs", verdict.get("epochs", "")),
        ("against the run without faults", _reference(verdict)),
        ("against a plain batch query", _batch(verdict)),
        (
            "longest time without output",
            f"{_seconds(verdict.get('max_gap_s'))}; the median before was {_seconds(verdict.get('steady_gap_s'))}",
        ),
    ]
    if verdict.get("failed"):
        rows.append(("failed", verdict["failed"]))
    return _table(("", ""), rows)


def _seconds(value: float | None) -> str:
    return "none to tell" if value is None else f"{value} s"


def _reference(verdict: dict[str, Any]) -> str:
    if verdict.get("rows_expected") is None:
        return "not judged"
    return (
        f"{verdict.get('rows_expected', 0):,} rows expected, {verdict.get('rows_delivered', 0):,} delivered: "
        f"{verdict.get('lost')} lost, {verdict.get('duplicated')} duplicated, {verdict.get('wrong')} wrong"
    )


def _batch(verdict: dict[str, Any]) -> str:
    batch = verdict.get("batch", {})
    if not verdict.get("judged_by"):
        return "not judged"
    text = (
        f"{batch.get('expected', 0):,} rows expected: {batch.get('lost')} lost, {batch.get('duplicated')} duplicated, "
        f"{batch.get('wrong')} wrong; {verdict.get('batch_undecided', 0)} undecided because of late rows"
    )
    left_out = "; ".join(f"{name} is left out: {why}" for name, why in verdict.get("batch_left_out", {}).items())
    return f"{text}. {left_out}" if left_out else text


def _plain(text: str) -> str:
    """Return a text that the picture shows as it is: between dollar signs there would be mathematics."""
    return text.replace("$", r"\$")


def _picture(lines: list[dict[str, Any]]) -> str:
    """Draw output over time, with faults and takeovers."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    delivered: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "delivered":
            delivered[line["sink"]].append((line["at_s"], line["epoch"]))
    figure, axes = plt.subplots(figsize=(11, 4.5), constrained_layout=True)
    try:
        for name, points in delivered.items():
            axes.step(
                [at for at, _ in points],
                [epoch for _, epoch in points],
                where="post",
                label=_plain(f"delivered: {name}"),
            )
        top = max((epoch for points in delivered.values() for _, epoch in points), default=1)
        for line in lines:
            if line["kind"] == "fault":
                axes.axvline(line["at_s"], color="#b3261e", linewidth=1.2)
                axes.annotate(
                    line["fault"], (line["at_s"], top), rotation=90, fontsize=8, va="top", ha="right", color="#b3261e"
                )
            elif line["kind"] == "took over":
                axes.axvline(line["at_s"], color="#2b6cb0", linewidth=0.8, linestyle=":")
            elif line["kind"] == "stopped":
                axes.axvline(line["at_s"], color="#805500", linewidth=1.0, linestyle="--")
        axes.set_xlabel("seconds (red: faults; blue: takeovers; brown: the pipeline stopped and said why)")
        axes.set_ylabel("newest epoch delivered")
        if delivered:
            axes.legend(loc="upper left", fontsize=8)
        picture = io.StringIO()
        figure.savefig(picture, format="svg")
    finally:
        plt.close(figure)
    return picture.getvalue()[picture.getvalue().index("<svg") :]


def _reaction(line: dict[str, Any]) -> tuple[Any, ...]:
    if line["kind"] == "took over":
        return (
            line["at_s"],
            f"took over: {line.get('reason')}",
            line.get("role"),
            f"{line.get('from')} → {line.get('to')}",
        )
    said = line.get("error") or line.get("message") or f"epochs {line.get('first')} to {line.get('last')} are lost"
    return line["at_s"], f"{line['kind']}: {said}", line.get("unit", ""), ""


def _differences(verdict: dict[str, Any]) -> str:
    if not verdict.get("differing") and not verdict.get("examples"):
        return ""
    rows = [(sink, "epochs " + ", ".join(map(str, epochs))) for sink, epochs in verdict.get("differing", {}).items()]
    rows += [("", example) for example in verdict.get("examples", [])]
    return "<h2>What differs</h2>" + _table(("sink", "what"), rows)


def _impossible(began: dict[str, Any]) -> str:
    unable = began.get("unable", {})
    if not unable:
        return ""
    return "<h2>What could not be done here</h2>" + _table(("fault", "why"), list(unable.items()))


def _whom(line: dict[str, Any]) -> str:
    return str(
        line.get("node") or ", ".join(line.get("nodes", [])) or line.get("what") or ", ".join(line.get("files", []))
    )


def _table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in heads) if any(heads) else ""
    body = "".join("<tr>" + "".join(f"<td>{_text(value)}</td>" for value in row) + "</tr>" for row in rows[:_SHOWN])
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>" if rows else "<p>Nothing.</p>"


def _text(value: object) -> str:
    return html.escape(str(value))
