"""Totals of a run, its result, and that of several: the JSON of `dxt-replay run`, and `capture.json` of the replay."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.replay.plan.pacing import Pacing
from dxt_replay.replay.target.page_cache import Residency
from dxt_replay.traces.measures.distribution import Distribution
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.span_times import TrainingTime
from dxt_replay.traces.plain import Result
from dxt_replay.traces.records import ReplayRecord, by_error_name, disturbed, error_name, percentiles_us
from dxt_replay.traces.schema import NO_STEP, OPS, CaptureInfo, Job, Source
from dxt_replay.traces.storage_limit import NO_DOUBT, Doubt
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.relation import as_source
from dxt_replay.traces.units import NS_PER_MS, format_count, format_counted, ns_to_seconds

WARM_PCT = 5.0  # per cent of the data in the page cache before a run, above which it says little of the storage
MOST_FAILURES = 20  # how many failed operations are named; all are in the capture, with a negative `result`

RESULT_ROW = np.dtype(
    [(name, "i1") for name in ("op", "api", "origin")]
    + [(name, "<i4") for name in ("lane", "file_id", "step", "other_file_id")]
    + [(name, "<i8") for name in ("offset", "begin_ns", "end_ns", "due_ns", "result")]
)
"""One issued operation. Times are in ns from the start of the run. `other_file_id`: -1 for null."""

FAILURE_ROW = np.dtype([*RESULT_ROW.descr, ("rank", "<i4"), ("length", "<i8")])
"""An operation that failed, or moved fewer bytes than the recorded `length`."""


@dataclass(slots=True)
class Tally:
    """Totals of a run so far. Tallies of several lanes or processes can be added.

    short: traced reads and writes that moved fewer bytes than recorded.
    last_end_ns: when the last operation ended, from the start of the run.
    starved_ns: time in which lanes had no items because the feeder was late.
    errors, refused, close_errors: errno -> failed operations; reconstructed ones that the storage refused, which are no
    failures (`traces.records`); files whose close failed at the end, so that written data may be lost.
    lag_ns, latency_ns, response_ns: distributions over all operations; latency_by_op: by code of the operation (OPS).
    failures: `FAILURE_ROW`s, the earliest of the failed and the short ones, MOST_FAILURES at most.
    lanes, stored: lanes with operations, and rows written. left_out: recorded operations that were not replayed.
    not_direct: writes of a direct replay that were not of whole blocks, and so went through the page cache.
    python_lanes: lanes that called a back end in Python. backends: names.
    cost_ns: the engine's own cost of all operations of the lane with the largest cost, and of one of them.
    busy_ns, elapsed_ns, processors: processor time of all threads, duration, and the processors that the processes may
    use, with the name of their node.
    residency: of the files that are read, in the page cache before the run. keeps_pages: some file system does not drop
    pages on request. jitter_ns, jitter_before_ns: lateness with which an idle thread of each node woke, and before the
    run. stalls: when some process got no processor, as on a machine that was suspended.
    cache_warnings, warnings: of the page cache, and of how operations were issued. models: rank -> causal model in
    numbers (`replay.causal.explain`).
    """

    operations: int = 0
    failed: int = 0
    short: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    last_end_ns: int = 0
    starved_ns: int = 0
    errors: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    close_errors: Counter[int] = field(default_factory=Counter)
    lag_ns: Distribution = field(default_factory=Distribution)
    latency_ns: Distribution = field(default_factory=Distribution)
    response_ns: Distribution = field(default_factory=Distribution)
    latency_by_op: dict[int, Distribution] = field(default_factory=dict)
    failures: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=FAILURE_ROW))
    lanes: int = 0
    stored: int = 0
    left_out: int = 0
    not_direct: int = 0
    python_lanes: int = 0
    backends: frozenset[str] = frozenset()
    cost_ns: tuple[float, float] = (0.0, 0.0)
    busy_ns: float = 0
    elapsed_ns: int = 0
    processors: frozenset[tuple[str, int]] = frozenset()
    residency: Residency = field(default_factory=Residency)
    keeps_pages: bool = False
    jitter_ns: Distribution = field(default_factory=Distribution)
    jitter_before_ns: Distribution = field(default_factory=Distribution)
    stalls: Intervals = field(default_factory=Intervals)
    stopped: bool = False
    cache_warnings: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    models: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def __add__(self, other: Tally) -> Tally:
        total = Tally()
        for name in self.__slots__:
            mine, others = getattr(self, name), getattr(other, name)
            if name in ("last_end_ns", "elapsed_ns", "cost_ns"):
                added = max(mine, others)
            elif name == "latency_by_op":
                both = sorted(mine.keys() | others.keys())
                added = {op: mine.get(op, Distribution()) + others.get(op, Distribution()) for op in both}
            elif name == "failures":
                rows = np.concatenate((mine, others))
                added = rows[np.lexsort((rows["lane"], rows["begin_ns"]))][:MOST_FAILURES]
            elif name == "stalls":
                added = mine.union(others)
            elif name in ("backends", "processors", "keeps_pages", "stopped", "models"):
                added = mine | others
            else:
                added = mine + others
            setattr(total, name, added)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Result):
    """One finished replay, over all its processes.

    `api`, `direct`, `cold`, `compute`: as asked for. `recorded_ns`: recorded duration of the replayed part.
    `ranks`: of the capture, each of which one process replays.
    `training`: from the first step's begin to the last one's end; None for a pace without steps, and for a stopped run.
    `doubt`: how far `training` may be believed. `generated`: as of `traces.records`, of the replayed capture.
    `failures`: by `named_failures`.
    """

    capture: Path
    pacing: Pacing
    compute: str
    tally: Tally
    recorded_ns: int
    processes: int = 1
    ranks: int = 1
    api: str = "auto"
    direct: bool = False
    cold: bool = True
    training: TrainingTime | None = None
    failures: Sequence[Mapping[str, Any]] = ()
    doubt: Doubt = NO_DOUBT
    generated: str | None = None

    @property
    def stopped(self) -> bool:
        return self.tally.stopped

    @property
    def lanes(self) -> int:
        return self.tally.lanes

    @property
    def elapsed_s(self) -> float:
        return ns_to_seconds(self.tally.last_end_ns)

    @property
    def lag_us(self) -> dict[str, float] | None:
        """Percentile -> begin - due of the operations, us; None if none had a due time."""
        return percentiles_us(self.tally.lag_ns)

    @property
    def jitter_us(self) -> dict[str, float] | None:
        """Percentile -> lateness with which an idle thread woke, us; None if it was not measured."""
        return percentiles_us(self.tally.jitter_ns)

    @property
    def jitter_before_us(self) -> dict[str, float] | None:
        return percentiles_us(self.tally.jitter_before_ns)

    @property
    def overhead_pct(self) -> float | None:
        """The engine's own cost in the lane with the largest one, per cent of the elapsed time: an upper bound, for in
        a paced run most of it falls into time in which the lane waits anyway."""
        return 100 * self.tally.cost_ns[0] / self.tally.last_end_ns if self.tally.last_end_ns else None

    @property
    def processors_pct(self) -> float | None:
        """Share of the machine's processor time that the replay took."""
        available_ns = self.tally.elapsed_ns * len(self.tally.processors)
        return 100 * self.tally.busy_ns / available_ns if available_ns else None

    @property
    def stood_still_s(self) -> float:
        """For how long some process got no processor until the last operation ended."""
        return ns_to_seconds(int(self.tally.stalls.covered_before(np.array([self.tally.last_end_ns]))[0]))

    @property
    def resident_before_pct(self) -> float | None:
        """Share of the data in the page cache before the run; None if not measured."""
        return self.tally.residency.percent

    @property
    def expected_ns(self) -> int | None:
        """The recorded time at the replay's speed; None where that decides nothing."""
        pacing = self.pacing
        return pacing.recorded_ns(self.recorded_ns) if pacing.pace.follows_recording else None

    @property
    def from_page_cache(self) -> bool:
        """Whether reads may have come from the page cache, so that the times say little of the storage."""
        if self.api == "null" or not self.tally.bytes_read:
            return False
        return self.tally.keeps_pages or (not self.direct and (self.resident_before_pct or 0.0) > WARM_PCT)

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
        tally = self.tally
        found = [*filter(None, [self.disturbed]), *dict.fromkeys(tally.cache_warnings), *dict.fromkeys(tally.warnings)]
        if tally.not_direct:
            found.append(f"{tally.not_direct} writes went through the page cache, because they are not whole blocks")
        if self.processes > self.ranks:
            found.append(
                f"{self.processes - self.ranks} of {self.processes} processes had nothing to do: the replay has "
                f"{format_counted(self.ranks, 'rank')}, and each is replayed by one process; start at most {self.ranks}"
            )
        if self.stopped:
            found.append("the replay was stopped before its end")
        if tally.refused:
            by_name = by_error_name(tally.refused)
            named = ", ".join(f"{name}: {format_count(count)}" for name, count in by_name.items())
            found.append(
                f"{format_counted(sum(by_name.values()), 'operation')} reconstructed from counters (opens, "
                f"stats, renames and the like) found no such file at their inferred time ({named}): they do not count "
                "as failed"
            )
        if tally.short:
            found.append(f"{tally.short} operations moved fewer bytes than recorded")
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay run --json` prints."""
        tally, steps = self.tally, self.pacing.pace.follows_training
        by_op = {OPS[op]: percentiles_us(each) for op, each in tally.latency_by_op.items()}
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
            "failures": [dict(failure) for failure in self.failures],
            "training": None if self.training is None else asdict(self.training),
            "doubt": None if self.training is None else asdict(self.doubt),
            "left_out": tally.left_out,
            "api": self.api,
            "backends": sorted(tally.backends),
            "direct": self.direct,
            "not_direct": tally.not_direct,
            "python_lanes": tally.python_lanes,
            "overhead": {"fraction_pct": self.overhead_pct, "per_operation_ns": tally.cost_ns[1]},
            "model": {str(rank): model for rank, model in tally.models.items()} if steps else None,
            "stopped": self.stopped,
            "elapsed_s": self.elapsed_s,
            "recorded_s": ns_to_seconds(self.recorded_ns),
            "expected_s": None if self.expected_ns is None else ns_to_seconds(self.expected_ns),
            "lag_us": self.lag_us,
            "jitter_us": self.jitter_us,
            "jitter_before_us": self.jitter_before_us,
            "processors_pct": self.processors_pct,
            "stood_still_s": self.stood_still_s,
            "latency_us": percentiles_us(tally.latency_ns),
            "latency_by_operation_us": {name: found for name, found in by_op.items() if found is not None},
            "response_us": percentiles_us(tally.response_ns),
            "bytes": {"read": tally.bytes_read, "written": tally.bytes_written},
            "cache": {
                "policy": "cold" if self.cold else "as found",
                "resident_before_pct": self.resident_before_pct,
                "from_page_cache": self.from_page_cache,
            },
            "warnings": list(self.warnings),
            "starved_ms": tally.starved_ns / NS_PER_MS,
            "processes": self.processes,
            "lanes": tally.lanes,
            "core": "compiled",
        }


def named_failures(rows: np.ndarray, paths: Sequence[str]) -> list[dict[str, Any]]:
    """The failures, `FAILURE_ROW`, with names, as in JSON. `paths`: recorded paths by file id.

    `begin_s`: from the start of the run. `errno`: such as EIO, None if the operation moved fewer bytes. `step`,
    `offset` and `length`: None where it has none.
    """
    found = []
    for row in rows:
        values: dict[str, int] = dict(zip(rows.dtype.names or (), row.item(), strict=True))
        op, result = OPS[values["op"]], values["result"]
        found.append(
            {
                "rank": values["rank"],
                "lane": values["lane"],
                "step": None if values["step"] == NO_STEP else values["step"],
                "operation": op,
                "file": paths[values["file_id"]],
                "offset": values["offset"] if op in ("read", "write", "seek") else None,
                "length": values["length"] if op in ("read", "write") else None,
                "begin_s": ns_to_seconds(values["begin_ns"]),
                "errno": error_name(-result) if result < 0 else None,
                "moved": max(0, result),
            }
        )
    return found


def replay_info(source: Capture, result: RunResult, zero_ns: int, sources: tuple[Source, ...] = ()) -> CaptureInfo:
    """`capture.json` of a replay that started at `zero_ns` (CLOCK_REALTIME). `sources`: the files behind a temporary
    `source`."""
    tally, pacing, of_source = result.tally, result.pacing, source.info.job
    record = ReplayRecord(
        pace=pacing.pace.value,
        speed=pacing.speed,
        compute_speed=pacing.of_compute,
        io_speed=pacing.speed,
        api=result.api,
        selection=None if source.part.is_everything else source.part.as_json(),
        result=result.as_json(),
    )
    return CaptureInfo(
        job=Job(
            nprocs=of_source.nprocs,
            run_time_s=result.elapsed_s,
            start_ns=zero_ns,
            end_ns=zero_ns + tally.last_end_ns,
            zero_ns=zero_ns,
            job_id=of_source.job_id,
            exe=of_source.exe,
            metadata=of_source.metadata,
        ),
        ranks=source.info.ranks,
        sources=sources or (as_source(source), *source.info.sources),
        lanes="recorded",
        # Only this pace writes batch fetches, and dependency columns refer to them.
        dependencies=source.info.dependencies if pacing.pace.follows_training else "inferred",
        warnings=result.warnings,
        partial=result.stopped,
        made_by=record.as_made_by(tally.stored),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats(Result):
    """The runs in order; a stopped run is the last."""

    runs: tuple[RunResult, ...]

    @property
    def succeeded(self) -> bool:
        return all(run.succeeded for run in self.runs)

    @property
    def elapsed_s(self) -> dict[str, float]:
        """`median`, `min` and `max` of the runs that count."""
        whole = [run.elapsed_s for run in self.runs if not run.stopped and not run.disturbed]
        found = whole or [run.elapsed_s for run in self.runs]
        return {"median": statistics.median(found), "min": min(found), "max": max(found)}

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay run --repeat N --json` prints; `runs` has the objects of single runs."""
        runs = [run.as_json() for run in self.runs]
        return {"repeats": len(runs), "elapsed_s": self.elapsed_s, "runs": runs}
