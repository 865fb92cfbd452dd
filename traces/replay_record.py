"""How a replay was made: the `made_by` of its `capture.json`. Only this module writes and reads it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.paces import API_CHOICES, PACE_CHOICES
from dxt_replay.traces.schema import CaptureInfo
from dxt_replay.traces.version import VERSION

PERCENTILES = ("p50", "p90", "p99", "max")
"""Names of the percentiles that a run reports."""

_PROGRAM = ("program", "version", "command", "operations_stored", "anonymized")
_OWN = ("pace", "speed", "compute_speed", "io_speed", "api", "reconstruct", "selection", "result")
_OF_RESULT = ("cache", "lag_us", "jitter_us", "jitter_before_us", "processors_pct", "stood_still_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRecord:
    """The page cache before the run.

    policy: cold (the twin's pages were dropped first) or as found.
    resident_before_pct: share of the bytes to be read that it held; None where it could not be measured.
    from_page_cache: whether reads may have come from it.
    """

    policy: Literal["cold", "as found"]
    resident_before_pct: float | None = None
    from_page_cache: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRecord:
    """How a replay was made, and what it measured about itself.

    pace: one of PACE_CHOICES.
    speed, compute_speed, io_speed: how much faster than recorded (2.0: twice as fast).
    api: one of API_CHOICES.
    reconstruct: whether reconstructed operations were replayed.
    selection: the part of the source that was replayed, as JSON; None for all of it.
    cache: the page cache before the run; None where it was not recorded.
    lag_us, jitter_us: begin - due of the operations and of the jitter probe, by PERCENTILES; None where unknown.
    jitter_before_us: as jitter_us, before the run; None where it was not measured.
    processors_pct: share of the machine's processors that the run took; None where unknown.
    stood_still_s, training_stood_still_s: for how long the machine stood still in the run, and in its training.
    result: the whole object that `dxt-replay run --json` printed; empty where it was not stored.
    """

    pace: str
    speed: float = 1.0
    compute_speed: float = 1.0
    io_speed: float = 1.0
    api: str = "auto"
    reconstruct: bool = True
    selection: dict[str, Any] | None = None
    cache: CacheRecord | None = None
    lag_us: dict[str, float] | None = None
    jitter_us: dict[str, float] | None = None
    jitter_before_us: dict[str, float] | None = None
    processors_pct: float | None = None
    stood_still_s: float = 0.0
    training_stood_still_s: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)

    def as_made_by(self, operations_stored: int) -> dict[str, Any]:
        """The `made_by` of the replay's `capture.json`; `cache`, `lag_us` and `jitter_us` are part of the result."""
        made = {"program": "dxt-replay", "version": VERSION, "command": "run", "operations_stored": operations_stored}
        return {**made, **{name: getattr(self, name) for name in _OWN}}


def is_replay(info: CaptureInfo) -> bool:
    """Whether a capture was written by `dxt-replay run`, so that its counters are not its own."""
    return info.made_by.get("command") == "run" or "pace" in info.made_by


def generated(info: CaptureInfo) -> str | None:
    """A sentence on the times of a capture that was made from a description, and not recorded; None for others."""
    if is_replay(info) or not any(source.kind == "workload" for source in info.sources):
        return None
    device = re.search(r"bandwidth=([0-9.e+]+)B/s", str(info.made_by.get("device", "")))
    speed = f" of {float(device[1]) / 1e9:.3g} GB/s" if device and device[1].replace(".", "", 1).isdigit() else ""
    return f"Generated, not recorded: times of an assumed device{speed}."


def replay_record(info: CaptureInfo, where: object = "capture.json") -> ReplayRecord | None:
    """The record of a replay; None for a capture that is not a replay. Fields that older releases lacked have defaults.

    `where`: the file to name in an error. Raises: CaptureError for a field that is unknown or has a wrong value.
    """
    if not is_replay(info):
        return None
    try:
        given = {name: value for name, value in info.made_by.items() if name not in _PROGRAM}
        unknown = sorted(given.keys() - set(_OWN))
        if unknown:
            raise ValueError(f"unknown field {unknown[0]!r}")
        given["result"] = result = msgspec.convert(given.get("result") or {}, dict[str, Any])
        given |= {"compute_speed": given.get("speed", 1.0), "io_speed": given.get("speed", 1.0)} | given
        given |= {name: result[name] for name in _OF_RESULT if result.get(name) is not None}
        training = msgspec.convert(result.get("training") or {}, dict[str, Any])
        given["training_stood_still_s"] = training.get("stood_still_s", 0.0)
        record = msgspec.convert(given, ReplayRecord)
        if record.pace not in PACE_CHOICES or record.api not in API_CHOICES:
            raise ValueError(f"pace {record.pace!r}, api {record.api!r}")
        for speed in (record.speed, record.compute_speed, record.io_speed):
            if not 0 < speed < math.inf:
                raise ValueError(f"speed {speed}")
        return record
    except ValueError as error:  # msgspec's, too
        raise CaptureError(
            f"{where}: the replay's record cannot be read ({error}): update dxt-replay if a newer release wrote it, "
            "else run the replay again"
        ) from error
