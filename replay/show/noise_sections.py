"""A comparison beside what two runs of the job differ by, as tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dxt_replay.replay.show.cells import microseconds, or_dash, percent
from dxt_replay.replay.show.section import Section, prose
from dxt_replay.traces.units import format_bytes, format_counted

if TYPE_CHECKING:
    from dxt_replay.replay.fidelity.noise_floor import FloorResult, NoiseFloor

_Text = Callable[[float], str]


def _cosine(value: float) -> str:
    return f"{value:.4f}"


def _gap(value: float) -> str:
    return f"{100 * value:.1f} %"


def _drift(value: float) -> str:
    return f"{value:.1f} us/s"


_MEASURES: Mapping[str, tuple[str, _Text]] = {
    "similarity.cosine": ("cosine of all ten factors", _cosine),
    "similarity.workload_cosine": ("cosine without I/O time and bandwidth", _cosine),
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
    "storage.io_time_s": ("I/O time per rank", percent),
}
"""Measures that are always printed: label, and the text of a value."""

_DETAILS: Mapping[str, tuple[str, _Text]] = {
    "exact.inversions_pct": ("neighbours that changed places between threads", percent),
    "timing.step_error_pct.max": ("time of a step, at most", percent),
    "distribution.transfer_size.wasserstein": ("transfer size, mean shift", format_bytes),
    "distribution.inter_arrival.wasserstein": ("time from start to start, mean shift", microseconds),
    "distribution.latency.wasserstein": ("time of one read or write, mean shift", microseconds),
    "storage.latency_p50_us": ("one read or write, median", percent),
    "storage.latency_p99_us": ("one read or write, slowest 1 %", percent),
    "storage.bandwidth_mib_s": ("bandwidth while I/O runs", percent),
    "factors.io_time_s": ("factor: I/O time per rank", percent),
    "factors.bytes": ("factor: bytes moved", percent),
    "factors.files": ("factor: files", percent),
    "factors.transfer_size_median": ("factor: transfer size, median", percent),
    "factors.transfer_size_mean": ("factor: transfer size, mean", percent),
    "factors.transfer_size_max": ("factor: transfer size, max", percent),
    "factors.bandwidth_median": ("factor: bandwidth of one operation, median", percent),
    "factors.bandwidth_mean": ("factor: bandwidth of one operation, mean", percent),
    "factors.sequential_pct": ("factor: sequential", percent),
    "factors.consecutive_pct": ("factor: consecutive", percent),
}
"""Measures that `--details` adds."""

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


def noise_section(floor: FloorResult, *, details: bool) -> Section:
    """Every measure of a comparison beside its floor."""
    rows = []
    for name, (label, text) in _shown(details):
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
        notes=(f"Two runs: the worst of {pairs} of runs. No limit is stricter than that.",),
    )


def floor_sections(floor: NoiseFloor, *, details: bool = False) -> list[Section]:
    """Tables of the differences of two runs of a job."""
    rows = [
        (label, text(value)) for name, (label, text) in _shown(details) if (value := floor.measures[name]) is not None
    ]
    pairs = [f"{first} and {second}" for first, second in floor.pairs]
    return [
        prose("", ["Two runs of the same job differ by these distances: they are noise.", *pairs]),
        Section(
            title="Noise: how far two runs of the job are from each other",
            rows=tuple(rows),
            prose=True,
            notes=(
                "A cosine of 1 means alike; for all other measures it is 0. Of several pairs the worst value counts.",
            ),
        ),
    ]


def _shown(details: bool) -> list[tuple[str, tuple[str, _Text]]]:
    return [*_MEASURES.items(), *(_DETAILS.items() if details else ())]
