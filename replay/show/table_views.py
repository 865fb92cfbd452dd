"""The tables of `dxt-replay summary --show` for people. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.replay.show.data_tables import (
    DATASETS,
    FILES,
    OVERLAP,
    RANK_FILES,
    RANKS,
    STEPS,
    TFRECORDS,
    columns_of,
    data_section,
)
from dxt_replay.replay.show.finding_sections import finding_sections
from dxt_replay.replay.show.limit_sections import limit_sections
from dxt_replay.replay.show.model_sections import model_sections
from dxt_replay.replay.show.section import BAR, MAX_GROUPS, Section, bar
from dxt_replay.replay.show.summary_sections import summary_sections
from dxt_replay.replay.show.timeline_section import timeline_section
from dxt_replay.traces.units import format_bytes, format_count

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.named_tables import Views

SLOWEST_STEPS = 10

Rows = Sequence[Mapping[str, Any]]

_NO_STEPS = [Section(title="", rows=(), notes=("No training steps, which a causal model would follow.",))]

_SHARES = {
    "io_of_run_pct": "I/O, of the job's run time",
    "pipeline_of_run_pct": "I/O and preprocessing, of the job's run time",
    "io_hidden_pct": "I/O inside compute, of the I/O time",
    "io_of_loop_pct": "I/O, of the training loop",
    "compute_pct": "compute, of the training loop",
    "input_wait_pct": "input wait, of the training loop",
    "collective_pct": "collectives, of the training loop",
    "checkpoint_pct": "checkpoints, of the training loop",
}


def summary_or_tables(found: Views) -> list[Section]:
    """The output of `dxt-replay summary` for people: the requested tables, or the totals if none was requested."""
    return view_sections(found) if found.tables else summary_sections(found.summary, found.storage_limit)


def view_sections(found: Views) -> list[Section]:
    """Sections of the tables, and of files that could not be read."""
    sections: list[Section] = []
    shares = found.shares
    for name in found.tables:
        if name == "findings":
            sections += finding_sections(found.findings, found.summary)
            continue
        rows = found.rows(name, MAX_GROUPS)
        if name in ("overlap", "steps") and shares is not None:
            sections += _shares(shares)
            shares = None
        if name == "rank-files":
            in_all = found.tables[name].num_rows
            sections.append(data_section("Files by rank", RANK_FILES, rows, cost=_moved, rows_in_all=in_all))
        elif name == "storage-limit":
            sections += limit_sections(found.storage_limit)
        elif name == "model":
            sections += _NO_STEPS if found.model is None else model_sections(found.model)
        elif name in _SECTIONS:
            sections += _SECTIONS[name](rows)
        else:
            sections.append(plain_section(name, rows))
    return [section for section in [*sections, *unread_sections(found.unread or {})] if section.rows or section.notes]


def plain_section(name: str, rows: Rows) -> Section:
    """A table as its description has it, in the order of its rows."""
    about = TABLES[name].about
    title = about[:1].upper() + about[1:]
    return data_section(title, columns_of(name), rows) if rows else Section(title=title, rows=(), notes=("No rows.",))


def unread_sections(unread: Mapping[str, str]) -> list[Section]:
    """Files that could not be read: the number of those that are not on this machine, and the reason for each other."""
    absent = [path for path, why in unread.items() if why == NOT_HERE]
    damaged = [(path, why) for path, why in unread.items() if why != NOT_HERE]
    sections = []
    if absent:
        files = "1 file is" if len(absent) == 1 else f"{format_count(len(absent))} files are"
        sections.append(
            Section(
                title="",
                rows=(),
                notes=(
                    f"{files} not on this machine, such as {absent[0]}: --map PREFIX=DIR says where files below PREFIX "
                    "are now.",
                ),
            )
        )
    if damaged:
        sections.append(
            Section(
                title="Could not be read", rows=tuple((f"{path}: {why}",) for path, why in damaged[:10]), prose=True
            )
        )
    return sections


NOT_HERE = "not on this machine"
"""The reason that `contents` gives for a file that does not exist."""


def _shares(shares: Mapping[str, float | None]) -> list[Section]:
    rows = [
        (label, f"{shares[name]:.2f} %", bar((shares[name] or 0.0) / 100))
        for name, label in _SHARES.items()
        if shares[name] is not None
    ]
    return [Section(title="Shares, the first step included", rows=tuple(rows), columns=("", "share", BAR))]


def _moved(row: Mapping[str, Any]) -> float:
    return float(row["bytes_read"] + row["bytes_written"] + row["reconstructed_bytes"])


def _cost(rows: Rows) -> Callable[[Mapping[str, Any]], float]:
    """I/O time, or bytes from counters where nothing was traced."""
    name = "io_ns" if any(row["io_ns"] for row in rows) else "reconstructed_bytes"
    return lambda row: float(row[name] or 0)


def _overlap(rows: Rows) -> list[Section]:
    return [data_section("Compute and I/O by rank", OVERLAP, rows)]


def _steps(rows: Rows) -> list[Section]:
    slow = sorted((row for row in rows if row["excess_ns"] > 0), key=lambda row: -row["excess_ns"])[:SLOWEST_STEPS]
    return [data_section("Slowest steps", STEPS, slow, cost=lambda row: float(row["duration_ns"]))]


def _dependencies(rows: Rows) -> list[Section]:
    if not rows:
        return _NO_STEPS
    return [data_section("What operations wait for", columns_of("dependencies"), rows)]


def _lanes(rows: Rows) -> list[Section]:
    """Ids as they are, without separators of thousands."""
    columns = [
        replace(each, text=str) if name in ("pid", "thread") else each
        for name, each in zip(TABLES["lanes"].columns, columns_of("lanes"), strict=True)
    ]
    return [data_section("Lanes", columns, rows)]


def _requests(rows: Rows) -> list[Section]:
    if not rows:
        return [Section(title="", rows=(), notes=("No requests to object stores.",))]
    return [data_section("Requests to object stores", columns_of("requests"), rows)]


def _sizes(rows: Rows) -> list[Section]:
    def label(row: Mapping[str, Any]) -> str:
        least, most = row["least_bytes"], row["most_bytes"]
        if most is None:
            return f"from {format_bytes(least)}"
        if least == most:
            return format_bytes(least)
        return f"{format_bytes(least)} to < {format_bytes(most + 1)}"

    return _size_sections(rows, label)


def _exact_sizes(rows: Rows) -> list[Section]:
    def label(row: Mapping[str, Any]) -> str:
        return "all others" if row["size_bytes"] is None else f"{format_count(row['size_bytes'])} B"

    return _size_sections(rows, label)


def _size_sections(rows: Rows, label: Callable[[Mapping[str, Any]], str]) -> list[Section]:
    sections = []
    for (interface, op, origin), found in groupby(rows, key=lambda row: (row["interface"], row["op"], row["origin"])):
        part = list(found)
        total = sum(row["operations"] for row in part)
        marked = {"traced": "", "reconstructed": ", reconstructed from counters"}.get(origin, f", {origin}")
        sections.append(
            Section(
                title=f"Sizes: {interface} {op}s{marked}",
                columns=("size", "operations", "bytes", "share", BAR),
                rows=tuple(
                    (
                        label(row),
                        format_count(row["operations"]),
                        format_bytes(row["bytes"]),
                        f"{100 * row['operations'] / total:.2f} %",
                        bar(row["operations"] / total, 20),
                    )
                    for row in part
                ),
            )
        )
    return sections


_SECTIONS: Mapping[str, Callable[[Rows], list[Section]]] = {
    "overlap": _overlap,
    "steps": _steps,
    "sizes": _sizes,
    "darshan-sizes": _sizes,
    "exact-sizes": _exact_sizes,
    "files": lambda rows: [data_section("Files", FILES, rows, cost=_cost(rows))],
    "ranks": lambda rows: [data_section("Ranks", RANKS, rows, cost=_cost(rows))],
    "lanes": _lanes,
    "requests": _requests,
    "dependencies": _dependencies,
    "timeline": lambda rows: [timeline_section(rows)],
    "tfrecords": lambda rows: [data_section("TFRecord files", TFRECORDS, rows)],
    "datasets": lambda rows: [data_section("HDF5 datasets", DATASETS, rows)],
}
"""Tables that `plain_section` does not make, because they have other columns or bars, or are text."""
