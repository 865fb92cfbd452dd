"""The words of `dxt-replay compare`: the result, every measure behind it, and the noise of two runs of the job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.compare.verdict import drift_text
from dxt_replay.replay.show.run import from_page_cache, training_sentence
from dxt_replay.replay.show.section import (
    Section,
    beside,
    facts,
    figures,
    listing,
    microseconds,
    of_generated,
    or_dash,
    percent,
    prose,
    seconds,
    table,
)
from dxt_replay.traces.records import kept_times_limit_us
from dxt_replay.traces.units import (
    format_bytes,
    format_count,
    format_counted,
    format_rate_change,
    format_signed,
    format_slowdown,
)

if TYPE_CHECKING:
    from dxt_replay.replay.compare.comparison import Comparison
    from dxt_replay.replay.compare.noise import FloorResult, NoiseFloor
    from dxt_replay.replay.compare.verdict import Similarity

SIDES = {"source": "recorded", "replay": "replayed"}
"""Keys of both sides -> heads of their columns."""

STORAGE = figures("""
    I/O time per rank | {io_time_s} | time of a rank in reads and writes, mean of the ranks
    metadata operations, per rank | {metadata_time_s} | time of a rank in opens, closes, stats and the like
    one read or write, median | {latency_p50_us} | duration of a read or write
    one read or write, slowest 1 % | {latency_p99_us} | duration of a read or write
    bandwidth while I/O runs | {bandwidth_mib_s} | bytes moved per time with I/O in flight
    whole run | {elapsed_s} | elapsed time, where the storage decides it
""")
FACTORS = figures("""
    I/O time per rank | {io_time_s}
    bytes moved | {bytes}
    files | {files}
    transfer size, median | {transfer_size_median_bytes}
    transfer size, mean | {transfer_size_mean_bytes}
    transfer size, max | {transfer_size_max_bytes}
    bandwidth of one operation, median | {bandwidth_median_mib_s}
    bandwidth of one operation, mean | {bandwidth_mean_mib_s}
    sequential | {sequential_pct}
    consecutive | {consecutive_pct}
""")
FACTOR_NAMES = [each.keys[0].removesuffix("_bytes").removesuffix("_mib_s") for each in FACTORS]
TIMES = figures("""
    elapsed, recorded | {timing.source_elapsed_s} | from the begin of the first event to the end of the last
    elapsed, replayed | {timing.replay_elapsed_s} | at recorded times to the begin of the last read or write
    elapsed, off by | {timing.elapsed_error_pct} | difference of the elapsed times
    drift of the start times
    time of a step, off by | median {timing.step_error_pct.p50}, at most {timing.step_error_pct.max}
    I/O time inside compute | {overlap.source_pct:-} recorded, {overlap.replay_pct:-} replayed
    operations in flight, by time | {curves.in_flight_pct} apart | mean difference in bins of a tenth of a second
    bytes moved, by time | {curves.bandwidth_pct} apart | mean difference in bins of a tenth of a second
    cosine of all ten factors | {similarity.cosine:-} | similarity of the DLIO paper: 1 is alike, but it sees no scale
    cosine without I/O time and bandwidth | {similarity.workload_cosine:-} | the same of the workload's seven factors
    neighbours that changed places between threads | {exact.inversions.count} of {exact.inversions.pairs}
""")
DISTANCES = figures("""
    distribution | {label}
    largest gap | {gap_pct}
    mean shift | {shift}
""")
FIGURES = TIMES

NOISE = {
    each.shown: each
    for each in figures("""
    *cosine of all ten factors | similarity.cosine
    *cosine without I/O time and bandwidth | similarity.workload_cosine
    *operations that are not equal | exact.operations_pct
    *bytes that are not equal | exact.bytes_pct
    *files that one side lacks | exact.files_pct
    *sequences in another order | exact.order_pct
    *elapsed time | timing.elapsed_error_pct
    *drift of the start times | timing.drift_ppm
    *time of a step, median | timing.step_error_pct.p50
    *I/O time hidden behind compute | overlap.difference_pct
    *operations in flight over time | curves.in_flight_pct
    *bytes moved over time | curves.bandwidth_pct
    *transfer size, largest gap | distribution.transfer_size.ks
    *time from start to start, largest gap | distribution.inter_arrival.ks
    *time of one read or write, largest gap | distribution.latency.ks
    *I/O time per rank | storage.io_time_s
    neighbours that changed places between threads | exact.inversions_pct
    time of a step, at most | timing.step_error_pct.max
    transfer size, mean shift | distribution.transfer_size.wasserstein
    time from start to start, mean shift | distribution.inter_arrival.wasserstein
    time of one read or write, mean shift | distribution.latency.wasserstein
    metadata operations, per rank | storage.metadata_time_s
    one read or write, median | storage.latency_p50_us
    one read or write, slowest 1 % | storage.latency_p99_us
    bandwidth while I/O runs | storage.bandwidth_mib_s
