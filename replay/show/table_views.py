"""The tables of `dxt-replay summary --show` for a person: rows of text with bars, from the JSON rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from replay.show.run_sections import MAX_GROUPS, Section, bar
from traces.units import NS_PER_S, format_bytes, format_count, format_duration

PATH_WIDTH = 20
"""Characters of a path that fit beside the columns of 80."""

Rows = Sequence[Mapping[str, Any]]

_SHARES = {
    "io_of_run_pct": "I/O, of the run time",
    "pipeline_of_run_pct": "I/O and preprocessing, of the run",
    "io_hidden_pct": "I/O inside compute, of the I/O",
    "io_of_loop_pct": "I/O, of the training loop",
    "compute_pct": "compute, of the loop",
    "input_wait_pct": "input wait, of the loop",
    "collective_pct": "collectives, of the loop",
    "checkpoint_pct": "checkpoints, of the loop",
}


def view_sections(
    tables: Mapping[str, Rows],
    shares: Mapping[str, float | None] | None,
    unread: Mapping[str, str] | None = None,
    rows_in_all: Mapping[str, int] | None = None,
) -> list[Section]:
    """Sections of the tables in `tables`, by the names of `analysis.named_tables`, and of `unread` files.

    `rows_in_all`: how many rows a table has where `tables` holds the largest only (of rank-files).
    """
    sections: list[Section] = []
    for name, rows in tables.items():
        if name in ("overlap", "steps") and shares is not None:
            sections += _shares(shares)
            shares = None
        if name == "rank-files":
            sections += _rank_files(rows, (rows_in_all or {}).get(name, len(rows)))
        else:
            sections += _SECTIONS[name](rows)
    if unread:
        lines = tuple((f"{path}: {why}",) for path, why in list(unread.items())[:MAX_GROUPS])
        sections.append(Section(title="Could not be looked into", rows=lines, prose=True))
    return [section for section in sections if section.rows]


def _shares(shares: Mapping[str, float | None]) -> list[Section]:
    rows = [
        (label, f"{shares[name]:.2f} %", bar((shares[name] or 0.0) / 100))
        for name, label in _SHARES.items()
        if shares[name] is not None
    ]
    return [Section(title="Shares", rows=tuple(rows), bars=True)]


def _overlap(rows: Rows) -> list[Section]:
    names = {"loop_ns": "loop", "compute_ns": "compute", "input_wait_ns": "input wait", "io_ns": "I/O"}
    names |= {"io_hidden_ns": "hidden", "io_exposed_ns": "exposed"}
    return [
        Section(
            title="Compute and I/O by rank",
            columns=("rank", *names.values()),
            rows=tuple((str(row["rank"]), *(_ns(row[name]) for name in names)) for row in rows[:MAX_GROUPS]),
            notes=_left(len(rows)),
        )
    ]


def _steps(rows: Rows) -> list[Section]:
    slow = sorted((row for row in rows if row["excess_ns"] > 0), key=lambda row: -row["excess_ns"])[:10]
    longest = max((row["duration_ns"] for row in slow), default=1)
    return [
        Section(
            title="Slowest steps",
            columns=("rank", "step", "duration", "above median", "mostly by", "of", ""),
            rows=tuple(
                (
                    str(row["rank"]),
                    str(row["step"]),
                    _ns(row["duration_ns"]),
                    _ns(row["excess_ns"]),
                    row["why"] or "-",
                    _ns(row["why_excess_ns"]),
                    bar(row["duration_ns"] / longest, 12),
                )
                for row in slow
            ),
            bars=True,
        )
    ]


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
        marked = "" if origin == "traced" else f", {origin}"
        sections.append(
            Section(
                title=f"Sizes: {interface} {op}s{marked}",
                columns=("size", "operations", "bytes", "share", ""),
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
                bars=True,
            )
        )
    return sections


def _timeline(rows: Rows) -> list[Section]:
    fastest = max((row["read_mib_s"] + row["write_mib_s"] for row in rows), default=0.0) or 1.0
    return [
        Section(
            title="Timeline",
            columns=("from", "reads", "writes", "MiB/s", "in flight", "I/O busy", "compute", ""),
            rows=tuple(
                (
                    f"{row['start_ns'] / NS_PER_S:.3f} s",
                    format_count(row["reads"]),
                    format_count(row["writes"]),
                    f"{row['read_mib_s'] + row['write_mib_s']:,.4g}",
                    f"{row['in_flight_mean']:.2g}/{row['in_flight_max']}",
                    f"{100 * row['io_busy_share']:.1f} %",
                    "-" if row["compute_busy_share"] is None else f"{100 * row['compute_busy_share']:.0f} %",
                    bar((row["read_mib_s"] + row["write_mib_s"]) / fastest, 14),
                )
                for row in rows
            ),
            notes=("In flight: the mean over the bin, and the most at once. The bar is the bandwidth.",),
            bars=True,
        )
    ]


def _files(rows: Rows) -> list[Section]:
    most = sorted(rows, key=lambda row: -(row["bytes_read"] + row["bytes_written"]))
    title, columns = "Files", ("", "ranks", "accesses", "bytes", "pattern", "random", "read again")
    shown = tuple((_tail(row["path"]), str(row["ranks"]), *_accesses(row)) for row in most[:MAX_GROUPS])
    return [Section(title=title, columns=columns, rows=shown, notes=_left(len(rows)))]


def _rank_files(rows: Rows, rows_in_all: int) -> list[Section]:
    most = sorted(rows, key=lambda row: -(row["bytes_read"] + row["bytes_written"]))
    title, columns = "Files by rank", ("", "rank", "accesses", "bytes", "pattern", "random", "read again")
    shown = tuple((_tail(row["path"]), str(row["rank"]), *_accesses(row)) for row in most[:MAX_GROUPS])
    return [Section(title=title, columns=columns, rows=shown, notes=_left(rows_in_all))]


def _accesses(row: Mapping[str, Any]) -> tuple[str, ...]:
    accesses = row["reads"] + row["writes"]
    return (
        format_count(accesses),
        format_bytes(row["bytes_read"] + row["bytes_written"]),
        row["pattern"] or "-",
        _of(row["random"], accesses),
        _of(row["reread_bytes"], row["bytes_read"]),
    )


def _ranks(rows: Rows) -> list[Section]:
    longest = max((row["io_ns"] for row in rows), default=0) or 1
    return [
        Section(
            title="Ranks",
            columns=("rank", "files", "shared", "accesses", "bytes", "I/O (sum)", "metadata", ""),
            rows=tuple(
                (
                    str(row["rank"]),
                    format_count(row["files"]),
                    format_count(row["shared_files"]),
                    format_count(row["reads"] + row["writes"]),
                    format_bytes(row["bytes_read"] + row["bytes_written"]),
                    _ns(row["io_ns"]),
                    _ns(row["metadata_ns"] + row["reconstructed_metadata_ns"]),
                    bar(row["io_ns"] / longest, 10),
                )
                for row in rows[:MAX_GROUPS]
            ),
            notes=_left(len(rows)),
            bars=True,
        )
    ]


def _findings(rows: Rows) -> list[Section]:
    if not rows:
        return [Section(title="Findings", rows=(("nothing passed a threshold",),), prose=True)]
    return [
        Section(
            title=f"{row['severity']}: {row['title']}",
            rows=(
                ("evidence", row["evidence"]),
                ("threshold", row["threshold"]),
                ("remedy", row["remedy"]),
                *(("file", path) for path in row["files"][:3]),
            ),
            prose=True,
        )
        for row in rows
    ]


def _tfrecords(rows: Rows) -> list[Section]:
    return [
        Section(
            title="TFRecord files",
            columns=("", "size", "records", "least", "mean", "most"),
            rows=tuple(
                (
                    _tail(row["path"]),
                    format_bytes(row["size_bytes"]),
                    format_count(row["records"]),
                    *("-" if row[name] is None else format_bytes(row[name]) for name in _RECORD_SIZES),
                )
                for row in rows[:MAX_GROUPS]
            ),
            notes=_left(len(rows)),
        )
    ]


_RECORD_SIZES = ("least_bytes", "mean_bytes", "most_bytes")


def _datasets(rows: Rows) -> list[Section]:
    return [
        Section(
            title="HDF5 datasets",
            columns=("", "dataset", "type", "shape", "chunk", "of", "filter", "stored"),
            rows=tuple(
                (
                    _tail(row["path"]),
                    row["dataset"],
                    row["type"],
                    row["shape"],
                    row["chunk"] or "-",
                    "-" if row["chunk_bytes"] is None else format_bytes(row["chunk_bytes"]),
                    row["filter"] or "-",
                    format_bytes(row["stored_bytes"]),
                )
                for row in rows[:MAX_GROUPS]
            ),
            notes=_left(len(rows)),
        )
    ]


_SECTIONS: Mapping[str, Callable[[Rows], list[Section]]] = {
    "findings": _findings,
    "overlap": _overlap,
    "steps": _steps,
    "sizes": _sizes,
    "darshan-sizes": _sizes,
    "exact-sizes": _exact_sizes,
    "files": _files,
    "ranks": _ranks,
    "timeline": _timeline,
    "tfrecords": _tfrecords,
    "datasets": _datasets,
}


def _tail(path: str) -> str:
    """The end of a path, which tells files of one data set apart."""
    return path if len(path) <= PATH_WIDTH else f"...{path[3 - PATH_WIDTH :]}"


def _left(rows: int) -> tuple[str, ...]:
    left = rows - MAX_GROUPS
    return (f"and {format_count(left)} more: --csv and --json have all",) if left > 0 else ()


def _of(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _ns(nanoseconds: int) -> str:
    return format_duration(nanoseconds) if nanoseconds else "-"
