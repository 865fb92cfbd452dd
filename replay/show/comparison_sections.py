"""The output of `dxt-replay compare` for people, from its result. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dxt_replay.replay.compare.verdict import drift_text
from dxt_replay.replay.show.cells import microseconds, or_dash, percent, seconds
from dxt_replay.replay.show.noise_sections import COSINES, FACTORS, STORAGE, noise_section, relaxed_limits
from dxt_replay.replay.show.run_sections import from_page_cache, training_sentence
from dxt_replay.replay.show.section import Section, of_generated, prose
from dxt_replay.traces.records import kept_times_limit_us
from dxt_replay.traces.units import (
    format_bytes,
    format_count,
    format_rate_change,
    format_signed,
    format_slowdown,
)

if TYPE_CHECKING:
    from dxt_replay.replay.compare.comparison import Comparison, Distances, Timing
    from dxt_replay.replay.compare.exactness import Exactness
    from dxt_replay.replay.compare.similarity import Similarity
    from dxt_replay.replay.compare.verdict import Workload


def comparison_sections(comparison: Comparison) -> list[Section]:
    """The result in one sentence, what the workload and the storage did, and every other measure."""
    sections = [
        prose("", _result(comparison)),
        _workload(comparison),
        _storage(comparison),
        _similarity(comparison),
    ]
    differences = comparison.exact.differences
    if differences:
        sections.insert(1, prose("First differences", differences, brief=True))
    if comparison.floor is not None:
        sections.append(noise_section(comparison.floor))
    sections += _details(comparison)
    return of_generated(sections, comparison.generated)


def _result(comparison: Comparison) -> list[str]:
    """The headline, and what else its reader must know."""
    headline = comparison.headline
    relaxed = [] if comparison.floor is None else relaxed_limits(comparison.floor)
    training = training_sentence(comparison.training)
    cached = from_page_cache(comparison.storage.from_page_cache, comparison.storage.resident_before_pct)
    return [
        *cached,
        *training,
        headline,
        *(text for text in comparison.verdict.reasons if text not in headline),
        *relaxed,
    ]


def _workload(comparison: Comparison) -> Section:
    workload = comparison.workload
    moved = [workload.bytes[side] for side in ("source", "replay")]
    # Rounded figures of different totals may look alike.
    alike = moved[0] != moved[1] and format_bytes(moved[0]) == format_bytes(moved[1])
    rows = [
        (name, *(text(getattr(workload, name)[side]) for side in ("source", "replay")), _equal(comparison, name))
        for name, text in (("operations", format_count), ("bytes", _exact_bytes if alike else format_bytes))
    ]
    files = comparison.similarity.factors["files"]
    counts = (format_count(int(count)) for count in (files.source, files.replay))
    rows.append(("files", *counts, _equal(comparison, "files")))
    rows.append(("order within each thread and file", "", "", _equal(comparison, "order")))
    if workload.failed:
        rows.append(("failed operations", "", format_count(workload.failed), ""))
    if workload.verdict != "skipped":
        rows += [*_lateness(workload), *_recorded_times(comparison)]
    verdict = {"pass": "passed", "fail": "FAILED", "skipped": "not judged"}[workload.verdict]
    title = f"Workload: what the replayer is responsible for ({verdict})"
    brief = workload.verdict == "fail" or ()
    return Section(title=title, columns=("", "recorded", "replayed", ""), rows=tuple(rows), brief=brief)


def _exact_bytes(number: int) -> str:
    return f"{format_count(number)} B"


def _equal(comparison: Comparison, name: str) -> str:
    if getattr(comparison.exact, name):
        return "equal"
    floor = comparison.floor
    return "within noise" if floor is not None and name in floor.excused else "DIFFERENT"


def _lateness(workload: Workload) -> Iterable[tuple[str, ...]]:
    if workload.own_lag_p99_us is None:
        return
    own, allowed = workload.own_lag_p99_us, workload.allowed_lag_us
    judged = "on time" if own <= allowed else "LATE"
    yield "replayer late by, slowest 1 %", "", microseconds(own), f"{judged}, limit {microseconds(allowed)}"


def _recorded_times(comparison: Comparison) -> Iterable[tuple[str, ...]]:
    """Rows on the recorded times, for a replay that is judged by them."""
    timing, thresholds = comparison.timing, comparison.thresholds
    if comparison.pace not in (None, "timed") or comparison.speed != 1 or timing.elapsed_error_pct is None:
        return
    late_us, limit_pct = comparison.workload.lag_p99_us, thresholds.elapsed_error_pct
    if late_us is not None:
        limit_us = kept_times_limit_us(timing.source_elapsed_s, limit_pct, comparison.workload.allowed_lag_us)
        yield "behind the recorded times, slowest 1 %", "", microseconds(late_us), f"limit {microseconds(limit_us)}"
    times = seconds(timing.source_elapsed_s), seconds(timing.replay_elapsed_s)
    yield "elapsed time", *times, f"{format_signed(timing.elapsed_error_pct, 2)} %, limit {limit_pct:.3g} %"
    if timing.drift_ppm is not None:
        limit = f"limit {thresholds.drift_ppm:.4g} us/s"
        yield "drift of the start times", "", drift_text(timing.drift_ppm), limit


def _storage(comparison: Comparison) -> Section:
    storage, threshold = comparison.storage, comparison.thresholds.storage_pct
    rows = []
    for name, (label, text) in STORAGE.items():
        change = getattr(storage, name)
        if change is not None:
            in_words = format_rate_change if name == "bandwidth_mib_s" else format_slowdown
            change_text = in_words(change.ratio, 0.5)
            rows.append((label, text(change.source), text(change.replay), change_text))
    notes = [
        f"Judged by the I/O time: up to {threshold:.3g} % counts as no change. One replay is one measurement; "
        "`dxt-replay regress` measures how certain a difference is."
    ]
    if storage.resident_before_pct is not None:
        notes.append(
            f"{storage.resident_before_pct:.0f} % of the data were in the page cache before the replay; how much "
            "was there before the recorded run is not known."
        )
    return Section(
        title=f"Storage: what was measured ({storage.verdict})",
        columns=("", "recorded", "replayed", ""),
        rows=tuple(rows),
        notes=tuple(notes),
        brief=("I/O time per rank", "one read or write, median", "bandwidth while I/O runs"),
    )


def _similarity(comparison: Comparison) -> Section:
    similarity, thresholds = comparison.similarity, comparison.thresholds
    gate = thresholds.fail_under
    limits = ("not judged" if gate is None else f"limit {gate:.4g}", f"limit {thresholds.similarity:.4g}")
    rows = (
        (label, or_dash(getattr(similarity, name), lambda value: f"{value:.4f}"), limit)
        for (name, label), limit in zip(COSINES.items(), limits, strict=True)
    )
    return Section(
        title="Similarity of the DLIO paper: 1 is alike, 0 has nothing in common",
        brief=gate is not None,
        rows=tuple(rows),
        prose=True,
        notes=(
            "It compares the proportions of totals such as bytes, files and I/O time. It is scale invariant, so weak: "
            "a replay slower by the same ratio in every factor still scores 1.",
        ),
    )


# --------------------------------------------------------------------------------------------------- --details


def _details(comparison: Comparison) -> list[Section]:
    return [
        _factors(comparison.similarity),
        _interleaving(comparison.exact),
        _distances(comparison.distribution),
        _times(comparison),
        _percentiles(comparison.timing),
    ]


def _factors(similarity: Similarity) -> Section:
    rows = []
    for name, factor in similarity.factors.items():
        label, text = FACTORS[name]
        difference = or_dash(factor.difference, lambda value: f"{format_signed(100 * value, 1)} %")
        rows.append((label, text(factor.source), text(factor.replay), difference))
    return Section(
        title="Factors of the similarity",
        columns=("", "recorded", "replayed", "difference"),
        rows=tuple(rows),
        notes=(
            "Difference: (recorded - replayed) / the larger of both; negative where the replay has more.",
            "I/O time and bandwidth are the storage's, the other seven factors the workload's.",
        ),
    )


def _interleaving(exact: Exactness) -> Section:
    pairs = exact.inversions.pairs
    found = f"{format_count(exact.inversions.count)} of {format_count(pairs)}"
    return Section(
        title="Order between threads, which a replay need not keep",
        rows=(("neighbours on one file that changed places", found),) if pairs else (),
        prose=True,
    )


def _distances(distribution: Distances) -> Section:
    rows = []
    for name, label, text in (
        ("transfer_size", "transfer size", format_bytes),
        ("inter_arrival", "time from start to start in a thread", microseconds),
        ("latency", "time of one read or write", microseconds),
    ):
        found = getattr(distribution, name)
        rows.append((label, f"{100 * found.ks:.1f} %", or_dash(found.wasserstein, text)))
    return Section(
        title="Distributions: how far recorded and replayed values are apart",
        columns=("", "largest gap", "mean shift"),
        rows=tuple(rows),
        notes=(
            "Largest gap: at some value this share more lies below it on one side (Kolmogorov-Smirnov); 0 % is alike.",
            "Mean shift: how far a value moved on average (Wasserstein distance).",
        ),
    )


def _times(comparison: Comparison) -> Section:
    timing = comparison.timing
    error = or_dash(timing.elapsed_error_pct, lambda value: f"{format_signed(value, 3)} %")
    rows = [
        ("elapsed, recorded", seconds(timing.source_elapsed_s)),
        ("elapsed, replayed", f"{seconds(timing.replay_elapsed_s)} ({error})"),
    ]
    if timing.drift_ppm is not None and timing.drift_interval_ppm is not None:
        drift, low, high = map(drift_text, (timing.drift_ppm, *timing.drift_interval_ppm))
        drift = f"{drift} (95 % interval: {low} to {high}); above 0 the replay falls behind"
        rows.append(("drift of the start times", drift))
    if timing.step_error_pct is not None:
        step = timing.step_error_pct
        rows.append(("time of a step, off by", f"median {step.p50:.2f} %, at most {step.max:.2f} %"))
    overlap, curves = comparison.overlap, comparison.curves
    if overlap.source_pct is not None or overlap.replay_pct is not None:
        both = (or_dash(pct, percent) for pct in (overlap.source_pct, overlap.replay_pct))
        rows.append(("I/O time hidden behind compute", "{} recorded, {} replayed".format(*both)))
    for label, name in (("operations in flight", "in_flight_pct"), ("bytes moved", "bandwidth_pct")):
        if (differ := getattr(curves, name)) is not None:
            rows.append((f"{label} in each {curves.bin_s:g} s", f"differ by {percent(differ)} in total"))
    return Section(title="Times", rows=tuple(rows), prose=True)


def _percentiles(timing: Timing) -> Section:
    """Percentiles of the lag, and of the jitter of the machine."""
    labels = {"lag_us": "operation begun after it was due", "jitter_us": "idle thread woken after its time"}
    measured = [(label, found) for name, label in labels.items() if (found := getattr(timing, name))]
    columns = tuple(measured[0][1]) if measured else ()
    return Section(
        title="Lateness, and what this machine can do at best",
        columns=("", *columns),
        rows=tuple((label, *(or_dash(found.get(name), microseconds) for name in columns)) for label, found in measured),
    )
