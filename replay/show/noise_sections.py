"""A comparison beside what two runs of the job differ by, as tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dxt_replay.replay.show.cells import mib_s, microseconds, or_dash, percent, seconds
from dxt_replay.replay.show.section import Section, prose
from dxt_replay.traces.units import format_bytes, format_count, format_counted

if TYPE_CHECKING:
    from dxt_replay.replay.compare.noise import FloorResult, NoiseFloor

_Text = Callable[[float], str]


def _cosine(value: float) -> str:
    return f"{value:.4f}"


def _gap(value: float) -> str:
    return f"{100 * value:.1f} %"


def _drift(value: float) -> str:
    return f"{value:.1f} us/s"


COSINES = {"cosine": "cosine of all ten factors", "workload_cosine": "cosine without I/O time and bandwidth"}
"""Labels of the similarities."""

FACTORS: Mapping[str, tuple[str, _Text]] = {
    "io_time_s": ("I/O time per rank", seconds),
    "bytes": ("bytes moved", format_bytes),
    "files": ("files", lambda value: format_count(int(value))),
    "transfer_size_median": ("transfer size, median", format_bytes),
    "transfer_size_mean": ("transfer size, mean", format_bytes),
    "transfer_size_max": ("transfer size, max", format_bytes),
    "bandwidth_median": ("bandwidth of one operation, median", mib_s),
    "bandwidth_mean": ("bandwidth of one operation, mean", mib_s),
    "sequential_pct": ("sequential", percent),
    "consecutive_pct": ("consecutive", percent),
}
"""Factors of the similarity: label, and the text of a value."""

STORAGE: Mapping[str, tuple[str, _Text]] = {
    "io_time_s": ("I/O time per rank", seconds),
    "latency_p50_us": ("one read or write, median", microseconds),
    "latency_p99_us": ("one read or write, slowest 1 %", microseconds),
    "bandwidth_mib_s": ("bandwidth while I/O runs", mib_s),
    "elapsed_s": ("whole run", seconds),
}
"""What was measured of the storage: label, and the text of a value."""

_MEASURES: Mapping[str, tuple[str, _Text]] = {
    **{f"similarity.{name}": (label, _cosine) for name, label in COSINES.items()},
    "exact.operations_pct": ("operations that are not equal", percent),
    "exact.bytes_pct": ("bytes that are not equal", percent),
    "exact.files_pct": ("files that one side lacks", percent),
    "exact.order_pct": ("sequences in another order", percent),
    "timing.elapsed_error_pct": ("elapsed time", percent),
    "timing.drift_ppm": ("drift of the start times", _drift),
    "timing.step_error_pct.p50": ("time of a step, median", percent),
    "overlap.difference_pct": ("I/O time hidden behind compute", percent),
    "curves.in_flight_pct": ("operations in flight over time", percent),
    "curves.bandwidth_pct": ("bytes moved over time", percent),
    "distribution.transfer_size.ks": ("transfer size, largest gap", _gap),
    "distribution.inter_arrival.ks": ("time from start to start, largest gap", _gap),
    "distribution.latency.ks": ("time of one read or write, largest gap", _gap),
    "storage.io_time_s": (STORAGE["io_time_s"][0], percent),
}
"""Distances that are always printed: label, and the text of a value."""

_DETAILS: Mapping[str, tuple[str, _Text]] = {
    "exact.inversions_pct": ("neighbours that changed places between threads", percent),
    "timing.step_error_pct.max": ("time of a step, at most", percent),
    "distribution.transfer_size.wasserstein": ("transfer size, mean shift", format_bytes),
    "distribution.inter_arrival.wasserstein": ("time from start to start, mean shift", microseconds),
    "distribution.latency.wasserstein": ("time of one read or write, mean shift", microseconds),
    **{
        f"storage.{name}": (STORAGE[name][0], percent)
        for name in ("latency_p50_us", "latency_p99_us", "bandwidth_mib_s")
    },
    **{f"factors.{name}": (f"factor: {label}", percent) for name, (label, _) in FACTORS.items()},
}
"""Distances that `--details` adds."""

_ALL, _BRIEF = {**_MEASURES, **_DETAILS}, tuple(label for label, _ in _MEASURES.values())

_LIMITS: Mapping[str, tuple[str, _Text]] = {
    "similarity": ("similarity of the workload", _cosine),
    "fail_under": ("similarity of all ten factors", _cosine),
    "elapsed_error_pct": ("elapsed time", percent),
    "drift_ppm": ("drift of the start times", _drift),
    "storage_pct": ("I/O time that counts as no change", percent),
}
_WORDS = {True: "within", False: "beyond", None: ""}


def relaxed_limits(floor: FloorResult) -> list[str]:
    """A sentence for each limit that was relaxed to the floor, and one for what need not be equal."""
    lines = []
    for each in floor.relaxed:
        name, text = _LIMITS[each.limit]
        lines.append(
            f"Limit of the {name}: {text(each.allowed)} instead of {text(each.asked)}, which two runs of the job "
            "do not meet either."
        )
    if floor.excused:
        lines.append(f"Not asked to be equal: {', '.join(floor.excused)}, as two runs of the job differ there too.")
    return lines


def noise_section(floor: FloorResult) -> Section:
    """Every measure of a comparison beside its floor."""
    rows = []
    for name, (label, text) in _ALL.items():
        measure = floor.measures[name]
        if measure.value is None and measure.floor is None:
            continue
        cells = (or_dash(value, text) for value in (measure.value, measure.floor))
        rows.append((label, *cells, _WORDS[measure.within]))
    pairs = format_counted(len(floor.pairs), "pair")
    return Section(
        title="Noise: how far the replay is from its source, and two runs of the job from each other",
        columns=("", "replay", "two runs", ""),
        rows=tuple(rows),
        brief=_BRIEF,
        notes=(f"Two runs: the worst of {pairs} of runs. No limit is stricter than that.",),
    )


def floor_sections(floor: NoiseFloor) -> list[Section]:
    """Tables of the differences of two runs of a job."""
    rows = [(label, text(value)) for name, (label, text) in _ALL.items() if (value := floor.measures[name]) is not None]
    pairs = [f"{first} and {second}" for first, second in floor.pairs]
    return [
        prose("", ["Two runs of the same job differ by these distances: they are noise.", *pairs]),
        Section(
            title="Noise: how far two runs of the job are from each other",
            rows=tuple(rows),
            prose=True,
            brief=_BRIEF,
            notes=(
                "A cosine of 1 means alike; for all other measures it is 0. Of several pairs the worst value counts.",
            ),
        ),
    ]
