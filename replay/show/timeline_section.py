"""The timeline of `dxt-replay summary --show timeline` for people: a row a bin, one for idle bins in a row. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

from dxt_replay.replay.show.cells import or_dash
from dxt_replay.replay.show.section import BAR, Section, bar
from dxt_replay.traces.units import NS_PER_S, format_count

LEAST_FOLDED = 3
"""Idle bins in a row that become one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBin:
    """What the terminal shows of a row of the table timeline. I/O is None where it was not recorded."""

    start_ns: int
    reads: int | None
    writes: int | None
    read_mib_s: float | None
    write_mib_s: float | None
    in_flight_mean: float | None
    in_flight_max: int | None
    io_busy_share: float | None
    compute_busy_share: float | None
    reconstructed: int | None

    @property
    def mib_s(self) -> float:
        """Read and written, MiB/s."""
        return (self.read_mib_s or 0.0) + (self.write_mib_s or 0.0)

    @property
    def is_idle(self) -> bool:
        """Whether it has neither I/O nor compute."""
        return not (self.reads or self.writes or self.in_flight_max or self.compute_busy_share)


def timeline_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    """Rows of the table timeline. Idle bins in a row are one line."""
    columns = [field.name for field in fields(TimelineBin)]
    bins = [TimelineBin(**{name: row[name] for name in columns}) for row in rows]
    width_ns = bins[1].start_ns - bins[0].start_ns if len(bins) > 1 else 0
    digits = _digits(width_ns)
    fastest = max((each.mib_s for each in bins), default=0.0) or 1.0
    lines: list[tuple[str, ...]] = []
    for idle, found in groupby(bins, key=lambda each: each.is_idle):
        part = list(found)
        if idle and len(part) >= LEAST_FOLDED:
            first_ns, until_ns = part[0].start_ns, part[-1].start_ns + width_ns
            stretch = f"{first_ns / NS_PER_S:.{digits}f}-{until_ns / NS_PER_S:.{digits}f} s"
            lines.append((stretch, *_cells(part[0], fastest)))
        else:
            lines += [(f"{each.start_ns / NS_PER_S:.{digits}f} s", *_cells(each, fastest)) for each in part]
    return Section(
        title=f"Timeline, bins of {width_ns / NS_PER_S:g} s" if width_ns else "Timeline",
        columns=("from", "reads", "writes", "MiB/s", "in flight", "most", "I/O busy", "compute", BAR),
        rows=tuple(lines),
        notes=(
            "in flight: operations at once, the mean over the bin and the most at any instant. The bar shows MiB/s.",
            *_not_shown(sum(each.reconstructed or 0 for each in bins)),
        ),
    )


def _not_shown(reconstructed: int) -> tuple[str, ...]:
    if not reconstructed:
        return ()
    count = format_count(reconstructed)
    return (f"Not in this table: {count} operations rebuilt from counters, whose times are estimates.",)


def _cells(each: TimelineBin, fastest: float) -> tuple[str, ...]:
    """The cells after the time. `fastest`: MiB/s of a full bar."""
    return (
        or_dash(each.reads, format_count),
        or_dash(each.writes, format_count),
        or_dash(each.read_mib_s, lambda _: _rounded(each.mib_s)),
        or_dash(each.in_flight_mean, "{:.2f}".format),
        or_dash(each.in_flight_max, format_count),
        or_dash(each.io_busy_share, "{:.1%}".format).replace("%", " %"),
        or_dash(each.compute_busy_share, "{:.0%}".format).replace("%", " %"),
        bar(each.mib_s / fastest if each.mib_s >= 0.05 else 0.0, 10),
    )


def _rounded(mib_s: float) -> str:
    """One digit after the point, from 100 on none; less than 0.05 MiB/s is 0."""
    return f"{mib_s:,.0f}" if mib_s >= 100 or mib_s < 0.05 else f"{mib_s:.1f}"


def _digits(width_ns: int) -> int:
    """Digits after the point that tell the starts of two bins apart."""
    digits = 0
    while width_ns and digits < 9 and (width_ns * 10**digits) % NS_PER_S:
        digits += 1
    return digits
