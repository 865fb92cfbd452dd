"""Sentences on the limits of a calibration. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dxt_replay.replay.calibration.estimates import Measured
from dxt_replay.replay.calibration.read_ahead import ReadAhead
from dxt_replay.replay.simulation.storage_model import Limit
from dxt_replay.traces.units import format_bytes

RESIDENT_PCT = 1.0
"""Pages that stayed after a drop are mentioned from this share on, per cent."""

WIDE = 0.25
"""Half an interval from this share of the value on is mentioned."""


def caveats(
    measured: Sequence[Measured],
    limits: Sequence[Limit],
    warnings: Iterable[str],
    *,
    resident_pct: float | None,
    read_ahead: ReadAhead,
    disturbed: Sequence[Measured],
    data_bytes: int,
) -> tuple[str, ...]:
    """The limits of a model for its reader, the most important first. `warnings`: of the issue loop and of drops."""
    found = [_sentence(warning) for warning in warnings]
    if resident_pct is not None and resident_pct > RESIDENT_PCT:
        found.append(
            f"{resident_pct:.1f} % of the data stayed in the page cache when its pages were dropped: "
            "real cold reads are slower."
        )
    if resident_pct is None:
        found.append("This system does not show which pages are in the cache, so cold reads may have met cached data.")
    if read_ahead.dropped_at_open:
        found.append("An open drops the cached pages of a file; the model does so at the opens of the capture.")
    if disturbed:
        names = ", ".join(
            dict.fromkeys(f"{each.state} {each.call}s of {format_bytes(each.size)}" for each in disturbed)
        )
        found.append(
            f"Something else disturbed each trial of {names}: the model has the median of single requests there. "
            "Calibrate again on an idle machine."
        )
    if read_ahead.bytes is None:
        found.append("How far the kernel reads ahead could not be seen: the model reads nothing ahead.")
    wide = [each for each in measured if each.state == "cold" and each.time_ns.half_width > WIDE]
    cold = [each for each in measured if each.state == "cold"]
    if 2 * len(wide) > len(cold):
        found.append(
            f"{len(wide)} of {len(cold)} times of cold reads are uncertain by more than {100 * WIDE:.0f} %: other work "
            "on this machine or on the storage disturbed the measurement, or --minutes was short."
        )
    if limits:
        found.append("Behind the throttle of reads, how many the storage serves at the same time could not be seen.")
    found += (
        f"Caches behind the page cache (of a disk, a server, a host) cannot be dropped: {format_bytes(data_bytes)} of "
        "data that had just been written were read, which such caches may have held.",
        "Only this machine was in use: what other clients would do to a shared file system was not measured.",
        "A write without a sync ends in the page cache where there is one; how fast that is written out in the "
        "background was not measured.",
        "Allowances that last longer than some seconds, such as burst credits of a cloud disk, look like the storage.",
    )
    return tuple(found)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
