"""Prints the result of `dxt-replay merge`: one sentence on its completeness, then the figures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dxt_replay.replay.show.cells import share
from dxt_replay.replay.show.section import MAX_GROUPS, Column, Kind, Section, facts, prose
from dxt_replay.traces.text import listed
from dxt_replay.traces.units import format_bytes, format_count, format_counted, format_duration
from dxt_replay.traces.unseen import nothing_recorded

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.merge import MergeResult
    from dxt_replay.traces.schema import RankClock

_WHOLE = 0.99995
"""Least coverage that prints as 100.00 %."""


def merge_sections(merged: MergeResult) -> list[Section]:
    """The tables of `dxt-replay merge`."""
    coverage = merged.info.coverage
    rows = [
        ("capture", str(merged.capture)),
        ("ranks", format_count(len(merged.info.ranks))),
        ("operations traced", format_count(merged.operations)),
        ("operations from counters", format_count(merged.reconstructed)),
        ("files", format_count(merged.files)),
        ("spans", format_count(merged.spans)),
        ("trace coverage, bytes", share(coverage.bytes)),
        ("trace coverage, operations", share(coverage.operations)),
    ]
    if nothing_recorded(coverage.unseen):
        rows = [row for row in rows if row[0] in ("capture", "ranks", "spans")]
    sections = [
        facts(_headline(merged), rows),
        prose("Warnings", merged.info.warnings),
    ]
    if merged.operations:
        sections.insert(1, _clocks(merged))
    return [section for section in sections if section.rows]


def no_dxt(counted: Mapping[str, Mapping[str, int]]) -> str:
    """The line for a log without a trace: the operations and bytes that its counters hold."""
    totals = "; ".join(
        f"{name} {format_count(found['reads'])} reads of {format_bytes(found['bytes_read'])} and "
        f"{format_count(found['writes'])} writes of {format_bytes(found['bytes_written'])}"
        for name, found in counted.items()
    )
    return f"no DXT in this log: it holds Darshan's counters alone ({totals or 'all of them 0'})"


def _headline(merged: MergeResult) -> str:
    """The number of ranks and operations, the trace coverage and the error of the clocks, in one sentence."""
    coverage = merged.info.coverage
    ranks = format_counted(len(merged.info.ranks), "rank")
    if nothing_recorded(coverage.unseen):
        return f"Merged the steps of {ranks}: no I/O was recorded"
    if not merged.operations:
        return f"Merged {ranks}, but {no_dxt(merged.counted)}"
    said = [f"Merged {ranks}, {format_counted(merged.operations, 'operation')}"]
    known = [share for share in coverage.traceable if share is not None]
    if not known:
        traced = merged.recorded_by != "darshan"
        why = "a trace has no counters to be held against" if traced else "the log has no counters"
        why = "some I/O is in no trace" if coverage.unseen else why
        said.append(f"trace coverage unknown, as {why}")
    elif min(known) >= _WHOLE:
        whole = [each for each in (coverage.bytes, coverage.operations) if each is not None]
        streams = ", the rest went through C streams, which DXT does not trace" if min(whole) < _WHOLE else ""
        said.append(f"trace coverage {share(min(whole)) if streams else '100 %'}{streams}")
    else:
        said.append(f"but the trace is partial: coverage {share(min(known))}")
    if merged.spans and merged.info.clock:
        said.append(f"clocks known within {_known_within(merged.info.clock)}")
    return ", ".join(said)


def _known_within(clocks: Sequence[RankClock]) -> str:
    """The widest interval of the ranks' clocks, and that of their workers' clocks, which are known less well."""
    ranks = [_width(found) for found in clocks if not found.worker]
    workers = [_width(found) for found in clocks if found.worker]
    if not ranks or not workers or max(workers) <= max(ranks):
        return format_duration(max([*ranks, *workers]))
    return f"{format_duration(max(ranks))}, of worker processes within {format_duration(max(workers))}"


def _clocks(merged: MergeResult) -> Section:
    """Alignment of each rank's clock; equal ranks share a row."""
    groups: dict[tuple[str, int, int], list[RankClock]] = {}
    for found in merged.info.clock:
        groups.setdefault((found.method, found.offset_ns, _width(found)), []).append(found)
    shown = list(groups.items())[:MAX_GROUPS]
    left = sum(len(members) for members in groups.values()) - sum(len(members) for _, members in shown)
    workers = any(found.worker for found in merged.info.clock)
    notes = [f"and {format_count(left)} more clocks: --json has all"] if left else []
    if not merged.spans:
        notes.append("There is no profile to align with: the offsets only matter between these processes.")
    return Section(
        title="Clocks",
        columns=(
            "rank",
            *((Column(head="process", kind=Kind.TEXT),) if workers else ()),
            "method",
            "offset",
            "known within",
        ),
        rows=tuple(
            (
                _ranges(found.rank for found in members),
                *((_workers(members),) if workers else ()),
                method,
                format_duration(offset_ns),
                format_duration(width_ns),
            )
            for (method, offset_ns, width_ns), members in shown
        ),
        notes=tuple(notes),
    )


def _width(clock: RankClock) -> int:
    low, high = clock.interval_ns
    return high - low


def _workers(members: Sequence[RankClock]) -> str:
    """The processes of a rank that share a clock: its own, and its workers by number."""
    numbers = {found.worker for found in members}
    workers = sorted(numbers - {0})
    named = [f"{'worker' if len(workers) == 1 else 'workers'} {_ranges(workers)}"] if workers else []
    return ", ".join([*(["its own"] if 0 in numbers else []), *named])


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers as 0-3, 7."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in parts]
    return listed(shown, MAX_GROUPS)
