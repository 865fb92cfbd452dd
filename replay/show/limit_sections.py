"""The table storage-limit: the duration of a training on faster and slower storage. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from dxt_replay.replay.show.cells import or_dash
from dxt_replay.replay.show.section import BAR, Section, bar, prose
from dxt_replay.replay.show.summary_sections import limit_text
from dxt_replay.traces.storage_limit import UNKNOWN, Doubt, Limit, LimitPoint, NoStorageLimitError
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


def limit_sections(limit: Limit | None) -> list[Section]:
    """The curves, and the speed above which faster storage gains little; without curves, the reason.

    `limit`: None for a capture without a training that waits.
    """
    if limit is None or isinstance(limit, NoStorageLimitError):
        reason = limit or "the capture shows no training that waits"
        return [prose("", Doubt(state=UNKNOWN, reason=str(reason)).sentences)]
    sections = [prose("", [*limit.doubt.sentences, limit_text(limit), *enough_texts(limit.enough)])]
    for quantity, found in groupby(limit.points, key=lambda point: point.quantity):
        points = list(found)
        longest_ns = max(point.elapsed_ns for point in points)
        sections.append(
            Section(
                title=_TITLES[quantity],
                columns=("speed", "training", "above the fastest", "utilisation", BAR),
                rows=tuple(_row(point, longest_ns) for point in points),
            )
        )
    return [*sections, prose("", [_NOTE])]


def enough_texts(enough: Mapping[str, float | None]) -> Iterator[str]:
    """A sentence for each quantity: the speed above which faster storage gains little. `enough`: see `StorageLimit`."""
    for quantity, multiple in enough.items():
        what = {"speed": "storage", "bandwidth": "its bandwidth alone", "latency": "its latency alone"}[quantity]
        if multiple is None:
            yield f"Even at 64 times the recorded speed, {what} costs more than 2 %."
        elif multiple <= 0.25:
            yield f"At a quarter of the recorded speed, {what} still costs at most 2 %."
        else:
            yield f"From {multiple:.2g} times the recorded speed on, {what} costs at most 2 %."


def _row(point: LimitPoint, longest_ns: int) -> tuple[str, ...]:
    return (
        "infinite" if point.multiple is None else f"{point.multiple:g} x",
        format_duration(point.elapsed_ns),
        f"{point.above_fastest_pct:.1f} %",
        or_dash(point.utilisation_pct, "{:.1f} %".format),
        bar(point.elapsed_ns / longest_ns if longest_ns else 0.0),
    )
