"""Runs and records of experiments that nobody made."""

import dataclasses
from dataclasses import replace

import numpy as np

from dxt_replay.replay.regress.comparison import BASELINE, CANDIDATE, compare_sides
from dxt_replay.replay.regress.environment import BlockDevice, MachineEnvironment, TargetEnvironment
from dxt_replay.replay.regress.metrics import MeasuredRun
from dxt_replay.replay.regress.record import ExperimentRecord, RecordedCapture, RecordedOptions, RecordedVerdict
from dxt_replay.replay.regress.statistics import Rule

_CHOICES = [field.name for field in dataclasses.fields(MeasuredRun)]
ON_TIME = {"p50": 0.1, "p90": 1.0, "p99": 5.0, "max": 50.0}


def run(side=BASELINE, pair=1, **choices) -> MeasuredRun:
    """A run without any trouble; what is no field of it is a metric."""
    fields = {
        **{"operations": 100, "failed": 0, "short": 0, "left_out": 0, "bytes_read": 4096, "bytes_written": 0},
        **{"whole_s": 1.0, "starved_s": 0.0, "overhead_pct": 0.01, "lag_us": ON_TIME, "jitter_us": ON_TIME},
        **{"cache_policy": "cold", "resident_pct": 0.0, "stopped": False},
        **{name: value for name, value in choices.items() if name in _CHOICES},
    }
    metrics = {name: value for name, value in choices.items() if name not in _CHOICES}
    return MeasuredRun(side=side, pair=pair, metrics=metrics, **fields)


def pairs(baseline, candidate, name="elapsed_s"):
    """Runs in pairs whose metric `name` has these values."""
    both = enumerate(zip(baseline, candidate, strict=True), start=1)
    sides = (BASELINE, CANDIDATE)
    return [run(sides[k], pair, **{name: values[k]}) for pair, values in both for k in (0, 1)]


def slower(factor, name="elapsed_s"):
    """Ten pairs in which the candidate is slower by this factor."""
    before, after = (np.random.default_rng(seed).normal(1.0, 0.01, 10) for seed in (1, 2))
    return pairs(before.tolist(), (factor * after).tolist(), name)


def merged(*rows):
    """Runs that have the metrics of all of these."""
    metrics = ({name: value for one in same for name, value in one.metrics.items()} for same in zip(*rows, strict=True))
    return [replace(one, metrics=found) for one, found in zip(rows[0], metrics, strict=True)]


START_NS = 1_760_000_000_000_000_000
DAY_NS = 86_400_000_000_000

OPTIONS = RecordedOptions(
    pace="steps", speed=1.0, compute_speed=1.0, io_speed=1.0, compute="sleep", api="auto", direct=False, cache="cold"
)
MACHINE = MachineEnvironment(host="node1", kernel="6.1.0", cpus=4, memory_bytes=1 << 34, versions={"dxt-replay": "1"})
TARGET = TargetEnvironment(
    target="/mnt/t", file_system="ext4", mount_point="/mnt", source="/dev/sda1", options=("rw",),
    device=BlockDevice(name="sda", scheduler="mq-deadline"),
)  # fmt: skip
VERDICT = RecordedVerdict(
    headline="No verdict.", verdict="inconclusive", reason="too few", threshold_pct=5.0, alpha=0.05, metrics={}
)


def record(values=(1.0, 1.01, 0.99), day=0, **changes) -> ExperimentRecord:
    """A record of runs of the candidate with these elapsed times, made on `day`; `changes`: other fields."""
    begin = START_NS + day * DAY_NS
    timed = enumerate(values, start=1)
    made = ExperimentRecord(
        capture=RecordedCapture(name="run.capture", digest="d" * 64, operations=100),
        options=OPTIONS,
        primary="elapsed_s",
        warmup=1,
        seed=7,
        machine=MACHINE,
        targets={"candidate": TARGET},
        runs=tuple(run("candidate", pair, elapsed_s=value, start_ns=begin + pair * 10**9) for pair, value in timed),
        result=VERDICT,
        name=f"day-{day}.json",
    )
    return replace(made, **changes)


def result_of(runs, **changes):
    """The result of these runs; `changes`: fields of the record or of its options, and arguments of `compare_sides`."""
    of_options = {name: changes.pop(name) for name in [*changes] if name in OPTIONS.__slots__}
    of_record = {name: changes.pop(name) for name in ("primary", "targets") if name in changes}
    begun = record(runs=(), **{"result": None, "targets": {}, "options": replace(OPTIONS, **of_options), **of_record})
    places = {"capture": "run.capture", "baseline": "/mnt/old", "candidate": "/mnt/new", "repeats": 10}
    return compare_sides(runs, begun, **{"rule": Rule(), "differences": [], **places, **changes})
