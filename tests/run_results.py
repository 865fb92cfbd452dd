"""Results of replays that never ran, from the object that `dxt-replay run --json` prints."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.run.result import RunResult, Tally
from dxt_replay.replay.target.page_cache import Residency
from dxt_replay.traces.measures.distribution import Distribution
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.span_times import TrainingTime
from dxt_replay.traces.schema import OPS
from dxt_replay.traces.units import seconds_to_ns

RUN: Mapping[str, Any] = json.loads((Path(__file__).parent / "golden/results/run.json").read_text(encoding="utf-8"))
"""What `dxt-replay run --json` printed once."""


def run_result(document: Mapping[str, Any]) -> RunResult:
    """The result behind a JSON object. Values that follow from others (`expected_s`, `warnings`) are not read."""
    elapsed_ns, overhead = seconds_to_ns(document["elapsed_s"]), document["overhead"]
    training, cache = document["training"], document["cache"]
    by_op = {OPS.index(name): _distribution(found) for name, found in document["latency_by_operation_us"].items()}
    still_ns, taken_pct = seconds_to_ns(document.get("stood_still_s", 0.0)), document["processors_pct"]
    resident_pct = cache["resident_before_pct"]
    return RunResult(
        capture=Path(document["capture"]),
        pacing=Pacing(pace=Pace(document["pace"]), speed=document["speed"]),
        compute=document["compute"],
        tally=Tally(
            operations=document["operations"],
            failed=document["failed"],
            short=document["short"],
            bytes_read=document["bytes"]["read"],
            bytes_written=document["bytes"]["written"],
            last_end_ns=elapsed_ns,
            errors=_by_number(document["errors"]),
            refused=_by_number(document["reconstructed_refused"]),
            close_errors=_by_number(document["close_errors"]),
            lag_ns=_distribution(document["lag_us"]),
            latency_ns=_distribution(document["latency_us"]),
            response_ns=_distribution(document["response_us"]),
            latency_by_op=by_op,
            lanes=document["lanes"],
            left_out=document["left_out"],
            not_direct=document["not_direct"],
            python_lanes=document["python_lanes"],
            backends=frozenset(document["backends"]),
            cost_ns=((overhead["fraction_pct"] or 0.0) / 100 * elapsed_ns, overhead["per_operation_ns"]),
            busy_ns=taken_pct or 0,
            elapsed_ns=0 if taken_pct is None else 100,
            processors=frozenset({("node", 0)}),
            residency=Residency() if resident_pct is None else Residency(resident_bytes=resident_pct, total_bytes=100),
            jitter_ns=_distribution(document["jitter_us"]),
            jitter_before_ns=_distribution(document["jitter_before_us"]),
            stalls=Intervals.union_of(np.array([0]), np.array([still_ns])),
            stopped=document["stopped"],
        ),
        recorded_ns=seconds_to_ns(document["recorded_s"]),
        processes=document["processes"],
        ranks=document["processes"],
        api=document["api"],
        direct=document["direct"],
        cold=cache["policy"] == "cold",
        training=None if training is None else TrainingTime(**training),
        failures=document["failures"],
    )


def _by_number(counts: Mapping[str, int]) -> dict[int, int]:
    return {getattr(errno, name): count for name, count in counts.items()}


def _distribution(percentiles_us: Mapping[str, float] | None) -> Distribution:
    """A sample of 1,001 times whose percentiles are these; an empty one for None."""
    if percentiles_us is None:
        return Distribution()
    us = [percentiles_us[name] for name in ("p50", "p90", "p99", "max")]
    return Distribution.of(np.rint(1000 * np.repeat(us, (501, 400, 90, 10))).astype(np.int64))
