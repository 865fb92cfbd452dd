"""What a replay says of itself, written and read back, and when it counts as late."""

from __future__ import annotations

from typing import Any

import pytest

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.records import (
    CacheRecord,
    ReplayRecord,
    allowed_lag_us,
    kept_times_limit_us,
    machine_jitter_us,
    replay_record,
)
from dxt_replay.traces.schema import CaptureInfo, Job

RESULT = {
    "lag_us": {"p50": 1.0, "p90": 2.0, "p99": 3.0, "max": 4.0},
    "jitter_us": None,
    "cache": {"policy": "cold", "resident_before_pct": None},
}


def info(**made_by: Any) -> CaptureInfo:
    return CaptureInfo(job=Job(nprocs=1, run_time_s=1), ranks=(0,), made_by=made_by)


def test_a_record_is_read_as_it_was_written() -> None:
    record = ReplayRecord(
        pace="steps", speed=2.0, compute_speed=3.0, io_speed=2.0, api="mpiio", reconstruct=False,
        selection={"ranks": [0]}, cache=CacheRecord(policy="cold"), lag_us=RESULT["lag_us"], result=RESULT,
    )  # fmt: skip
    assert replay_record(info(**record.as_made_by(operations_stored=7))) == record
    assert record.as_made_by(operations_stored=7)["operations_stored"] == 7


def test_what_an_older_release_did_not_write_has_defaults() -> None:
    old = {"program": "dxt-replay", "version": "0.0.1", "command": "run", "operations_stored": 3, "pace": "think"}
    assert replay_record(info(**old, speed=2)) == ReplayRecord(pace="think", speed=2.0, compute_speed=2.0, io_speed=2.0)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"api": "gpfs"}, "api 'gpfs'"),
        ({"api": None}, r"\$\.api"),
        ({"pace": "fast"}, "pace 'fast'"),
        ({"pace": None}, r"\$\.pace"),
        ({"speed": "2"}, r"\$\.speed"),
        ({"speed": True}, r"\$\.speed"),
        ({"speed": 0}, "speed 0"),
        ({"io_speed": float("nan")}, "speed nan"),
        ({"compute_speed": None}, r"\$\.compute_speed"),
        ({"reconstruct": "yes"}, r"\$\.reconstruct"),
        ({"selection": [0]}, r"\$\.selection"),
        ({"result": 3}, "Expected `object`"),
        ({"result": {"jitter_us": {"p50": "fast"}}}, r"\$\.jitter_us"),
        ({"result": {"cache": {"policy": "warm"}}}, r"'warm' - at `\$\.cache\.policy"),
        ({"prefetch": 3}, "unknown field 'prefetch'"),
    ],
)
def test_what_cannot_be_understood_is_an_error_with_its_place(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(CaptureError, match=rf"x/capture\.json: .*{named}.*run the replay again"):
        replay_record(info(**{"command": "run", "pace": "timed", **wrong}), "x/capture.json")


BEFORE, DURING = {"p99": 20.0}, {"p99": 4_000.0}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (allowed_lag_us(None), 1_000),
        (allowed_lag_us(BEFORE), 1_000),
        (allowed_lag_us(DURING), 40_000),
        (allowed_lag_us({"p99": 3_500_000.0}), 500_000),  # a replay that starves the idle thread is not on time
        (kept_times_limit_us(8.0, 1.0, 1_000), 80_000),
        (kept_times_limit_us(0.05, 1.0, 1_000), 1_000),  # 1 % of 50 ms is less than an idle thread is late
        (machine_jitter_us(BEFORE, DURING, 95.0), BEFORE),
        (machine_jitter_us(BEFORE, DURING, 30.0), DURING),  # others keep the idle thread from waking
        (machine_jitter_us(None, DURING, 95.0), DURING),
        (machine_jitter_us(BEFORE, DURING, None), DURING),
    ],
)
def test_when_a_replay_is_late(found: object, expected: object) -> None:
    assert found == expected
