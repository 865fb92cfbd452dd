"""Records of experiments that nobody made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dxt_replay.replay.regression.experiment_record import (
    ExperimentRecord,
    RecordedCapture,
    RecordedOptions,
    RecordedVerdict,
)
from dxt_replay.replay.regression.machine_environment import MachineEnvironment
from dxt_replay.replay.regression.target_environment import BlockDevice, TargetEnvironment
from tests.replay.regression.run_builder import run

START_NS = 1_760_000_000_000_000_000
DAY_NS = 86_400_000_000_000

OPTIONS = RecordedOptions(
    pace="steps", speed=1.0, compute_speed=1.0, io_speed=1.0, compute="sleep", api="auto", reconstruct=True,
    direct=False, vectored=0, cache="cold",
)  # fmt: skip
MACHINE = MachineEnvironment(host="node1", kernel="6.1.0", cpus=4, memory_bytes=1 << 34, versions={"dxt-replay": "1"})
TARGET = TargetEnvironment(
    target="/mnt/t", file_system="ext4", mount_point="/mnt", source="/dev/sda1", options=("rw",),
    device=BlockDevice(name="sda", scheduler="mq-deadline"),
)  # fmt: skip
VERDICT = RecordedVerdict(
    headline="No verdict.", verdict="inconclusive", reason="too few", threshold_pct=5.0, alpha=0.05, metrics={}
)


def record(values: Sequence[float] = (1.0, 1.01, 0.99), day: int = 0, **changes: Any) -> ExperimentRecord:
    """A record of runs of the candidate with these elapsed times, made on `day`; `changes`: other fields."""
    made = ExperimentRecord(
        capture=RecordedCapture(name="run.capture", digest="d" * 64, operations=100),
        options=OPTIONS,
        primary="elapsed_s",
        warmup=0,
        seed=7,
        machine=MACHINE,
        targets={"candidate": TARGET},
        runs=tuple(
            run("candidate", pair, elapsed_s=value, start_ns=START_NS + day * DAY_NS + pair * 1_000_000_000)
            for pair, value in enumerate(values, start=1)
        ),
        result=VERDICT,
        name=f"day-{day}.json",
    )
    return replace(made, **changes)
