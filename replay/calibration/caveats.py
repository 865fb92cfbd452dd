"""Sentences on the limits of a calibration. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dxt_replay.replay.calibration.estimates import Measured
from dxt_replay.replay.calibration.read_ahead import ReadAhead
from dxt_replay.replay.simulation.storage_model import Limit
from dxt_replay.traces.units import format_bytes

RESIDENT_PCT = 1.0
"""Share of the pages that stayed after a drop, per cent, above which a sentence reports it."""

WIDE = 0.25
"""Half the width of an interval, as a share of the value, above which a time counts as uncertain."""


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
        found.append("This system does not show which pages are cached, so some cold reads may have been cached reads.")
    if read_ahead.dropped_at_open:
        found.append("On this file system an open drops the cached pages of the file. The model does so too.")
    if disturbed:
        names = ", ".join(
            dict.fromkeys(f"{each.state} {each.call}s of {format_bytes(each.size)}" for each in disturbed)
        )
        found.append(
            f"Other work disturbed each trial of {names}: the model has the median of single requests there. "
            "Calibrate again on an idle machine."
        )
    if read_ahead.bytes is None:
        found.append("How far the kernel reads ahead is not known: the model reads nothing ahead.")
    wide = [each for each in measured if each.state == "cold" and each.time_ns.half_width > WIDE]
    cold = [each for each in measured if each.state == "cold"]
    if 2 * len(wide) > len(cold):
        found.append(
            f"{len(wide)} of {len(cold)} times of cold reads are uncertain by more than {100 * WIDE:.0f} %: other work "
            "on this machine or on the storage disturbed the measurement, or --minutes was short."
        )
    if limits:
        found.append("The throttle of reads hid how many reads the storage serves at the same time.")
    found += (
        f"Caches of disks, servers and hosts cannot be dropped. The {format_bytes(data_bytes)} that were read had just "
        "been written, so such caches may have served the cold reads.",
        "Only this machine was in use: what other clients would do to a shared file system was not measured.",
        "A write without a sync ends in the page cache, if there is one. How fast the kernel writes it to the storage "
        "later was not measured.",
        "Burst credits that last longer than some seconds, as of a cloud disk, were measured as part of the storage's "
        "speed.",
    )
    return tuple(found)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
