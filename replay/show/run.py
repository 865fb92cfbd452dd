"""The words of `dxt-replay run` and `run --repeat`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.show.section import (
    WARNINGS,
    Section,
    figures,
    listing,
    microseconds,
    of_generated,
    percent,
    prose,
    recorded_training,
    seconds,
    table,
)
from dxt_replay.traces.records import allowed_lag_us, by_error_name, machine_jitter_us
from dxt_replay.traces.units import format_count, format_counted, format_duration

if TYPE_CHECKING:
    from dxt_replay.replay.run.result import Repeats, RunResult
    from dxt_replay.traces.measures.span_times import TrainingTime

STOPPED = "STOPPED before the end: the figures cover the part that was replayed until then"
"""Title of a run that was stopped."""

FIGURES = figures("""
    capture | {capture} | path of the capture of the replay
    pace | {pace}, speed {speed} | timed, think, steps or none
    interface | {backends:-} | the interfaces that were used
    past the page cache | {direct:+} | whether O_DIRECT was asked for
    operations | {operations} | issued operations
    failed | {failed} | operations whose system call failed
    read | {bytes.read} | bytes read
    written | {bytes.written} | bytes written
    elapsed | {elapsed_s}; recorded {recorded_s} | from the start to the end of the last operation
    page cache | {cache.policy}; {cache.resident_before_pct:?} of the data in it before | cold, or as found
    replayer's own work | at most {overhead.fraction_pct} of the time | the replayer's own cost
""")
TIMES = figures("""
    time | {time}
    p50 | {p50}
    p90 | {p90}
    p99 | {p99}
    max | {max}
""")
_TIMES = {
    "lag_us": "lag: begun after it was due",
    "jitter_us": "idle thread of this machine woken late by",
    "jitter_before_us": "the same, before the run",
    "latency_us": "latency: duration of an operation",
    "response_us": "response: ended after it was due",
}
FAILURES = figures("""
    rank | {rank}
    lane | {lane}
    operation | {operation}
    file | {file}
    offset | {offset}
    length | {length}
    begun | {begin_s}
    error | {error}
""")
RUNS = figures("""
    run | {run}
    elapsed | {elapsed_s}
    from the median | {from_median}
    lag p99 | {lag_us.p99}
    latency p50 | {latency_us.p50}
    failed | {failed}
    cached before | {cache.resident_before_pct}
