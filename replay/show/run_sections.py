"""The output of `dxt-replay run` and `run --repeat` for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dxt_replay.replay.show.cells import microseconds, or_dash, percent, recorded_training, seconds
from dxt_replay.replay.show.section import WARNINGS, Section, facts, of_generated, prose
from dxt_replay.traces.records import PERCENTILES, allowed_lag_us, by_error_name, machine_jitter_us
from dxt_replay.traces.units import format_bytes, format_count, format_counted, format_duration, format_signed

if TYPE_CHECKING:
    from dxt_replay.replay.run.result import Repeats, RunResult
    from dxt_replay.traces.measures.span_times import TrainingTime

_TIMES = {
    "lag_us": ("lag (begin - due)", "Lag: how late an operation began."),
    "jitter_us": ("this machine's jitter", "Jitter: how late an idle thread of this machine wakes."),
    "jitter_before_us": ("its jitter before the run", "Before the run, the replay does not delay that thread."),
    "latency_us": ("latency (end - begin)", "Latency: how long the storage took."),
    "response_us": ("response (end - due)", "Response: lag and latency together."),
}
"""Percentiles of `RunResult` -> label of their row, and the sentence that explains them."""

STOPPED = "STOPPED before the end: the figures cover the part that was replayed until then"
"""Title of a run that was stopped."""


def run_sections(run: RunResult) -> list[Section]:
    """The tables of `dxt-replay run`."""
    tally, cache = run.tally, run.cache
    rows = [
        ("capture", str(run.capture)),
        ("pace", f"{run.pacing.pace.value}, speed {run.pacing.speed:g}"),
        ("interface", _interface(run)),
        ("operations", format_count(tally.operations)),
        ("failed", format_count(tally.failed)),
        ("read", format_bytes(tally.bytes_read)),
        ("written", format_bytes(tally.bytes_written)),
        ("elapsed", f"{seconds(run.elapsed_s)} ({_recorded(run)})"),
        ("page cache", f"{cache.policy}; {or_dash(cache.resident_before_pct, percent)} of the data in it before"),
        ("replayer's own work", or_dash(run.overhead.fraction_pct(tally.last_end_ns), _at_most_percent)),
    ]
    times = {name: found for name in _TIMES if (found := getattr(run, name)) is not None}
    explained = " ".join(_TIMES[name][1] for name in times)
    by_operation = run.latency_by_operation_us
    training = [*_disturbed(run.disturbed), *from_page_cache(run.from_page_cache, cache.resident_before_pct)]
    training += [*(run.doubt.sentences if run.training else [])]
    training += training_sentence(run.training)
    sections = [
        prose(STOPPED if run.stopped else "", [*training, run_headline(run)]),
        _failures(run),
        facts("Run", rows, brief=("read", "written", "page cache")),
        _percentiles("Times of an operation", {_TIMES[name][0]: times[name] for name in times}, explained),
        _percentiles("Latency by operation", by_operation if len(by_operation) > 1 else {}),
        prose(WARNINGS, run.warnings, brief=True),
    ]
    return of_generated(sections, run.generated)


def training_sentence(training: TrainingTime | None) -> list[str]:
    """Recorded and replayed duration of the training: one sentence, or none if that is unknown."""
    if training is None or training.ratio is None:
        return []
    recorded = recorded_training(training.recorded_s, training.recording_wait_s, training.ratio)
    still = training.stood_still_s
    without = f" without the {seconds(still)} in which this machine stood still" if still else ""
    return [f"Training takes {seconds(training.replayed_s)} here{without}; {recorded}."]


def from_page_cache(warm: bool, resident_pct: float | None) -> list[str]:
    """One sentence where the times say little of the storage, else none."""
    held = f": {resident_pct:.0f} % of the data was in it before" if resident_pct else ""
    return [f"Read from the page cache{held}."] if warm else []


def _disturbed(text: str | None) -> list[str]:
    return [] if text is None else [f"D{text[1:]}, so the times below are not those of the storage."]


def run_headline(run: RunResult) -> str:
    """One line: the operations and their time, and whether any failed or began late."""
    tally = run.tally
    done = f"eplayed {format_count(tally.operations)} operations in {seconds(run.elapsed_s)} ({_recorded(run)})"
    problems = []
    if tally.failed:
        problems.append(f"{format_counted(tally.failed, 'operation')} failed{_by_name(tally.errors)}")
    if tally.close_errors:
        closes = sum(tally.close_errors.values())
        problems.append(f"{format_counted(closes, 'file')} failed to close{_by_name(tally.close_errors)}")
    if tally.short:
        problems.append(f"{format_counted(tally.short, 'operation')} moved fewer bytes than recorded")
    if problems:
        return f"FAILED: r{done}; {', '.join(problems)}."
    if run.stopped:
        return f"R{done}; up to then none failed."
    return f"R{done}, none failed{_punctuality(run)}."


def _failures(run: RunResult) -> Section:
    """The first operations that failed or moved fewer bytes than recorded."""
    in_all = run.tally.failed + run.tally.short
    rows = tuple(
        (
            str(each.rank),
            str(each.lane),
            each.operation,
            each.file,
            or_dash(each.offset, str),
            or_dash(each.length, str),
            seconds(each.begin_s),
            each.errno or f"{each.moved} bytes moved",
        )
        for each in run.failures
    )
    more = f"The first {len(rows)} of {format_count(in_all)}; the capture holds all of them."
    return Section(
        title="Failed operations",
        columns=("rank", "lane", "operation", "file", "offset", "length", "begun", "error"),
        rows=rows,
        notes=(more,) if in_all > len(rows) else (),
        brief=True,
    )


def _by_name(errors: Mapping[int, int]) -> str:
    """Counts by errno: ` (ENOENT: 3)`."""
    return f" ({', '.join(f'{name}: {format_count(count)}' for name, count in by_error_name(errors).items())})"


def _punctuality(run: RunResult) -> str:
    """Lag of the operations, against the limit on this machine; empty if no operation had a due time."""
    lag_us, limit_us = run.lag_us, _allowed_lag_us(run)
    if lag_us is None or run.disturbed:
        return ""
    lag = f"; lag p99 {microseconds(lag_us['p99'])}"
    if lag_us["p99"] <= limit_us:
        return f"{lag}, on time for this machine (limit {microseconds(limit_us)})"
    late = f"{lag}, LATE (limit {microseconds(limit_us)})"
    if run.jitter_before_us is None:
        return f"{late}: `dxt-replay compare` says whether the storage was the cause"
    taken = run.processors_pct
    load = "" if taken is None else f" (it took {percent(taken)} of the processors)"
    return (
        f"{late}: before the run this machine woke an idle thread within {microseconds(run.jitter_before_us['p99'])}, "
        f"so the rest is the replay's own share{load} or the storage's; `dxt-replay compare` says which"
    )


def _allowed_lag_us(run: RunResult) -> float:
    """The largest p99 of the lag that counts as on time on this machine."""
    return allowed_lag_us(machine_jitter_us(run.jitter_before_us, run.jitter_us, run.processors_pct))


def _is_late(run: RunResult) -> bool:
    """Whether 1 % of the operations began later than this machine explains; False if none had a due time."""
    lag_us = run.lag_us
    return lag_us is not None and not run.disturbed and lag_us["p99"] > _allowed_lag_us(run)


def _recorded(run: RunResult) -> str:
    """The recorded elapsed time, and the time that it takes at the speed of the replay if that differs."""
    recorded, expected_ns = f"recorded {format_duration(run.recorded_ns)}", run.expected_ns
    if expected_ns is None or expected_ns == run.recorded_ns:
        return recorded
    return f"{recorded}, {format_duration(expected_ns)} at this speed"


def _interface(run: RunResult) -> str:
    """The back ends, and whether POSIX calls went past the page cache."""
    names = ", ".join(run.io.backends or ["-"]).replace("_", " ")
    return f"{names}; direct" if run.io.direct else names


def _at_most_percent(value: float) -> str:
    return f"at most {percent(value)} of the time"


def repeat_sections(repeats: Repeats) -> list[Section]:
    """The tables of `dxt-replay run --repeat N`."""
    runs, median_s = repeats.runs, repeats.elapsed_s.median
    rows = [
        (
            str(number),
            seconds(run.elapsed_s),
            _from_median(run, median_s),
            "-" if run.lag_us is None else microseconds(run.lag_us["p99"]),
            "-" if run.latency_us is None else microseconds(run.latency_us["p50"]),
            format_count(run.tally.failed),
            or_dash(run.cache.resident_before_pct, percent),
        )
        for number, run in enumerate(runs, start=1)
    ]
    stopped = any(run.stopped for run in runs)
    doubt = next((run.doubt.sentences for run in runs if run.training), [])
    warm = max(runs, key=lambda run: (run.from_page_cache, run.cache.resident_before_pct or 0.0))
    doubt = [*from_page_cache(warm.from_page_cache, warm.cache.resident_before_pct), *doubt]
    sections = [
        prose(
            f"STOPPED in run {len(rows)}: its figures end there" if stopped else "", [*doubt, repeat_headline(repeats)]
        ),
        Section(
            title="Runs",
            columns=("run", "elapsed", "from the median", "lag p99", "latency p50", "failed", "cached before"),
            rows=tuple(rows),
            notes=("Lag: how late an operation began. Latency: how long the storage took.",),
            brief=True,
        ),
        prose(WARNINGS, dict.fromkeys(text for run in runs for text in run.warnings), brief=True),
    ]
    return of_generated(sections, runs[0].generated)


def repeat_headline(repeats: Repeats) -> str:
    """One line: the number of finished runs and their time, and whether any failed or was late."""
    elapsed, runs = repeats.elapsed_s, repeats.runs
    whole = [run for run in runs if not run.stopped]
    disturbed = [run.disturbed for run in whole if run.disturbed]
    if not whole:
        return run_headline(runs[0])
    times = "once" if len(whole) == 1 else f"{len(whole)} times"
    spread = f"{seconds(elapsed.min)} to {seconds(elapsed.max)}"
    done = f"eplayed {times} in a median of {seconds(elapsed.median)} ({spread}; {_recorded(runs[0])})"
    of_runs = f"of {format_counted(len(runs), 'run')}"
    failed = sum(1 for run in runs if run.tally.failed or run.tally.short or run.tally.close_errors)
    if failed:
        return f"FAILED: r{done}; operations or closes failed in {failed} {of_runs}."
    late = sum(map(_is_late, whole))
    if late:
        return (
            f"R{done}, none failed, {late} {of_runs} LATE: `dxt-replay compare` says whether the storage was the cause."
        )
    if disturbed:
        return f"R{done}, none failed, {len(disturbed)} {of_runs} left out of these times ({', '.join(disturbed)})."
    known = all(run.lag_us is not None for run in whole)
    return f"R{done}, none failed{', all on time for this machine' if known else ''}."


def _from_median(run: RunResult, median_s: float) -> str:
    """Excess of a run over the median of the finished runs."""
    if run.stopped:
        return "stopped"
    if run.disturbed:
        return "disturbed"
    return f"{format_signed(100 * (run.elapsed_s / median_s - 1), 2)} %" if median_s else "-"


def _percentiles(title: str, times_us: Mapping[str, Mapping[str, float]], *notes: str) -> Section:
    """Percentiles in us by the labels of their rows."""
    return Section(
        title=title,
        columns=("", *PERCENTILES),
        rows=tuple((label, *(microseconds(found[name]) for name in PERCENTILES)) for label, found in times_us.items()),
        notes=notes,
    )
