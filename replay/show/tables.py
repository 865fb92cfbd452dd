"""The tables of `dxt-replay summary --show`; those of data are shown on the HTML page too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from dxt_replay.profiler_merge.analysis.tables import COLUMNS, TABLES, head_of
from dxt_replay.replay.show.section import (
    BAR,
    MAX_GROUPS,
    Column,
    Kind,
    Section,
    bar,
    figures,
    listing,
    or_dash,
    percent,
    prose,
)
from dxt_replay.replay.show.summary import finding_sections, limit_sections, model_sections, summary_sections
from dxt_replay.traces.text import unit_of
from dxt_replay.traces.units import NS_PER_S, format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.named_tables import Views

Row = Mapping[str, Any]

SLOWEST_STEPS = 10
LEAST_FOLDED = 3
"""Idle bins of a timeline in a row that become one line."""

NOT_HERE = "not on this machine"
"""The reason that `contents` gives for a file that does not exist."""

_NO_STEPS = Section(title="", rows=(), notes=("No training steps, which a causal model would follow.",))
_REBUILT_NOTE = "From counters: rebuilt, not traced. Their times and order are estimates, in no other column."

_SHARES = {
    "io_of_run_pct": "I/O, of the job's run time",
    "pipeline_of_run_pct": "I/O and preprocessing, of the job's run time",
    "io_hidden_pct": "I/O inside compute, of the I/O time",
    "io_of_loop_pct": "I/O, of the training",
    "compute_pct": "compute, of the training",
    "input_wait_pct": "input wait, of the training",
    "collective_pct": "collectives, of the training",
    "checkpoint_pct": "checkpoints, of the training",
}

# --------------------------------------------------------------------------------- columns of terminal and page

_LOOKS: Mapping[str, tuple[Callable[[Any], str], Kind]] = {
    "int64": (format_count, Kind.NUMBER),
    "int32": (format_count, Kind.NUMBER),
    "double": ("{:.2f}".format, Kind.NUMBER),
    "bool": (lambda value: "yes" if value else "no", Kind.TEXT),
    "number": (str, Kind.NUMBER),
    "bytes": (format_bytes, Kind.NUMBER),
    "ns": (format_duration, Kind.NUMBER),
    "string": (str, Kind.TEXT),
}
"""Unit of a column, or its type where it has none -> how its values are written and laid out."""


class DataColumn(NamedTuple):
    """A column of a table of data. `value`: in a row, by which the page sorts; None where it is not known. `text`: of a
    known value. `total`: whether the values of different rows add up. `spare`: left out where a terminal is narrow."""

    head: str
    value: Callable[[Row], Any]
    text: Callable[[Any], str]
    kind: Kind = Kind.NUMBER
    total: bool = False
    spare: bool = False


_SHOWN = {
    "files": "path ranks reads bytes_read writes bytes_written io_ns=I/O_time,_all_added ~pattern "
    "~random/reads+writes=random ~reread_bytes/bytes_read=read_again reconstructed_bytes",
    "rank-files": "path rank reads bytes_read writes bytes_written io_ns=I/O_time,_all_added ~pattern "
    "~random/reads+writes=random ~reread_bytes/bytes_read=read_again reconstructed_bytes",
    "ranks": "rank files shared_files reads bytes_read writes bytes_written io_ns=I/O,_all_added metadata_ns "
    "reconstructed_bytes",
    "steps": "step rank start_ns duration_ns excess_ns why why_excess_ns",
    "overlap": "rank loop_ns compute_ns input_wait_ns collective_ns checkpoint_ns evaluation_ns io_ns io_hidden_ns "
    "io_exposed_ns",
    "datasets": "path dataset ~type shape chunk chunk_bytes ~filter stored_bytes",
}
"""Columns of tables that a terminal shows otherwise than they are described; ~ before those that are left out first, a
head behind =, a share as part/whole."""

_ON_PAGE = {
    "files": "path format size_bytes ranks reads bytes_read writes bytes_written io_ns=I/O_time,_all_added pattern "
    "random/reads+writes=random small_reads/reads=small_reads reread_bytes read_by_several_bytes reconstructed_bytes",
    "ranks": "rank files shared_files reads bytes_read writes bytes_written union_ns=I/O,_overlaps_once "
    "io_ns=I/O,_all_added io_hidden_ns=in_compute compute_ns input_wait_ns metadata_ns reread_bytes "
    "reconstructed_bytes",
    "steps": f"{_SHOWN['steps']} compute_ns input_wait_ns io_ns collective_ns checkpoint_ns evaluation_ns operations",
}
"""The same of the page, whose table ranks has columns of the table overlap, too (`union_ns`: the `io_ns` there)."""

_TITLES = {
    "overlap": "Compute and I/O by rank",
    "lanes": "Lanes",
    "dependencies": "What operations wait for",
    "requests": "Requests to object stores",
    "tfrecords": "TFRecord files",
    "datasets": "HDF5 datasets",
}
"""Titles of tables that have another one than in the list of tables."""


def _column(given: str) -> DataColumn:
    """A column as `_SHOWN` names it."""
    spare, (name, _, head) = given.startswith("~"), given.lstrip("~").partition("=")
    head = head.replace("_", " ")
    if "/" in name:
        part, _, whole = name.partition("/")

        def share(row: Row) -> float | None:
            of = sum(row[each] for each in whole.split("+"))
            return 100 * row[part] / of if of else None

        return DataColumn(head, share, percent, spare=spare)
    unit = "number" if name in ("rank", "lane", "step") else unit_of(name) or COLUMNS[name].type
    text, kind = _LOOKS.get(unit) or _LOOKS[COLUMNS[name].type]
    total = unit in ("int64", "bytes", "ns") and name != "ranks"  # files share ranks
    kind = Kind.PATH if name in ("path", "dataset") else kind
    return DataColumn(head or head_of(name), itemgetter(name), text, kind, total, spare)


def columns_of(table: str) -> tuple[DataColumn, ...]:
    """The columns of a table of `analysis.tables`; of a file its path, and not its number too. Ids have no commas."""
    if table in _SHOWN:
        return tuple(map(_column, _SHOWN[table].split()))
    names, texts = TABLES[table].columns, (*TABLES[table].texts, *(("pid", "thread") if table == "lanes" else ()))
    kept = (name for name in names if name != "file_id" or "path" not in names)
    return tuple(_column(name)._replace(text=str, kind=Kind.TEXT) if name in texts else _column(name) for name in kept)


def columns_on_page(table: str) -> tuple[DataColumn, ...]:
    """The columns of files, ranks or steps."""
    return tuple(map(_column, _ON_PAGE[table].split()))


def used_columns(columns: Sequence[DataColumn], rows: Sequence[Row]) -> list[DataColumn]:
    """The first column, and those in which any row has a value that is not 0."""
    return [column for column in columns if column is columns[0] or any(column.value(row) for row in rows)]


def data_section(
    title: str,
    columns: Sequence[DataColumn],
    rows: Sequence[Row],
    *,
    cost: Callable[[Row], float] | None = None,
    rows_in_all: int | None = None,
) -> Section:
    """The table for a terminal: the `MAX_GROUPS` rows that cost most, the most first, with a bar of the cost.

    `cost`: sorts the rows, None to keep their order. `rows_in_all`: number of all rows, where `rows` are the largest.
    """
    if not rows:
        return Section(title=title, rows=(), notes=("No rows.",))
    shown = (list(rows) if cost is None else sorted(rows, key=cost, reverse=True))[:MAX_GROUPS]
    used = used_columns(columns, shown)
    most = max(map(cost, shown), default=0.0) if cost is not None else 0.0

    def cells(row: Row) -> tuple[str, ...]:
        texts = tuple(or_dash(column.value(row), column.text) for column in used)
        return (*texts, bar(cost(row) / most, 10)) if cost is not None and most else texts

    left = (len(rows) if rows_in_all is None else rows_in_all) - len(shown)
    rebuilt = any(column.head == head_of("reconstructed_bytes") for column in used)
    return Section(
        title=title,
        columns=(
            *(Column(head=column.head, kind=column.kind, spare=column.spare) for column in used),
            *((BAR,) if most else ()),
        ),
        rows=tuple(cells(row) for row in shown),
        notes=(
            *((f"and {format_count(left)} more: --json, or -o FILE.csv, has all",) if left > 0 else ()),
            *([_REBUILT_NOTE] if rebuilt else []),
        ),
    )


# ---------------------------------------------------------------------------------------------------------- the tables


def summary_or_tables(found: Views) -> list[Section]:
    """The output of `dxt-replay summary` for people: the requested tables, or the totals if none was requested."""
    return view_sections(found) if found.tables else summary_sections(found.summary, found.storage_limit)


def view_sections(found: Views) -> list[Section]:
    """Sections of the tables, and of files that could not be read."""
    sections: list[Section] = []
    for name in found.tables:
        if name in ("overlap", "steps") and found.shares is not None and not sections:
            shares = {label: share for key, label in _SHARES.items() if (share := found.shares[key]) is not None}
            rows = tuple((label, percent(share), bar(share / 100)) for label, share in shares.items())
            sections.append(Section(title="Shares, the first step included", rows=rows, columns=("", "share", BAR)))
        if name == "findings":
            sections += finding_sections(found.findings, found.summary)
        elif name == "storage-limit":
            sections += limit_sections(found.storage_limit)
        elif name == "model":
            sections += [_NO_STEPS] if found.model is None else model_sections(found.model)
        else:
            in_all = found.tables[name].num_rows
            sections += table_sections(name, found.rows(name, MAX_GROUPS), in_all)
    return [section for section in [*sections, *unread_sections(found.unread or {})] if section.rows or section.notes]


def table_sections(name: str, rows: Sequence[Row], rows_in_all: int | None = None) -> list[Section]:
    """A table as its description has it, in the order of its rows, unless people are shown something else."""
    if name in ("sizes", "darshan-sizes", "exact-sizes"):
        return _sizes(rows)
    if name == "timeline":
        return [timeline_section(rows)]
    if name in ("files", "ranks"):  # by I/O time, or by bytes from counters where nothing was traced
        cost = "io_ns" if any(row["io_ns"] for row in rows) else "reconstructed_bytes"
        return [data_section(name.capitalize(), columns_of(name), rows, cost=lambda row: float(row[cost] or 0))]
    if name == "rank-files":
        moved = ("bytes_read", "bytes_written", "reconstructed_bytes")
        by = lambda row: float(sum(row[key] for key in moved))  # noqa: E731
        return [data_section("Files by rank", columns_of(name), rows, cost=by, rows_in_all=rows_in_all)]
    if name == "steps":
        slow = sorted((row for row in rows if row["excess_ns"] > 0), key=lambda row: -row["excess_ns"])[:SLOWEST_STEPS]
        return [data_section("Slowest steps", columns_of(name), slow, cost=lambda row: float(row["duration_ns"]))]
    if name == "dependencies" and not rows:
        return [_NO_STEPS]
    about = TABLES[name].about
    return [data_section(_TITLES.get(name, about[:1].upper() + about[1:]), columns_of(name), rows)]


def unread_sections(unread: Mapping[str, str]) -> list[Section]:
    """Files that could not be read: the number of those that are not on this machine, and the reason for each other."""
    absent = [path for path, why in unread.items() if why == NOT_HERE]
    damaged = [f"{path}: {why}" for path, why in unread.items() if why != NOT_HERE]
    sections = [prose("Could not be read", damaged[:10])] if damaged else []
    if absent:
        files = "1 file is" if len(absent) == 1 else f"{format_count(len(absent))} files are"
        hint = f"not on this machine, such as {absent[0]}: --map PREFIX=DIR says where files below PREFIX are now."
        sections.insert(0, prose("", [f"{files} {hint}"]))
    return sections


SIZES = figures("""
    size | {size}
    operations | {operations}
    bytes | {bytes}
    share | {share_pct}
