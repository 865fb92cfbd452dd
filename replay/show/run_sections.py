"""What a command prints for a person, as rows of text: from the same objects that `--json` prints. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from replay.show.section import BAR, MAX_GROUPS, Column, Kind, Section, bar
from traces.units import MIB, NS_PER_S, NS_PER_US, format_bytes, format_count, format_duration

_LATENESS = {"lag_us": "lag (begin - due)", "jitter_us": "this machine's jitter"}

STOPPED = "STOPPED before the end: the figures are of the part that was replayed until then"
"""Title of a run that was stopped."""


def summary_sections(summary: Mapping[str, Any]) -> list[Section]:
    """The tables of `dxt-replay summary`, from its JSON object."""
    sections = [
        _facts("Job", _job_rows(summary)),
        _facts("I/O", _io_rows(summary)),
        Section(
            title="Per operation",
            columns=("", "min", "median", "mean", "max"),
            rows=(
                ("transfer size", *_spread(summary["transfer_size_bytes"], format_bytes)),
                ("bandwidth", *_spread(summary["bandwidth_per_op_mib_s"], _mib_s)),
            ),
        ),
        _facts("Steps and compute", _phase_rows(summary)),
        _interfaces(summary["interfaces"]),
    ]
    if summary.get("groups") is not None:
        sections.append(_breakdown(summary["groups"], summary["by"]))
    if summary["warnings"]:
        sections.append(_prose("Warnings", summary["warnings"]))
    return [section for section in sections if section.rows]


def _job_rows(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    job, coverage = summary["job"], summary["coverage"]
    yield "ranks", format_count(job["nprocs"])
    yield "run time", _seconds(job["run_time_s"])
    yield "traced of counted bytes", _share(coverage["bytes"])
    yield "traced of counted operations", _share(coverage["operations"])
    if summary["partial"]:
        yield "complete", "no: the capture is partial"


def _io_rows(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    operations, moved, io_time = summary["operations"], summary["bytes"], summary["io_time_s"]
    rebuilt = summary["reconstructed"]
    yield "reads", f"{format_count(operations['read'])} of {format_bytes(moved['read'])}"
    yield "writes", f"{format_count(operations['write'])} of {format_bytes(moved['written'])}"
    if operations["other"]:
        yield "other operations", format_count(operations["other"])
    if any(rebuilt.values()):
        count = rebuilt["read"] + rebuilt["write"] + rebuilt["other"]
        size = rebuilt["bytes_read"] + rebuilt["bytes_written"]
        yield "reconstructed, in no total", f"{format_count(count)} of {format_bytes(size)}"
    yield "files", format_count(summary["files"])
    yield "I/O time per rank, union", _mean_and_max(io_time, "union_per_rank")
    yield "I/O time per rank, sum", _mean_and_max(io_time, "sum_per_rank")
    yield "bandwidth while any I/O ran", _or_dash(summary["aggregate_bandwidth_mib_s"], _mib_s)
    source = {"counters": "Darshan's counters", "operations": "from the operations"}[summary["access_pattern_source"]]
    yield "sequential", f"{_or_dash(summary['sequential_pct'], _percent)} ({source})"
    yield "consecutive", _or_dash(summary["consecutive_pct"], _percent)
    if summary["unmeasured_operations"]:
        yield "too short to measure", f"{format_count(summary['unmeasured_operations'])} operations"


def _phase_rows(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    steps, compute = summary["steps"], summary["compute"]
    if steps["count"]:
        yield "steps", f"{format_count(steps['count'])}, mean {_seconds(steps['mean_s'])}"
    if compute["profiled_ranks"]:
        yield "compute-busy per rank", _or_dash(compute["busy_s_per_rank_mean"], _seconds)
        yield "waiting for input per rank", _or_dash(compute["input_wait_s_per_rank_mean"], _seconds)
        yield "I/O time inside compute-busy", _or_dash(compute["io_hidden_pct"], _percent)


def _interfaces(interfaces: Mapping[str, Mapping[str, Any]]) -> Section:
    return Section(
        title="Interfaces",
        columns=("", "reads", "writes", "bytes", "from"),
        rows=tuple(
            (
                name,
                format_count(found["reads"]),
                format_count(found["writes"]),
                format_bytes(found["bytes"]),
                found["source"],
            )
            for name, found in interfaces.items()
        ),
        notes=("A layer's bytes pass the layers below it again: they do not add up.",) if len(interfaces) > 1 else (),
    )


def _breakdown(groups: Sequence[Mapping[str, Any]], by: str) -> Section:
    """Sizes and steps in their order, everything else by cost."""
    shown = sorted(groups, key=lambda group: -group["io_time_s"])[:MAX_GROUPS]
    kept = [group for group in groups if group in shown] if by in ("size", "step") else shown
    left = len(groups) - len(kept)
    longest = max((group["io_time_s"] for group in kept), default=0.0) or 1.0
    return Section(
        title=f"By {by}",
        columns=(
            Column(head=by, kind=Kind.PATH if by == "file" else Kind.TEXT),
            *("reads", "writes", "bytes", "I/O time, sum"),
            BAR,
        ),
        rows=tuple(
            (
                str(group["group"]),
                format_count(group["reads"]),
                format_count(group["writes"]),
                format_bytes(group["bytes_read"] + group["bytes_written"]),
                _seconds(group["io_time_s"]),
                bar(group["io_time_s"] / longest, 12),
            )
            for group in kept
        ),
        notes=(f"and {format_count(left)} more with less I/O time: --json and --csv have all",) if left else (),
    )


def merge_sections(merged: Mapping[str, Any]) -> list[Section]:
    """The tables of `dxt-replay merge`, from its JSON object."""
    operations = merged["operations"]
    facts = [
        ("capture", str(merged["capture"])),
        ("ranks", format_count(merged["ranks"])),
        ("operations traced", format_count(operations["traced"])),
        ("operations reconstructed", format_count(operations["reconstructed"])),
        ("files", format_count(merged["files"])),
        ("spans", format_count(merged["spans"])),
        ("traced of counted bytes", _share(merged["coverage"]["bytes"])),
        ("traced of counted operations", _share(merged["coverage"]["operations"])),
    ]
    clock = merged["clock"][:MAX_GROUPS]
    left = len(merged["clock"]) - len(clock)
    workers = any(found.get("worker") for found in clock)
    clocks = Section(
        title="Clocks",
        columns=("rank", *(("worker",) if workers else ()), "method", "offset", "known within"),
        rows=tuple(
            (
                str(found["rank"]),
                *((str(found["worker"] or "-"),) if workers else ()),
                found["method"],
                format_duration(found["offset_ns"]),
                format_duration(found["interval_ns"][1] - found["interval_ns"][0]),
            )
            for found in clock
        ),
        notes=(f"and {format_count(left)} more ranks: --json has all",) if left else (),
    )
    sections = [_facts("Merged", facts), clocks, _prose("Warnings", merged["warnings"])]
    return [section for section in sections if section.rows]


def run_sections(run: Mapping[str, Any]) -> list[Section]:
    """The tables of `dxt-replay run`, from its JSON object."""
    moved, cache = run["bytes"], run["cache"]
    facts = [
        ("capture", str(run["capture"])),
        ("pace", f"{run['pace']}, speed {run.get('speed', 1):g}"),
        ("interface", _interface(run)),
        ("operations", format_count(run["operations"])),
        ("failed", format_count(run["failed"])),
        ("read", format_bytes(moved["read"])),
        ("written", format_bytes(moved["written"])),
        ("elapsed", f"{_seconds(run['elapsed_s'])} ({_recorded(run)})"),
        ("page cache", f"{cache['policy']}, {_or_dash(cache['resident_before_pct'], _percent)} resident before"),
        ("engine itself", _or_dash((run.get("overhead") or {}).get("fraction_pct"), _at_most_percent)),
    ]
    times = {**_LATENESS, "latency_us": "latency (end - begin)", "response_us": "response (end - due)"}
    by_operation = run.get("latency_by_operation_us") or {}
    several = {name: name for name in by_operation} if len(by_operation) > 1 else {}
    sections = [
        _facts(STOPPED if run.get("stopped") else "Replayed", facts),
        _shares("Times", run, times),
        _shares("Latency by operation", by_operation, several),
        _prose("Warnings", run.get("warnings", ())),
    ]
    return [section for section in sections if section.rows]


def _recorded(run: Mapping[str, Any]) -> str:
    """What the elapsed time is to be held against: as recorded, and at the speed of the replay where that differs."""
    recorded, expected = run["recorded_s"], run.get("expected_s")
    at_speed = f", {_seconds(expected)} at this speed" if expected not in (None, recorded) else ""
    return f"recorded {_seconds(recorded)}{at_speed}"


def _interface(run: Mapping[str, Any]) -> str:
    """The back ends, and how POSIX calls were made where that was chosen."""
    how = [", ".join(run.get("backends") or ["-"]).replace("_", " ")]
    how += ["direct"] if run.get("direct") else []
    how += [f"{run['vectored']} buffers a request"] if run.get("vectored") else []
    return "; ".join(how)


def _at_most_percent(value: float) -> str:
    return f"at most {_percent(value)} of the time"


def repeat_sections(repeats: Mapping[str, Any]) -> list[Section]:
    """The tables of `dxt-replay run --repeat N`, from its JSON object."""
    elapsed = repeats["elapsed_s"]
    rows = [
        (
            str(number),
            _seconds(run["elapsed_s"]),
            f"{100 * (run['elapsed_s'] / elapsed['median'] - 1):+.2f} %" if elapsed["median"] else "-",
            _or_dash((run["lag_us"] or {}).get("p99"), _microseconds),
            _or_dash((run["latency_us"] or {}).get("p50"), _microseconds),
            format_count(run["failed"]),
            _or_dash(run["cache"]["resident_before_pct"], _percent),
        )
        for number, run in enumerate(repeats["runs"], start=1)
    ]
    summary = f"median {_seconds(elapsed['median'])}, {_seconds(elapsed['min'])} to {_seconds(elapsed['max'])}"
    stopped = any(run.get("stopped") for run in repeats["runs"])
    warnings = dict.fromkeys(text for run in repeats["runs"] for text in run.get("warnings", ()))
    sections = [
        Section(
            title=STOPPED if stopped else "Runs",
            columns=("run", "elapsed", "of median", "lag p99", "latency p50", "failed", "cached before"),
            rows=tuple(rows),
            notes=(summary,),
        ),
        _prose("Warnings", tuple(warnings)),
    ]
    return [section for section in sections if section.rows]


def _shares(title: str, values: Mapping[str, Any], labels: Mapping[str, str]) -> Section:
    """Percentiles in us of those of `labels` that were measured."""
    measured = [(label, values[name]) for name, label in labels.items() if values.get(name)]
    columns = tuple(measured[0][1]) if measured else ()
    return Section(
        title=title,
        columns=("", *columns),
        rows=tuple(
            (label, *(_or_dash(found.get(name), _microseconds) for name in columns)) for label, found in measured
        ),
    )


def _facts(title: str, rows: Iterable[tuple[str, str]], notes: Sequence[str] = ()) -> Section:
    return Section(title=title, rows=tuple(rows), prose=True, notes=tuple(notes))


def _prose(title: str, lines: Sequence[str]) -> Section:
    return Section(title=title, rows=tuple((line,) for line in lines), prose=True)


def _spread(spread: Mapping[str, float | None], text: Callable[[float], str]) -> tuple[str, ...]:
    return tuple(_or_dash(spread[name], text) for name in ("min", "median", "mean", "max"))


def _mean_and_max(values: Mapping[str, float], name: str) -> str:
    return f"mean {_seconds(values[f'{name}_mean'])}, max {_seconds(values[f'{name}_max'])}"


def _or_dash(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def _seconds(value: float) -> str:
    return format_duration(value * NS_PER_S)


def _microseconds(value: float) -> str:
    return format_duration(value * NS_PER_US)


def _mib_s(value: float) -> str:
    return f"{format_bytes(value * MIB)}/s"


def _percent(value: float) -> str:
    return f"{value:.2f} %"


def _share(value: float | None) -> str:
    return _or_dash(value, lambda share: _percent(100 * share))
