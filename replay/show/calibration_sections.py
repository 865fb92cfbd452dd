"""Prints the result of `dxt-replay calibrate` as tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dxt_replay.replay.show.cells import or_dash, percent, seconds
from dxt_replay.replay.show.section import Section, facts, prose
from dxt_replay.traces.units import format_bytes, format_counted, format_duration

if TYPE_CHECKING:
    from dxt_replay.replay.calibration.calibration import Calibration
    from dxt_replay.replay.calibration.fit import Measured
    from dxt_replay.replay.calibration.objects import ObjectFigures
    from dxt_replay.replay.calibration.probes import Probe

COLUMNS_IN_FLIGHT = 4
"""Most numbers of requests in flight that the table of cold reads shows."""


def calibration_sections(done: Calibration, output: str) -> list[Section]:
    """The tables of a calibration. `output`: the storage model that was written."""
    if done.object_store is not None:
        return _object_sections(done, done.object_store, output)
    rows = [
        ("target", f"{done.target} ({done.file_system})"),
        ("storage model", output),
        ("measured for", f"{seconds(done.seconds)}, {format_counted(done.rounds, 'whole round')}"),
        ("data read cold", format_bytes(done.data_bytes)),
        ("left in the page cache after a drop", or_dash(done.resident_after_drop_pct, percent)),
        ("read-ahead", or_dash(done.read_ahead.bytes, format_bytes)),
        ("throttle", _throttle(done)),
    ]
    sections = [
        facts("Calibration", rows, brief=("target", "storage model", "read-ahead", "throttle")),
        _cold_reads([each for each in done.measured if each.state == "cold"]),
        _other_calls([each for each in done.measured if each.state != "cold" and each.in_flight == 1]),
        _left_out(done.left_out),
        prose("What could not be seen", done.unseen, brief=True),
    ]
    return [section for section in sections if section.rows]


def _object_sections(done: Calibration, store: ObjectFigures, output: str) -> list[Section]:
    rows = [
        ("target", str(done.target)),
        ("storage model", output),
        ("measured for", f"{seconds(done.seconds)}, {format_counted(done.rounds, 'whole round')}"),
        ("objects read", f"{format_bytes(done.data_bytes)} {'of its own' if store.own_objects else 'of the twin'}"),
        ("first byte of a small GET", or_dash(store.first_byte_us, _micro)),
        ("first byte of a large GET", or_dash(store.first_byte_large_us, _micro)),
        ("one connection", or_dash(store.connection_bytes_per_s, _rate)),
        ("throttle", _throttle(done)),
    ]
    whole = [each for each in done.measured if not each.state]
    gets, others = ([each for each in whole if (each.call == "GET") is chosen] for chosen in (True, False))
    small, large = (format_bytes(choose(each.size for each in gets)) for choose in (min, max))
    connections = Section(
        title="GETs by connections",
        columns=("connections", f"of {small}", f"of {large}"),
        rows=tuple(
            (
                str(each.connections),
                or_dash(each.requests_per_s, lambda rate: f"{rate:,.0f}/s"),
                or_dash(each.bytes_per_s, _rate),
            )
            for each in store.by_connections
        ),
    )
    sections = [
        facts("Calibration", rows, brief=("target", "storage model", "read-ahead", "throttle")),
        connections,
        _cold_reads(gets, "GETs"),
        _other_calls([each for each in others if each.in_flight == 1], "Other requests, one connection"),
        _left_out(done.left_out),
        prose("What was not measured", done.unseen, brief=True),
    ]
    return [section for section in sections if section.rows]


def _micro(us: float) -> str:
    return format_duration(1e3 * us)


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.3g} MB/s"


def _throttle(done: Calibration) -> str:
    rates = [
        f"{each.size * each.per_s / 1e6:.3g} MB/s in reads of {format_bytes(each.size)}"
        for each in done.burst
        if each.throttled
    ]
    return f"reads pass at a rate after a burst: {', '.join(rates)}" if done.model.limits else "none seen"


def _cold_reads(times: Sequence[Measured], title: str = "Cold reads") -> Section:
    """Mean times by size, with one request in flight and with more."""
    found = {(each.in_flight, each.size): each for each in times}
    several = sorted({count for count, _ in found if count > 1})
    shown = several[-COLUMNS_IN_FLIGHT::2] if len(several) > COLUMNS_IN_FLIGHT else several
    rows = []
    for size in sorted({size for _, size in found}):
        alone = found.get((1, size))
        most = max(each.bytes_per_s for each in times if each.size == size)
        rows.append(
            (
                format_bytes(size),
                or_dash(alone, _mean),
                or_dash(alone, _interval),
                *(or_dash(found.get((count, size)), _mean) for count in shown),
                f"{most / 1e6:.3g} MB/s",
            )
        )
    return Section(
        title=title,
        columns=("size", "mean", "interval", *(f"{count} in flight" for count in shown), "most in all"),
        rows=tuple(rows),
        notes=(
            "Mean time of a read: the median of the trials, at most what 95 % take, with one in flight and with more; "
            "the interval of the median at one in flight; and the highest bandwidth of any number in flight.",
        ),
        brief=True,
    )


def _other_calls(alone: Sequence[Measured], title: str = "Other calls, one in flight") -> Section:
    return Section(
        title=title,
        columns=("call", "size", "mean", "interval", "95 % take at most"),
        rows=tuple(
            (
                f"{each.call}, {each.state}" if each.state else each.call,
                format_bytes(each.size) if each.size else "-",
                _mean(each),
                _interval(each),
                format_duration(each.p95_ns),
            )
            for each in alone
        ),
    )


def _mean(time: Measured) -> str:
    return format_duration(time.time_ns.value)


def _interval(time: Measured) -> str:
    return f"{format_duration(time.time_ns.low)} to {format_duration(time.time_ns.high)}"


def _left_out(probes: Sequence[Probe]) -> Section:
    lines = [f"{probe.kind.value} of {format_bytes(probe.size)} with {probe.in_flight} in flight" for probe in probes]
    return prose("Left out: too slow for the time, or too large for the data", [", ".join(lines)] if lines else [])
