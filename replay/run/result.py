"""The result of a run, or of several: the JSON of `dxt-replay run`, and the `capture.json` of the replay."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.run.recorded import Tally
from dxt_replay.traces.measures.span_times import TrainingTime
from dxt_replay.traces.plain import Result
from dxt_replay.traces.records import ReplayRecord, by_error_name, disturbed, error_name, percentiles_us
from dxt_replay.traces.schema import NO_STEP, OPS, CaptureInfo, Job, Source
from dxt_replay.traces.storage_limit import NO_DOUBT, Doubt
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.relation import as_source
from dxt_replay.traces.units import NS_PER_MS, format_count, format_counted, ns_to_seconds

WARM_PCT = 5.0  # per cent of the data in the page cache before a run, above which it says little of the storage


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """The page cache before the run. `policy`: cold (dropped first) or as found; `resident_before_pct`: share of the
    data that it held, None if not measured; `keeps_pages`: some file system does not drop pages on request."""

    policy: str
    resident_before_pct: float | None
    warnings: tuple[str, ...] = ()
    keeps_pages: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IoResult:
    """How operations were issued. `not_direct`: writes of a direct replay that were not of whole blocks, and so went
    through the page cache; `python_lanes`: lanes that called a back end in Python."""

    api: str = "auto"
    backends: tuple[str, ...] = ()
    direct: bool = False
    not_direct: int = 0
    python_lanes: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The engine's own cost of an operation, and of all those of the lane with the largest cost.

    It is measured shortly before the run, as the rate of a lane that moves no data and never waits. In a paced run most
    of this cost falls into time in which a lane waits anyway, so its share of the elapsed time is an upper bound.
    """

    per_operation_ns: float = 0.0
    busiest_lane_ns: float = 0.0

    def fraction_pct(self, elapsed_ns: int) -> float | None:
        return 100 * self.busiest_lane_ns / elapsed_ns if elapsed_ns else None

    def as_json(self, elapsed_ns: int) -> dict[str, float | None]:
        return {"fraction_pct": self.fraction_pct(elapsed_ns), "per_operation_ns": self.per_operation_ns}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFailure:
    """An operation that failed or moved fewer bytes than recorded. `begin_s`: from the start of the run; `errno`: such
    as EIO, None if it moved fewer bytes; `step`, `offset` and `length`: None where it has none."""

    rank: int
    lane: int
    step: int | None
    operation: str
    file: str
    offset: int | None
    length: int | None
    begin_s: float
    errno: str | None
    moved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Result):
    """One finished replay, over all its processes.

    `recorded_ns`: recorded duration of the replayed part.
    `jitter_us`: percentile -> lateness with which an idle thread woke; None if it was not measured.
    `left_out`: recorded operations that were not replayed (see `replay.plan.layers`).
    `idle_processes`: processes without a rank to replay.
    `models`: rank -> causal model in numbers (`replay.causal.explain`); None for a pace without a model.
    `processors_pct`: share of the machine's processor time that the replay took.
    `stood_still_s`: for how long some process got no processor, as on a machine that was suspended.
    `training`: from the first step's begin to the last one's end; None for a pace without steps, and for a stopped run.
    `doubt`: how far `training` may be believed. `generated`: as of `traces.records`, of the replayed capture.
    """

    capture: Path
    pacing: Pacing
    compute: str
    tally: Tally
    recorded_ns: int
    jitter_us: Mapping[str, float] | None
    cache: CacheState
    processes: int
    lanes: int
    left_out: int
    stopped: bool
    idle_processes: int = 0
    io: IoResult = IoResult()
    overhead: Overhead = Overhead()
    models: Mapping[int, Mapping[str, Any]] | None = None
    training: TrainingTime | None = None
    failures: tuple[NamedFailure, ...] = ()
    jitter_before_us: Mapping[str, float] | None = None
    processors_pct: float | None = None
    stood_still_s: float = 0.0
    doubt: Doubt = NO_DOUBT
    generated: str | None = None

    @property
    def elapsed_s(self) -> float:
        return ns_to_seconds(self.tally.last_end_ns)

    @property
    def lag_us(self) -> dict[str, float] | None:
        """Percentile -> begin - due of the operations, us; None if none had a due time."""
        return percentiles_us(self.tally.lag_ns)

    @property
    def latency_us(self) -> dict[str, float] | None:
        """Percentile -> end - begin of the operations, us; None without operations."""
        return percentiles_us(self.tally.latency_ns)

    @property
    def latency_by_operation_us(self) -> dict[str, dict[str, float]]:
        by_op = self.tally.latency_by_op.items()
        return {OPS[op]: found for op, each in by_op if (found := percentiles_us(each)) is not None}

    @property
    def response_us(self) -> dict[str, float] | None:
        """Percentile -> end - due of the operations, us; None if none had a due time."""
        return percentiles_us(self.tally.response_ns)

    @property
    def expected_ns(self) -> int | None:
        """The recorded time at the replay's speed; None where that decides nothing."""
        pacing = self.pacing
        return pacing.recorded_ns(self.recorded_ns) if pacing.pace.follows_recording else None

    @property
    def from_page_cache(self) -> bool:
        """Whether reads may have come from the page cache, so that the times say little of the storage."""
        if self.io.api == "null" or not self.tally.bytes_read:
            return False
        warm = not self.io.direct and (self.cache.resident_before_pct or 0.0) > WARM_PCT
        return warm or self.cache.keeps_pages

    @property
    def disturbed(self) -> str | None:
        """A sentence where the machine stood still for a part of the run that decides its times; else None."""
        return disturbed(self.stood_still_s, self.elapsed_s)

    @property
    def succeeded(self) -> bool:
        """Whether the run reached its end, no operation or close failed, and all operations moved their bytes."""
        return not (self.stopped or self.tally.failed or self.tally.short or self.tally.close_errors)

    @property
    def warnings(self) -> tuple[str, ...]:
        failed = [f"{format_counted(self.tally.failed, 'operation')} failed"] if self.tally.failed else []
        return (*self.conditions, *failed)

    @property
    def conditions(self) -> tuple[str, ...]:
        """All warnings except the number of operations that failed."""
        found = [*filter(None, [self.disturbed]), *self.cache.warnings, *self.io.warnings]
        if self.io.not_direct:
            found.append(f"{self.io.not_direct} writes went through the page cache, because they are not whole blocks")
        if self.idle_processes:
            ranks = self.processes - self.idle_processes
            found.append(
                f"{self.idle_processes} of {self.processes} processes had nothing to do: the replay has "
                f"{format_counted(ranks, 'rank')}, and each is replayed by one process; start at most {ranks}"
            )
        if self.stopped:
            found.append("the replay was stopped before its end")
        if self.tally.refused:
            by_name = by_error_name(self.tally.refused)
            named = ", ".join(f"{name}: {format_count(count)}" for name, count in by_name.items())
            found.append(
                f"{format_counted(sum(by_name.values()), 'operation')} reconstructed from counters (opens, "
                f"stats, renames and the like) found no such file at their inferred time ({named}): they do not count "
                "as failed"
            )
        if self.tally.short:
            found.append(f"{self.tally.short} operations moved fewer bytes than recorded")
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay run --json` prints."""
        tally = self.tally
        return {
            "capture": str(self.capture),
            "pace": self.pacing.pace.value,
            "speed": self.pacing.speed,
            "compute_speed": self.pacing.of_compute,
            "io_speed": self.pacing.speed,
            "compute": self.compute,
            "operations": tally.operations,
            "failed": tally.failed,
            "errors": by_error_name(tally.errors),
            "reconstructed_refused": by_error_name(tally.refused),
            "close_errors": by_error_name(tally.close_errors),
            "short": tally.short,
            "failures": [asdict(failure) for failure in self.failures],
            "training": None if self.training is None else asdict(self.training),
            "doubt": None if self.training is None else asdict(self.doubt),
            "left_out": self.left_out,
            "api": self.io.api,
            "backends": list(self.io.backends),
            "direct": self.io.direct,
            "not_direct": self.io.not_direct,
            "python_lanes": self.io.python_lanes,
            "overhead": self.overhead.as_json(tally.last_end_ns),
            "model": None if self.models is None else {str(rank): model for rank, model in self.models.items()},
            "stopped": self.stopped,
            "elapsed_s": self.elapsed_s,
            "recorded_s": ns_to_seconds(self.recorded_ns),
            "expected_s": None if self.expected_ns is None else ns_to_seconds(self.expected_ns),
            "lag_us": self.lag_us,
            "jitter_us": dict(self.jitter_us) if self.jitter_us is not None else None,
            "jitter_before_us": dict(self.jitter_before_us) if self.jitter_before_us is not None else None,
            "processors_pct": self.processors_pct,
            "stood_still_s": self.stood_still_s,
            "latency_us": self.latency_us,
            "latency_by_operation_us": self.latency_by_operation_us,
            "response_us": self.response_us,
            "bytes": {"read": tally.bytes_read, "written": tally.bytes_written},
            "cache": {
                "policy": self.cache.policy,
                "resident_before_pct": self.cache.resident_before_pct,
                "from_page_cache": self.from_page_cache,
            },
            "warnings": list(self.warnings),
            "starved_ms": tally.starved_ns / NS_PER_MS,
            "processes": self.processes,
            "lanes": self.lanes,
            "core": "compiled",
        }


def named_failures(rows: np.ndarray, paths: Sequence[str]) -> tuple[NamedFailure, ...]:
    """The failures, `FAILURE_ROW`, with names. `paths`: recorded paths by file id."""
    found = []
    for row in rows:
        values: dict[str, int] = dict(zip(rows.dtype.names or (), row.item(), strict=True))
        op, result = OPS[values["op"]], values["result"]
        found.append(
            NamedFailure(
                rank=values["rank"],
                lane=values["lane"],
                step=None if values["step"] == NO_STEP else values["step"],
                operation=op,
                file=paths[values["file_id"]],
                offset=values["offset"] if op in ("read", "write", "seek") else None,
                length=values["length"] if op in ("read", "write") else None,
                begin_s=ns_to_seconds(values["begin_ns"]),
                errno=error_name(-result) if result < 0 else None,
                moved=max(0, result),
            )
        )
    return tuple(found)


def replay_info(
    source: Capture, result: RunResult, zero_ns: int, stored: int, sources: tuple[Source, ...] = ()
) -> CaptureInfo:
    """`capture.json` of a replay that started at `zero_ns` (CLOCK_REALTIME) and stored `stored` operations. `sources`:
    the files behind a temporary `source`."""
    elapsed_ns = result.tally.last_end_ns
    pacing = result.pacing
    record = ReplayRecord(
        pace=pacing.pace.value,
        speed=pacing.speed,
        compute_speed=pacing.of_compute,
        io_speed=pacing.speed,
        api=result.io.api,
        selection=None if source.part.is_everything else source.part.as_json(),
        result=result.as_json(),
    )
    return CaptureInfo(
        job=Job(
            nprocs=source.info.job.nprocs,
            run_time_s=ns_to_seconds(elapsed_ns),
            start_ns=zero_ns,
            end_ns=zero_ns + elapsed_ns,
            zero_ns=zero_ns,
            job_id=source.info.job.job_id,
            exe=source.info.job.exe,
            metadata=source.info.job.metadata,
        ),
        ranks=source.info.ranks,
        sources=sources or (as_source(source), *source.info.sources),
        lanes="recorded",
        # Only this pace writes batch fetches, and dependency columns refer to them.
        dependencies=source.info.dependencies if pacing.pace is Pace.STEPS else "inferred",
        warnings=result.warnings,
        partial=result.stopped,
        made_by=record.as_made_by(stored),
    )


class ElapsedTimes(NamedTuple):
    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats(Result):
    """The runs in order; a stopped run is the last."""

    runs: tuple[RunResult, ...]

    @property
    def succeeded(self) -> bool:
        return all(run.succeeded for run in self.runs)

    @property
    def elapsed_s(self) -> ElapsedTimes:
        whole = [run.elapsed_s for run in self.runs if not run.stopped and not run.disturbed]
        found = whole or [run.elapsed_s for run in self.runs]
        return ElapsedTimes(median=statistics.median(found), min=min(found), max=max(found))

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay run --repeat N --json` prints; `runs` has the objects of single runs."""
        elapsed_s = self.elapsed_s
        return {
            "repeats": len(self.runs),
            "elapsed_s": {"median": elapsed_s.median, "min": elapsed_s.min, "max": elapsed_s.max},
            "runs": [run.as_json() for run in self.runs],
        }