""")


def _sizes(rows: Sequence[Row]) -> list[Section]:
    sections = []
    for (interface, op, origin), found in groupby(rows, key=lambda row: (row["interface"], row["op"], row["origin"])):
        part = list(found)
        total = sum(row["operations"] for row in part)
        shown = [{**row, "size": _size(row), "share_pct": 100 * row["operations"] / total} for row in part]
        marked = {"traced": "", "reconstructed": ", reconstructed from counters"}.get(origin, f", {origin}")
        title = f"Sizes: {interface} {op}s{marked}"
        sections.append(listing(title, SIZES, shown, bar_of=lambda row: float(row["operations"])))
    return sections


def _size(row: Row) -> str:
    if "size_bytes" in row:
        return "all others" if row["size_bytes"] is None else f"{format_count(row['size_bytes'])} B"
    least, most = row["least_bytes"], row["most_bytes"]
    if most is None:
        return f"from {format_bytes(least)}"
    return format_bytes(least) if least == most else f"{format_bytes(least)} to < {format_bytes(most + 1)}"


TIMELINE = figures("""
    from | {at}
    reads | {reads:-}
    writes | {writes:-}
    MiB/s | {both}
    in flight | {mean}
    most | {in_flight_max:-}
    I/O busy | {io_pct:-}
    compute | {compute_pct:-}
