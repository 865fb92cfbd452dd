"""How a replay was made: the `made_by` of its `capture.json`. Only this module writes and reads it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.paces import API_CHOICES, PACE_CHOICES
from dxt_replay.traces.schema import CaptureInfo
from dxt_replay.traces.version import VERSION

PERCENTILES = ("p50", "p90", "p99", "max")
"""Names of the percentiles that a run reports."""

_PROGRAM = ("program", "version", "command", "operations_stored", "anonymized")
_OWN = ("pace", "speed", "compute_speed", "io_speed", "api", "reconstruct", "selection", "result")
_REMEDY = "update dxt-replay if a newer release wrote it, else run the replay again"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRecord:
    """The page cache before the run.

    policy: cold (the twin's pages were dropped first) or as found.
    resident_before_pct: share of the bytes to be read that it held; None where it could not be measured.
    from_page_cache: whether reads may have come from it.
    """

    policy: str
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
    selection: Mapping[str, Any] | None = None
    cache: CacheRecord | None = None
    lag_us: Mapping[str, float] | None = None
    jitter_us: Mapping[str, float] | None = None
    jitter_before_us: Mapping[str, float] | None = None
    processors_pct: float | None = None
    stood_still_s: float = 0.0
    training_stood_still_s: float = 0.0
    result: Mapping[str, Any] = field(default_factory=dict)

    def as_made_by(self, operations_stored: int) -> dict[str, Any]:
        """The `made_by` of the replay's `capture.json`; `cache`, `lag_us` and `jitter_us` are part of the result."""
        return {
            "program": "dxt-replay",
            "version": VERSION,
            "command": "run",
            "operations_stored": operations_stored,
            **{name: getattr(self, name) for name in _OWN},
        }


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
    made_by = info.made_by
    unknown = [str(name) for name in made_by if name not in (*_PROGRAM, *_OWN)]
    if unknown:
        raise CaptureError(f"{where}: the replay's record has an unknown field {unknown[0]!r}: {_REMEDY}")
    fields = _Fields(made_by, where)
    speed = fields.speed("speed", 1.0)
    result = fields.mapping("result") or {}
    measured = _Fields(result, where)
    return ReplayRecord(
        pace=fields.choice("pace", PACE_CHOICES, None),
        speed=speed,
        compute_speed=fields.speed("compute_speed", speed),
        io_speed=fields.speed("io_speed", speed),
        api=fields.choice("api", API_CHOICES, "auto"),
        reconstruct=fields.flag("reconstruct", default=True),
        selection=fields.mapping("selection"),
        cache=_cache(measured, where),
        lag_us=measured.percentiles("lag_us"),
        jitter_us=measured.percentiles("jitter_us"),
        jitter_before_us=measured.percentiles("jitter_before_us"),
        processors_pct=None if result.get("processors_pct") is None else measured.number("processors_pct"),
        stood_still_s=measured.number("stood_still_s", 0.0),
        training_stood_still_s=_Fields(measured.mapping("training") or {}, where).number("stood_still_s", 0.0),
        result=result,
    )


def _cache(measured: _Fields, where: object) -> CacheRecord | None:
    found = measured.mapping("cache")
    if found is None:
        return None
    cache = _Fields(found, where)
    return CacheRecord(
        policy=cache.choice("policy", ("cold", "as found"), None),
        resident_before_pct=None if found.get("resident_before_pct") is None else cache.number("resident_before_pct"),
        from_page_cache=cache.flag("from_page_cache", default=False),
    )


class _Fields:
    """Typed reading of a JSON object. Each method raises CaptureError for a value of another kind."""

    def __init__(self, values: Mapping[str, Any], where: object) -> None:
        self._values = values
        self._where = where

    def choice(self, name: str, choices: Sequence[str], default: str | None) -> str:
        value = self._values.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self._wrong(name, f"one of {', '.join(choices)}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self._wrong(name, "a number")
        return float(value)

    def speed(self, name: str, default: float) -> float:
        if name not in self._values:
            return default
        value = self.number(name)
        if value <= 0:
            raise self._wrong(name, "a number above 0")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self._wrong(name, "an object or null")
        return value

    def percentiles(self, name: str) -> Mapping[str, float] | None:
        found = self.mapping(name)
        if found is None:
            return None
        shares = _Fields(found, self._where)
        return {share: shares.number(share) for share in PERCENTILES if share in found}

    def _wrong(self, name: str, wanted: str) -> CaptureError:
        value = self._values.get(name)
        return CaptureError(f"{self._where}: the replay's record has {name} {value!r} instead of {wanted}: {_REMEDY}")
