"""The output of `dxt-replay calibrate` for people, from the object that `--json` prints. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dxt_replay.replay.show.cells import or_dash, percent, seconds
from dxt_replay.replay.show.section import Section, facts, prose
from dxt_replay.traces.units import NS_PER_US, format_bytes, format_counted, format_duration

COLUMNS_IN_FLIGHT = 4
"""Most numbers of requests in flight that the table of cold reads shows."""


def calibration_sections(calibration: Mapping[str, Any], output: str) -> list[Section]:
    """The tables of a calibration, from its JSON object. `output`: the storage model that was written."""
    times = calibration["times"]
    rows = [
        ("target", f"{calibration['target']} ({calibration['file_system']})"),
        ("storage model", output),
        ("measured for", f"{seconds(calibration['seconds'])}, {format_counted(calibration['rounds'], 'whole round')}"),
        ("data read cold", format_bytes(calibration["data_bytes"])),
        ("left in the page cache after a drop", or_dash(calibration["resident_after_drop_pct"], percent)),
        ("read-ahead", or_dash(calibration["read_ahead_bytes"], format_bytes)),
        ("throttle", _throttle(calibration)),
    ]
    sections = [
        facts("Calibration", rows),
        _cold_reads([each for each in times if each["state"] == "cold"]),
        _other_calls([each for each in times if each["state"] != "cold"]),
        _left_out(calibration["left_out"]),
        prose("What could not be seen", calibration["unseen"]),
    ]
    return [section for section in sections if section.rows]


def _throttle(calibration: Mapping[str, Any]) -> str:
    rates = [
        f"{each['size_bytes'] * each['per_s'] / 1e6:.3g} MB/s in reads of {format_bytes(each['size_bytes'])}"
        for each in calibration["after_a_pause"]
        if each["throttled"]
    ]
    return f"reads pass at a rate after a burst: {', '.join(rates)}" if calibration["throttled"] else "none seen"


def _cold_reads(times: Sequence[Mapping[str, Any]]) -> Section:
    """Mean times by size, with one in flight and with more."""
    found = {(each["in_flight"], each["size_bytes"]): each for each in times}
    counts = sorted({count for count, _ in found})
    several = [count for count in counts if count > 1]
    shown = several[-COLUMNS_IN_FLIGHT::2] if len(several) > COLUMNS_IN_FLIGHT else several
    rows = []
    for size in sorted({size for _, size in found}):
        alone = found.get((1, size))
        rows.append(
            (
                format_bytes(size),
                or_dash(alone, _mean),
                or_dash(alone, _interval),
                *(or_dash(found.get((count, size)), _mean) for count in shown),
                or_dash(_best(found, size), lambda rate: f"{rate:.3g} MB/s"),
            )
        )
    return Section(
        title="Cold reads",
        columns=("size", "mean", "interval", *(f"{count} in flight" for count in shown), "most in all"),
        rows=tuple(rows),
        notes=(
            "Mean time of a read: the median of the trials, with one in flight and with more; the interval of the "
            "median at one in flight; and the highest bandwidth of any number in flight.",
        ),
    )


def _best(found: Mapping[tuple[int, int], Mapping[str, Any]], size: int) -> float | None:
    return max((each["mb_per_s"] for (_, other), each in found.items() if other == size), default=None)


def _other_calls(times: Sequence[Mapping[str, Any]]) -> Section:
    alone = [each for each in times if each["in_flight"] == 1]
    return Section(
        title="Other calls, one in flight",
        columns=("call", "size", "mean", "interval", "95 % take at most"),
        rows=tuple(
            (
                f"{each['call']}, {each['state']}" if each["state"] else each["call"],
                format_bytes(each["size_bytes"]) if each["size_bytes"] else "-",
                _mean(each),
                _interval(each),
                format_duration(NS_PER_US * each["p95_us"]),
            )
            for each in alone
        ),
    )


def _mean(time: Mapping[str, Any]) -> str:
    return format_duration(NS_PER_US * time["mean_us"]["value"])


def _interval(time: Mapping[str, Any]) -> str:
    low, high = (format_duration(NS_PER_US * time["mean_us"][end]) for end in ("low", "high"))
    return f"{low} to {high}"


def _left_out(probes: Sequence[Mapping[str, Any]]) -> Section:
    lines = [
        f"{probe['probe']} of {format_bytes(probe['size_bytes'])} with {probe['in_flight']} in flight"
        for probe in probes
    ]
    return prose("Left out: too slow for the time, or too large for the data", [", ".join(lines)] if lines else [])
