"""The timeline of `dxt-replay summary --show timeline` for a person: a row per bin, quiet stretches folded. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from dxt_replay.replay.show.cells import or_dash
from dxt_replay.replay.show.section import BAR, Section, bar
from dxt_replay.traces.units import NS_PER_S, format_count

LEAST_FOLDED = 3
"""Quiet bins in a row that become one line."""

Rows = Sequence[Mapping[str, Any]]


def timeline_section(rows: Rows) -> Section:
    """Rows of the table timeline; bins without I/O and without compute in a row are one line. Null I/O is not known."""
    fastest = max((_mib_per_s(row) for row in rows), default=0.0) or 1.0
    digits = _digits(rows)
    lines: list[tuple[str, ...]] = []
    for quiet, found in groupby(rows, key=_is_quiet):
        part = list(found)
        if quiet and len(part) >= LEAST_FOLDED:
            until = part[-1]["start_ns"] + _bin_ns(rows)
            first = f"{part[0]['start_ns'] / NS_PER_S:.{digits}f}-{until / NS_PER_S:.{digits}f} s"
            lines.append((first, *_line(part[0], digits, fastest)[1:]))
        else:
            lines += [_line(row, digits, fastest) for row in part]
    return Section(
        title=f"Timeline, bins of {_bin_ns(rows) / NS_PER_S:g} s" if len(rows) > 1 else "Timeline",
        columns=("from", "reads", "writes", "MiB/s", "in flight", "most", "I/O busy", "compute", BAR),
        rows=tuple(lines),
        notes=(
            "in flight: operations at once, the mean over the bin and the most at any instant. The bar shows MiB/s.",
            *_not_shown(sum(row["reconstructed"] or 0 for row in rows)),
        ),
    )


def _not_shown(reconstructed: int) -> tuple[str, ...]:
    if not reconstructed:
        return ()
    count = format_count(reconstructed)
    return (f"Not in this table: {count} operations rebuilt from counters, whose times are estimates.",)


def _line(row: Mapping[str, Any], digits: int, fastest: float) -> tuple[str, ...]:
    compute = row["compute_busy_share"]
    return (
        _seconds(row, digits),
        or_dash(row["reads"], format_count),
        or_dash(row["writes"], format_count),
        or_dash(row["read_mib_s"], lambda _: _rounded(_mib_per_s(row))),
        or_dash(row["in_flight_mean"], "{:.2f}".format),
        or_dash(row["in_flight_max"], format_count),
        or_dash(row["io_busy_share"], "{:.1%}".format).replace("%", " %"),
        or_dash(compute, "{:.0%}".format).replace("%", " %"),
        bar(_mib_per_s(row) / fastest if _mib_per_s(row) >= 0.05 else 0.0, 10),
    )


def _rounded(mib_per_s: float) -> str:
    """One digit after the point below 100, none above: what is below 0.05 MiB/s is 0."""
    return f"{mib_per_s:,.0f}" if mib_per_s >= 100 or mib_per_s < 0.05 else f"{mib_per_s:.1f}"


def _mib_per_s(row: Mapping[str, Any]) -> float:
    return float((row["read_mib_s"] or 0) + (row["write_mib_s"] or 0))


def _is_quiet(row: Mapping[str, Any]) -> bool:
    return not (row["reads"] or row["writes"] or row["in_flight_max"] or row["compute_busy_share"])


def _bin_ns(rows: Rows) -> int:
    return int(rows[1]["start_ns"] - rows[0]["start_ns"]) if len(rows) > 1 else 0


def _digits(rows: Rows) -> int:
    """Digits after the point that the bins' starts need to differ."""
    wide, digits = _bin_ns(rows), 0
    while wide and digits < 9 and (wide * 10**digits) % NS_PER_S:
        digits += 1
    return digits


def _seconds(row: Mapping[str, Any], digits: int) -> str:
    return f"{row['start_ns'] / NS_PER_S:.{digits}f} s"
