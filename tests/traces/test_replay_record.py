"""What a replay says of itself, written and read back; nothing that cannot be understood is guessed."""

from __future__ import annotations

from typing import Any

import pytest

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.records import CacheRecord, ReplayRecord, replay_record
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
        pace="steps",
        speed=2.0,
        compute_speed=3.0,
        io_speed=2.0,
        api="mpiio",
        reconstruct=False,
        selection={"ranks": [0]},
        cache=CacheRecord(policy="cold"),
        lag_us=RESULT["lag_us"],
        result=RESULT,
    )
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