""")
} | {
    f"factors.{name}": replace(each, label=f"factor: {each.label}")
    for name, each in zip(FACTOR_NAMES, FACTORS, strict=True)
}
"""Distances of a comparison by their name in `noise_floor.measured`; those in brief are printed without --details."""

_LIMITS = {
    "similarity": ("similarity of the workload", "similarity.workload_cosine"),
    "fail_under": ("similarity of all ten factors", "similarity.cosine"),
    "elapsed_error_pct": ("elapsed time", "timing.elapsed_error_pct"),
    "drift_ppm": ("drift of the start times", "timing.drift_ppm"),
    "storage_pct": ("I/O time that counts as no change", "storage.io_time_s"),
}
"""Field of `Thresholds` -> its name, and the distance that it limits."""


def _distance(name: str, value: float) -> str:
    """The text of a distance."""
    if name.startswith("similarity."):
        return f"{value:.4f}"
    if name.endswith(".ks"):
        return percent(100 * value)
    if name.endswith(".wasserstein"):
        return format_bytes(value) if "transfer_size" in name else microseconds(value)
    return f"{value:.1f} us/s" if name.endswith("_ppm") else percent(value)


def comparison_sections(comparison: Comparison) -> list[Section]:
    """The result in one sentence, what the workload and the storage did, and every other measure."""
    found, timing = comparison.as_json(), comparison.timing
    differences, floor = comparison.exact.differences, comparison.floor
    gates = (comparison.thresholds.fail_under, comparison.thresholds.similarity)
    cosines = (comparison.similarity.cosine, comparison.similarity.workload_cosine)
    said: dict[str, str | None] = {
        each.label: f"{value:.4f}{'' if gate is None else f' (limit {gate:.4g})'}"
        for each, value, gate in zip(list(NOISE.values())[:2], cosines, gates, strict=True)
        if value is not None
    }
    if timing.drift_ppm is not None and timing.drift_interval_ppm is not None:
        drift, low, high = map(drift_text, (timing.drift_ppm, *timing.drift_interval_ppm))
        said["drift of the start times"] = f"{drift} ({low} to {high}); above 0 the replay falls behind"
    sections = [
        prose("", _result(comparison)),
        *([prose("First differences", differences, brief=True)] if differences else []),
        _workload(comparison),
        _storage(comparison),
        *([noise_section(floor)] if floor is not None else []),
        table("Times and similarity", TIMES, found, said),
        listing(
            "Distributions: how far recorded and replayed values are apart",
            DISTANCES,
            [
                {"label": label, "gap_pct": 100 * each.ks, "shift": or_dash(each.wasserstein, text)}
                for label, text, each in (
                    ("transfer size", format_bytes, comparison.distribution.transfer_size),
                    ("time from start to start in a thread", microseconds, comparison.distribution.inter_arrival),
                    ("time of one read or write", microseconds, comparison.distribution.latency),
                )
            ],
        ),
        _factors(comparison.similarity),
    ]
    return of_generated(sections, comparison.generated)


def _result(comparison: Comparison) -> list[str]:
    """The headline, and what else its reader must know."""
    headline, storage = comparison.headline, comparison.storage
    return [
        *from_page_cache(storage.from_page_cache, storage.resident_before_pct),
        *training_sentence(comparison.training),
        headline,
        *(text for text in comparison.verdict.reasons if text not in headline),
        *([] if comparison.floor is None else relaxed_limits(comparison.floor)),
    ]


def _workload(comparison: Comparison) -> Section:
    """What was done, and by which limits it is judged. A replay at the recorded times is judged by them, too."""
    workload, timing, thresholds = comparison.workload, comparison.timing, comparison.thresholds

    def equal(name: str) -> str:
        excused = comparison.floor is not None and name in comparison.floor.excused
        return "equal" if getattr(comparison.exact, name) else "within noise" if excused else "DIFFERENT"

    rows = [("operations", *map(format_count, (workload.operations[side] for side in SIDES)), equal("operations"))]
    moved = [workload.bytes[side] for side in SIDES]
    sizes = list(map(format_bytes, moved))
    if sizes[0] == sizes[1] and moved[0] != moved[1]:  # rounded figures of different totals may look alike
        sizes = [f"{format_count(each)} B" for each in moved]
    files = comparison.similarity.factors["files"]
    rows.append(("bytes", *sizes, equal("bytes")))
    rows.append(("files", format_count(int(files.source)), format_count(int(files.replay)), equal("files")))
    rows.append(("order within each thread and file", "", "", equal("order")))
    if workload.failed:
        rows.append(("failed operations", "", format_count(workload.failed), ""))
    judged, own_us, allowed_us = workload.verdict != "skipped", workload.own_lag_p99_us, workload.allowed_lag_us
    if judged and own_us is not None:
        late = "on time" if own_us <= allowed_us else "LATE"
        rows.append(
            ("replayer late by, slowest 1 %", "", microseconds(own_us), f"{late}, limit {microseconds(allowed_us)}")
        )
    limit_pct, by_times = thresholds.elapsed_error_pct, comparison.pace in (None, "timed") and comparison.speed == 1
    if judged and by_times and timing.elapsed_error_pct is not None:
        if workload.lag_p99_us is not None:
            limit = microseconds(kept_times_limit_us(timing.source_elapsed_s, limit_pct, allowed_us))
            late = microseconds(workload.lag_p99_us)
            rows.append(("begun after the recorded time, slowest 1 %", "", late, f"limit {limit}"))
        both = seconds(timing.source_elapsed_s), seconds(timing.replay_elapsed_s)
        off = f"{format_signed(timing.elapsed_error_pct, 2)} %, limit {limit_pct:.3g} %"
        rows.append(("elapsed time", *both, off))
        if timing.drift_ppm is not None:
            limit = f"limit {thresholds.drift_ppm:.4g} us/s"
            rows.append(("drift of the start times", "", drift_text(timing.drift_ppm), limit))
    verdict = {"pass": "passed", "fail": "FAILED", "skipped": "not judged"}[workload.verdict]
    return Section(
        title=f"Workload: what the replayer is responsible for ({verdict})",
        columns=("", *SIDES.values(), ""),
        rows=tuple(rows),
        brief=workload.verdict == "fail" or (),
    )


def _storage(comparison: Comparison) -> Section:
    storage, rows = comparison.storage, []
    for each in STORAGE:
        name = each.keys[0]
        if (change := getattr(storage, name)) is not None:
            in_words = format_rate_change if name == "bandwidth_mib_s" else format_slowdown
            both = (each.text({name: getattr(change, side) or None}) or "-" for side in SIDES)
            rows.append((each.label, *both, in_words(change.ratio, 0.5)))
    if (training := comparison.training) is not None and training.ratio is not None:
        recorded_s = training.recorded_s - (training.recording_wait_s or 0.0)
        times = seconds(recorded_s), seconds(training.replayed_s)
        rows.append(("training", *times, format_slowdown(training.ratio, 0.5)))
    judged = "the I/O time" if storage.judged_s is storage.io_time_s else "I/O and metadata operations together"
    notes = [
        f"Judged by {judged}: up to {comparison.thresholds.storage_pct:.3g} % counts as no change. One replay is "
        "one measurement; `dxt-replay regress` measures how certain a difference is."
    ]
    if storage.resident_before_pct is not None:
        notes.append(
            f"{storage.resident_before_pct:.0f} % of the data were in the page cache before the replay; how much "
            "was there before the recorded run is not known."
        )
    return Section(
        title=f"Storage: what was measured ({storage.verdict})",
        columns=("", *SIDES.values(), ""),
        rows=tuple(rows),
        notes=tuple(notes),
        brief=tuple(row[0] for row in rows if row[0] != STORAGE[3].label),
    )


def _factors(similarity: Similarity) -> Section:
    objects: dict[str, dict[str, Any]] = {**{head: {} for head in SIDES.values()}, "difference": {}}
    for name, each in zip(FACTOR_NAMES, FACTORS, strict=True):
        factor, key = similarity.factors[name], each.keys[0]
        objects["recorded"][key], objects["replayed"][key] = factor.source, factor.replay
        objects["difference"][key] = or_dash(factor.difference, lambda value: f"{format_signed(100 * value, 1)} %")
    note = "Difference: (recorded - replayed) / the larger of both; negative where the replay has more."
    return beside("Factors of the similarity", FACTORS, objects, notes=(note,))


# --------------------------------------------------------------------------------------------------------------- noise


def relaxed_limits(floor: FloorResult) -> list[str]:
    """A sentence for each limit that was relaxed to the floor, and one for what need not be equal."""
    lines = []
    for each in floor.relaxed:
        limit, name = _LIMITS[each.limit]
        lines.append(
            f"Limit of the {limit}: {_distance(name, each.allowed)} instead of {_distance(name, each.asked)}, which "
            "two runs of the job do not meet either."
        )
    if floor.excused:
        lines.append(f"Not asked to be equal: {', '.join(floor.excused)}, as two runs of the job differ there too.")
    return lines


def noise_section(floor: FloorResult) -> Section:
    """Every measure of a comparison beside its floor."""
    rows = []
    for name, each in NOISE.items():
        found = floor.measures[name]
        if found.value is not None or found.floor is not None:
            both = ("-" if value is None else _distance(name, value) for value in (found.value, found.floor))
            rows.append((each.label, *both, {True: "within", False: "beyond", None: ""}[found.within]))
    return Section(
        title="Noise: how far the replay is from its source, and two runs of the job from each other",
        columns=("", "replay", "two runs", ""),
        rows=tuple(rows),
        brief=tuple(each.label for each in NOISE.values() if each.brief),
        notes=(f"Two runs: the worst of {format_counted(len(floor.pairs), 'pair')} of runs.",),
    )


def floor_sections(floor: NoiseFloor) -> list[Section]:
    """Tables of the differences of two runs of a job."""
    pairs = [f"{first} and {second}" for first, second in floor.pairs]
    known = {name: value for name in NOISE if (value := floor.measures[name]) is not None}
    rows = ((NOISE[name].label, _distance(name, value)) for name, value in known.items())
    brief = tuple(each.label for each in NOISE.values() if each.brief)
    return [
        prose("", ["Two runs of the same job differ by these distances: they are noise.", *pairs]),
        facts("Noise: how far two runs of the job are from each other", rows, brief=brief),
    ]
