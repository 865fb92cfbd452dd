"""The output of `dxt-replay run` for people, from the objects that `--json` prints. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dxt_replay.replay.show.cells import microseconds, or_dash, percent, recorded_training, seconds
from dxt_replay.replay.show.section import Section, facts, prose
from dxt_replay.traces.lateness import allowed_lag_us, machine_jitter_us
from dxt_replay.traces.units import format_bytes, format_count, format_counted, format_signed

_TIMES = {
    "lag_us": ("lag (begin - due)", "Lag: how late an operation began."),
    "jitter_us": ("this machine's jitter", "Jitter: how late an idle thread of this machine wakes."),
    "jitter_before_us": ("its jitter before the run", "Before the run, nothing of the replay keeps it from waking."),
    "latency_us": ("latency (end - begin)", "Latency: how long the storage took."),
    "response_us": ("response (end - due)", "Response: lag and latency together."),
}
"""Key of a run's JSON object -> label of its row, and the sentence that explains it."""

STOPPED = "STOPPED before the end: the figures cover the part that was replayed until then"
"""Title of a run that was stopped."""


def run_sections(run: Mapping[str, Any]) -> list[Section]:
    """The tables of `dxt-replay run`, from its JSON object."""
    moved, cache = run["bytes"], run["cache"]
    rows = [
        ("capture", str(run["capture"])),
        ("pace", f"{run['pace']}, speed {run.get('speed', 1):g}"),
        ("interface", _interface(run)),
        ("operations", format_count(run["operations"])),
        ("failed", format_count(run["failed"])),
        ("read", format_bytes(moved["read"])),
        ("written", format_bytes(moved["written"])),
        ("elapsed", f"{seconds(run['elapsed_s'])} ({_recorded(run)})"),
        (
            "page cache",
            f"{cache['policy']}; {or_dash(cache['resident_before_pct'], percent)} of the data in it before",
        ),
        ("replayer's own work", or_dash((run.get("overhead") or {}).get("fraction_pct"), _at_most_percent)),
    ]
    times = {name: label for name, (label, _) in _TIMES.items()}
    explained = " ".join(sentence for name, (_, sentence) in _TIMES.items() if run.get(name))
    by_operation = run.get("latency_by_operation_us") or {}
    several = {name: name for name in by_operation} if len(by_operation) > 1 else {}
    sections = [
        prose(STOPPED if run.get("stopped") else "", [*training_sentence(run.get("training")), run_headline(run)]),
        _failures(run),
        facts("Run", rows),
        _shares("Times of an operation", run, times, notes=(explained,)),
        _shares("Latency by operation", by_operation, several),
        prose("Warnings", run.get("warnings", ())),
    ]
    return [section for section in sections if section.rows]


def training_sentence(training: Mapping[str, Any] | None) -> list[str]:
    """Recorded and predicted duration of training, in a sentence; none if unknown."""
    if not training or training["ratio"] is None:
        return []
    recorded = recorded_training(training, training["recorded_s"], training["ratio"])
    return [f"Training takes {seconds(training['replayed_s'])} here; {recorded}."]


def run_headline(run: Mapping[str, Any]) -> str:
    """What was replayed, whether operations failed and whether they were late, in one line."""
    done = f"eplayed {format_count(run['operations'])} operations in {seconds(run['elapsed_s'])} ({_recorded(run)})"
    problems = (
        [f"{format_counted(run['failed'], 'operation')} failed{_by_name(run.get('errors'))}"] if run["failed"] else []
    )
    closes = run.get("close_errors") or {}
    if closes:
        problems.append(f"{format_counted(sum(closes.values()), 'file')} failed to close{_by_name(closes)}")
    if run.get("short"):
        problems.append(f"{format_counted(run['short'], 'operation')} moved fewer bytes than recorded")
    if problems:
        return f"FAILED: r{done}; {', '.join(problems)}."
    if run.get("stopped"):
        return f"R{done}; up to then none failed."
    return f"R{done}, none failed{_punctuality(run)}."


def _failures(run: Mapping[str, Any]) -> Section:
    """The first operations that failed."""
    named = run.get("failures") or ()
    in_all = run["failed"] + run.get("short", 0)
    rows = tuple(
        (
            str(each["rank"]),
            str(each["lane"]),
            each["operation"],
            each["file"],
            or_dash(each["offset"], str),
            or_dash(each["length"], str),
            seconds(each["begin_s"]),
            each["errno"] or f"{each['moved']} bytes moved",
        )
        for each in named
    )
    more = f"The first {len(rows)} of {format_count(in_all)}; the capture holds all of them."
    return Section(
        title="Failed operations",
        columns=("rank", "lane", "operation", "file", "offset", "length", "begun", "error"),
        rows=rows,
        notes=(more,) if in_all > len(rows) else (),
    )


def _by_name(errors: Mapping[str, int] | None) -> str:
    """Counts by the name of the error: ` (ENOENT: 3)`."""
    return f" ({', '.join(f'{name}: {format_count(count)}' for name, count in errors.items())})" if errors else ""