""")


def run_sections(run: RunResult) -> list[Section]:
    found = run.as_json()
    times = [_percentiles(label, found[name]) for name, label in _TIMES.items() if found[name] is not None]
    by_operation = [_percentiles(name, each) for name, each in found["latency_by_operation_us"].items()]
    failures = [
        {**each, "error": each["errno"] or f"{each['moved']} bytes moved", "rank": str(each["rank"])}
        for each in found["failures"]
    ]
    said = []
    if run.disturbed is not None:
        said.append(f"D{run.disturbed[1:]}, so the times below are not those of the storage.")
    said += from_page_cache(run.from_page_cache, run.resident_before_pct)
    said += [*(run.doubt.sentences if run.training else []), *training_sentence(run.training), run_headline(run)]
    in_all = run.tally.failed + run.tally.short
    more = f"The first {len(failures)} of {format_count(in_all)}; the capture holds all of them."
    sections = [
        prose(STOPPED if run.stopped else "", said),
        listing("Failed operations", FAILURES, failures, notes=[more] * (in_all > len(failures)), brief=True),
        table("Run", FIGURES, found),
        listing("Times of an operation", TIMES, times),
        listing("Latency by operation", TIMES, by_operation if len(by_operation) > 1 else ()),
        prose(WARNINGS, run.warnings, brief=True),
    ]
    return of_generated(sections, run.generated)


def _percentiles(label: str, found_us: Mapping[str, float]) -> dict[str, Any]:
    return {"time": label, **{name: microseconds(value) for name, value in found_us.items()}}


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
    return f"R{done}; up to then none failed." if run.stopped else f"R{done}, none failed{_punctuality(run)}."


def _by_name(errors: Mapping[int, int]) -> str:
    return f" ({', '.join(f'{name}: {format_count(count)}' for name, count in by_error_name(errors).items())})"


def _punctuality(run: RunResult) -> str:
    """Lag of the operations, against the limit on this machine; empty if no operation had a due time."""
    lag_us = run.lag_us
    if lag_us is None or run.disturbed:
        return ""
    limit, lag = microseconds(_allowed_lag_us(run)), f"; lag p99 {microseconds(lag_us['p99'])}"
    if not _is_late(run):
        return f"{lag}, on time for this machine (limit {limit})"
    if run.jitter_before_us is None:
        return f"{lag}, LATE (limit {limit}): `dxt-replay compare` says whether the storage was the cause"
    taken = run.processors_pct
    load = "" if taken is None else f" (it took {percent(taken)} of the processors)"
    return (
        f"{lag}, LATE (limit {limit}): before the run this machine woke an idle thread within "
        f"{microseconds(run.jitter_before_us['p99'])}, so the rest is the replay's own share{load} or the storage's; "
        "`dxt-replay compare` says which"
    )


def _allowed_lag_us(run: RunResult) -> float:
    """The largest p99 of the lag that counts as on time on this machine."""
    return allowed_lag_us(machine_jitter_us(run.jitter_before_us, run.jitter_us, run.processors_pct))


def _is_late(run: RunResult) -> bool:
    """Whether 1 % of the operations began later than this machine explains; False if none had a due time."""
    return run.lag_us is not None and not run.disturbed and run.lag_us["p99"] > _allowed_lag_us(run)


def _recorded(run: RunResult) -> str:
    """The recorded elapsed time, and the time that it takes at the speed of the replay if that differs."""
    recorded, expected_ns = f"recorded {format_duration(run.recorded_ns)}", run.expected_ns
    if expected_ns is None or expected_ns == run.recorded_ns:
        return recorded
    return f"{recorded}, {format_duration(expected_ns)} at this speed"


def repeat_sections(repeats: Repeats) -> list[Section]:
    runs, median_s = repeats.runs, repeats.elapsed_s["median"]
    rows = []
    for number, run in enumerate(runs, start=1):
        from_median = f"{100 * (run.elapsed_s / median_s - 1):+.2f} %" if median_s else "-"
        state = "stopped" if run.stopped else "disturbed" if run.disturbed else from_median
        rows.append({**run.as_json(), "run": str(number), "from_median": state})
    doubt = next((run.doubt.sentences for run in runs if run.training), [])
    warm = max(runs, key=lambda run: (run.from_page_cache, run.resident_before_pct or 0.0))
    cached = from_page_cache(warm.from_page_cache, warm.resident_before_pct)
    stopped = f"STOPPED in run {len(rows)}: its figures end there" if any(run.stopped for run in runs) else ""
    sections = [
        prose(stopped, [*cached, *doubt, repeat_headline(repeats)]),
        listing("Runs", RUNS, rows, brief=True),
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
    spread = f"{seconds(elapsed['min'])} to {seconds(elapsed['max'])}"
    done = f"eplayed {times} in a median of {seconds(elapsed['median'])} ({spread}; {_recorded(runs[0])})"
    of_runs = f"of {format_counted(len(runs), 'run')}"
    failed = sum(1 for run in runs if run.tally.failed or run.tally.short or run.tally.close_errors)
    if failed:
        return f"FAILED: r{done}; operations or closes failed in {failed} {of_runs}."
    if late := sum(map(_is_late, whole)):
        return (
            f"R{done}, none failed, {late} {of_runs} LATE: `dxt-replay compare` says whether the storage was the cause."
        )
    if disturbed:
        return f"R{done}, none failed, {len(disturbed)} {of_runs} left out of these times ({', '.join(disturbed)})."
    known = all(run.lag_us is not None for run in whole)
    return f"R{done}, none failed{', all on time for this machine' if known else ''}."
