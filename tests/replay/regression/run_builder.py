"""Runs of an experiment as they would have been measured, without running anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from dxt_replay.replay.regression.comparison import BASELINE, CANDIDATE, Regression, Setting, compare_sides
from dxt_replay.replay.regression.health import examine
from dxt_replay.replay.regression.interval_verdict import Rule
from dxt_replay.replay.regression.run_metrics import MeasuredRun

_CHOICES = [field.name for field in dataclasses.fields(MeasuredRun)]


def run(side: str = BASELINE, pair: int = 1, **choices: Any) -> MeasuredRun:
    """A run without any trouble; what is no field of it is a metric."""
    fields: dict[str, Any] = {
        "capture": None,
        "operations": 100,
        "failed": 0,
        "short": 0,
        "left_out": 0,
        "bytes_read": 4096,
        "bytes_written": 0,
        "whole_s": 1.0,
        "starved_s": 0.0,
        "overhead_pct": 0.01,
        "lag_us": {"p50": 0.1, "p90": 1.0, "p99": 5.0, "max": 50.0},
        "jitter_us": {"p50": 0.1, "p90": 1.0, "p99": 5.0, "max": 50.0},
        "cache_policy": "cold",
        "resident_pct": 0.0,
        "stopped": False,
    }
    metrics = {name: value for name, value in choices.items() if name not in _CHOICES}
    fields |= {name: value for name, value in choices.items() if name in _CHOICES}
    return MeasuredRun(side=side, pair=pair, metrics=metrics, **fields)


def pairs(baseline: Sequence[float], candidate: Iterable[float], name: str = "elapsed_s") -> list[MeasuredRun]:
    """Runs in pairs whose metric `name` has these values."""
    runs = []
    for pair, (before, after) in enumerate(zip(baseline, candidate, strict=True), start=1):
        runs += [run(BASELINE, pair, **{name: before}), run(CANDIDATE, pair, **{name: after})]
    return runs


def setting(**changes: Any) -> Setting:
    """The setting of an experiment in pairs."""
    made = {
        "capture": "run.capture", "baseline": "/mnt/old", "candidate": "/mnt/new", "pace": "steps", "speed": 1.0,
        "compute_speed": 1.0, "io_speed": 1.0, "api": "auto", "direct": False, "repeats": 10, "warmup": 1, "seed": 7,
        "cache": "cold",
    }  # fmt: skip
    return Setting(**made | changes)


def result_of(runs: Sequence[MeasuredRun], baseline: str = "/mnt/old", primary: str = "elapsed_s") -> Regression:
    """The result of these runs."""
    rule = Rule()
    health = examine(runs, threshold_pct=rule.threshold_pct, closed_loop=True, direct=False)
    return compare_sides(runs, primary=primary, rule=rule, health=health, setting=setting(baseline=baseline))