def _punctuality(run: Mapping[str, Any]) -> str:
    """Lag of the operations, against the limit on this machine."""
    late_us = (run.get("lag_us") or {}).get("p99")
    if late_us is None:
        return ""
    limit_us = allowed_lag_us(_machine_jitter_us(run))
    lag = f"; lag p99 {microseconds(late_us)}"
    if not _is_late(run):
        return f"{lag}, on time for this machine (limit {microseconds(limit_us)})"
    late = f"{lag}, LATE (limit {microseconds(limit_us)})"
    before = run.get("jitter_before_us")
    if before is None:
        return f"{late}: `dxt-replay compare` says whether the storage was the cause"
    taken = run.get("processors_pct")
    load = "" if taken is None else f" (it took {percent(taken)} of the processors)"
    return (
        f"{late}: before the run this machine woke an idle thread within {microseconds(before['p99'])}, so the rest is "
        f"the replay's own share{load} or the storage's; `dxt-replay compare` says which"
    )


def _machine_jitter_us(run: Mapping[str, Any]) -> Mapping[str, float] | None:
    return machine_jitter_us(run.get("jitter_before_us"), run.get("jitter_us"), run.get("processors_pct"))


def _is_late(run: Mapping[str, Any]) -> bool:
    """Whether 1 % of the operations began later than this machine explains; False where none had a due time."""
    late_us = (run.get("lag_us") or {}).get("p99")
    return late_us is not None and late_us > allowed_lag_us(_machine_jitter_us(run))


def _recorded(run: Mapping[str, Any]) -> str:
    """The recorded elapsed time, and what it comes to at the speed of the replay where that differs."""
    recorded, expected = run["recorded_s"], run.get("expected_s")
    at_speed = f", {seconds(expected)} at this speed" if expected not in (None, recorded) else ""
    return f"recorded {seconds(recorded)}{at_speed}"


def _interface(run: Mapping[str, Any]) -> str:
    """The back ends, and how POSIX calls were made where that was chosen; earlier releases could make vectored ones."""
    how = [", ".join(run.get("backends") or ["-"]).replace("_", " ")]
    how += ["direct"] if run.get("direct") else []
    how += [f"{run['vectored']} buffers a request"] if run.get("vectored") else []
    return "; ".join(how)


def _at_most_percent(value: float) -> str:
    return f"at most {percent(value)} of the time"


def repeat_sections(repeats: Mapping[str, Any]) -> list[Section]:
    """The tables of `dxt-replay run --repeat N`, from its JSON object."""
    elapsed = repeats["elapsed_s"]
    rows = [
        (
            str(number),
            seconds(run["elapsed_s"]),
            _from_median(run, elapsed["median"]),
            or_dash((run["lag_us"] or {}).get("p99"), microseconds),
            or_dash((run["latency_us"] or {}).get("p50"), microseconds),
            format_count(run["failed"]),
            or_dash(run["cache"]["resident_before_pct"], percent),
        )
        for number, run in enumerate(repeats["runs"], start=1)
    ]
    stopped = any(run.get("stopped") for run in repeats["runs"])
    warnings = dict.fromkeys(text for run in repeats["runs"] for text in run.get("warnings", ()))
    sections = [
        prose(f"STOPPED in run {len(rows)}: its figures end there" if stopped else "", [repeat_headline(repeats)]),
        Section(
            title="Runs",
            columns=("run", "elapsed", "from the median", "lag p99", "latency p50", "failed", "cached before"),
            rows=tuple(rows),
            notes=("Lag: how late an operation began. Latency: how long the storage took.",),
        ),
        prose("Warnings", tuple(warnings)),
    ]
    return [section for section in sections if section.rows]


def repeat_headline(repeats: Mapping[str, Any]) -> str:
    """How many runs came to their end, how long they took, and whether any failed or was late, in one line."""
    elapsed, runs = repeats["elapsed_s"], repeats["runs"]
    whole = [run for run in runs if not run.get("stopped")]
    if not whole:
        return run_headline(runs[0])
    times = "once" if len(whole) == 1 else f"{len(whole)} times"
    spread = f"{seconds(elapsed['min'])} to {seconds(elapsed['max'])}"
    done = f"eplayed {times} in a median of {seconds(elapsed['median'])} ({spread}; {_recorded(runs[0])})"
    of_runs = f"of {format_counted(len(runs), 'run')}"
    failed = sum(1 for run in runs if run["failed"] or run.get("short") or run.get("close_errors"))
    if failed:
        return f"FAILED: r{done}; operations or closes failed in {failed} {of_runs}."
    late = sum(1 for run in whole if _is_late(run))
    if late:
        return (
            f"R{done}, none failed, {late} {of_runs} LATE: `dxt-replay compare` says whether the storage was the cause."
        )
    known = all((run.get("lag_us") or {}).get("p99") is not None for run in whole)
    return f"R{done}, none failed{', all on time for this machine' if known else ''}."


def _from_median(run: Mapping[str, Any], median_s: float) -> str:
    """Excess of a run over the median of the finished runs."""
    if run.get("stopped"):
        return "stopped"
    return f"{format_signed(100 * (run['elapsed_s'] / median_s - 1), 2)} %" if median_s else "-"


def _shares(title: str, values: Mapping[str, Any], labels: Mapping[str, str], notes: tuple[str, ...] = ()) -> Section:
    """Percentiles in us of those of `labels` that were measured."""
    measured = [(label, values[name]) for name, label in labels.items() if values.get(name)]
    columns = tuple(measured[0][1]) if measured else ()
    return Section(
        title=title,
        columns=("", *columns),
        rows=tuple((label, *(or_dash(found.get(name), microseconds) for name in columns)) for label, found in measured),
        notes=notes,
    )