""")


def timeline_section(rows: Sequence[Row]) -> Section:
    """Rows of the table timeline. Idle bins in a row are one line."""
    width_ns = rows[1]["start_ns"] - rows[0]["start_ns"] if len(rows) > 1 else 0
    digits = next((n for n in range(9) if not (width_ns * 10**n) % NS_PER_S), 9)
    shown: list[dict[str, Any]] = []
    busy = ("reads", "writes", "in_flight_max", "compute_busy_share")
    for idle, found in groupby(rows, key=lambda row: not any(row[name] for name in busy)):
        part = list(found)
        folded = idle and len(part) >= LEAST_FOLDED
        for row in part[:1] if folded else part:
            at, until = row["start_ns"] / NS_PER_S, (part[-1]["start_ns"] + width_ns) / NS_PER_S
            moved = (row["read_mib_s"] or 0.0) + (row["write_mib_s"] or 0.0)
            shares = {name: row[f"{name}_busy_share"] for name in ("io", "compute")}
            shown.append(
                {
                    **row,
                    "at": f"{at:.{digits}f}-{until:.{digits}f} s" if folded else f"{at:.{digits}f} s",
                    # One digit after the point, from 100 on none; less than 0.05 MiB/s is 0.
                    "both": f"{moved:,.0f}" if moved >= 100 or moved < 0.05 else f"{moved:.1f}",
                    "moved": moved if moved >= 0.05 else 0.0,
                    "mean": or_dash(row["in_flight_mean"], "{:.2f}".format),
                    **{f"{name}_pct": None if share is None else 100 * share for name, share in shares.items()},
                }
            )
    rebuilt = sum(row["reconstructed"] or 0 for row in rows)
    notes = ["in flight: operations at once, mean of the bin, and the most at any instant. The bar shows MiB/s."]
    if rebuilt:
        count = format_count(rebuilt)
        notes.append(f"Not in this table: {count} operations rebuilt from counters, whose times are estimates.")
    title = f"Timeline, bins of {width_ns / NS_PER_S:g} s" if width_ns else "Timeline"
    made = listing(title, TIMELINE, shown, bar_of=lambda row: float(row["moved"]), notes=notes)
    return replace(made, columns=("from", *made.columns[1:]))
