"""The table storage-limit: the duration of a training on faster and slower storage. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from dxt_replay.replay.show.section import BAR, Section, bar, prose
from dxt_replay.replay.show.summary_sections import limit_text
from dxt_replay.traces.units import format_duration

_TITLES = {
    "speed": "Training time by the speed of storage",
    "bandwidth": "Training time by bandwidth, at the recorded latency",
    "latency": "Training time by latency, at the recorded bandwidth",
}

_NOTE = (
    "Speeds are multiples of the recorded one: at 2 each operation takes half as long. The dependencies "
    "come from the causal model of the training; compute and decoding keep their recorded times."
)


def limit_sections(rows: Sequence[Mapping[str, Any]], limit: Mapping[str, Any] | None) -> list[Section]:
    """The curves, and the speed from which storage stops to matter; without curves, the reason."""
    if limit is None or limit["reason"] is not None:
        reason = "the capture shows no training that waits" if limit is None else limit["reason"]
        return [prose("", [f"How long the training would take on other storage is not known: {reason}."])]
    sections = [prose("", [limit_text(limit), *enough_texts(limit["enough"])])]
    for quantity, found in groupby(rows, key=lambda row: row["quantity"]):
        part = list(found)
        longest = max(row["elapsed_ns"] for row in part)
        sections.append(
            Section(
                title=_TITLES[quantity],
                columns=("speed", "training", "above the fastest", "utilisation", BAR),
                rows=tuple(_row(row, longest) for row in part),
            )
        )
    return [*sections, prose("", [_NOTE])]


def enough_texts(enough: Mapping[str, float | None]) -> Iterator[str]:
    """From which multiple of the recorded speed on storage stops to matter, a sentence a quantity."""
    for quantity, multiple in enough.items():
        what = {"speed": "storage", "bandwidth": "its bandwidth alone", "latency": "its latency alone"}[quantity]
        if multiple is None:
            yield f"Even at 64 times the recorded speed, {what} costs more than 2 %."
        elif multiple <= 0.25:
            yield f"At a quarter of the recorded speed, {what} still costs at most 2 %."
        else:
            yield f"From {multiple:.2g} times the recorded speed on, {what} costs at most 2 %."


def _row(row: Mapping[str, Any], longest_ns: int) -> tuple[str, ...]:
    used = row["utilisation_pct"]
    return (
        "infinite" if row["multiple"] is None else f"{row['multiple']:g} x",
        format_duration(row["elapsed_ns"]),
        f"{row['above_fastest_pct']:.1f} %",
        "-" if used is None else f"{used:.1f} %",
        bar(row["elapsed_ns"] / longest_ns if longest_ns else 0.0),
    )
