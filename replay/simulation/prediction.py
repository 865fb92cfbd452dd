"""Predicts the duration of a job on a described storage, the use of its time, and its bottleneck."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.benchmark_figures import benchmark_figures
from dxt_replay.replay.causal.lane_events import EventLane, LaneTimes, Watch, run_lanes
from dxt_replay.replay.engine.items import MARK
from dxt_replay.replay.simulation._simulated_storage import SimulatedStorage
from dxt_replay.replay.simulation.agreement import Agreement
from dxt_replay.replay.simulation.simulated_job import TIME_CLASSES, SimulatedJob, StepTime, TimeSpent
from dxt_replay.replay.simulation.storage_model import StorageModel
from dxt_replay.replay.simulation.storage_use import KIND_NAMES, StorageUse
from dxt_replay.traces.units import NS_PER_US, ns_to_seconds

BUSY = 0.7
"""Share of the time from which on a queue that is busy holds a job up."""

PROGRESS_S = 0.2
"""Seconds between two reports of progress."""

FREE_PCT = 2.0
"""Per cent of the time that storage costs, up to which it does not limit a job."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One simulated run.

    training_ns: from the first step's begin to the last one's end. use: what the storage did, None without one.
    spent: where the time went. operations, items: how many were simulated. seconds: of processor time.
    """

    elapsed_ns: int
    training_ns: int
    use: StorageUse | None
    spent: Watch | None
    operations: int
    items: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUse:
    """How busy a limit is, or the slots of servers.

    each: what has one of its own, of SCOPES. instances: how many there are.
    busy_mean_pct, busy_max_pct: share of the time, mean of the instances and the busiest one.
    waited_s: how long all requests waited for it; None if it is not known.
    """

    name: str
    each: str
    instances: int
    busy_mean_pct: float
    busy_max_pct: float
    waited_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTotals:
    """Operations of one kind.

    bytes: moved by them. mean_us: mean time of one.
    requests, request_bytes: those that reached a server.
    """

    operations: int
    bytes: int
    mean_us: float
    requests: int
    request_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """Prediction for a job with a number of ranks on a storage.

    runs: with different seeds, then with all times of the storage shorter and longer by the model's uncertainty.
    free: with storage that takes no time. seeds: how many of `runs` differ in their seed alone.
    checked: a window of the job beside its replay, where it was checked.
    """

    job: SimulatedJob
    model: StorageModel
    ranks: int
    runs: Sequence[Run]
    seeds: int
    free: Run
    checked: Agreement | None = None

    @property
    def elapsed_ns(self) -> int:
        """The median of the runs that differ in their seed alone."""
        return int(np.median([run.elapsed_ns for run in self.runs[: self.seeds]]))

    @property
    def interval_ns(self) -> tuple[int, int]:
        """From the shortest to the longest run, with the error of the causal model; wider where a replayed window
        differs."""
        return self._interval([run.elapsed_ns for run in self.runs], self.free.elapsed_ns, 0)

    @property
    def training_ns(self) -> int:
        """As `elapsed_ns`, of the training loop: without what the program does before and after it."""
        return int(np.median([run.training_ns for run in self.runs[: self.seeds]]))

    @property
    def training_interval_ns(self) -> tuple[int, int]:
        """As `interval_ns`, of the training loop."""
        return self._interval([run.training_ns for run in self.runs], self.free.training_ns, 1)

    def _interval(self, times_ns: Sequence[int], free_ns: int, which: int) -> tuple[int, int]:
        recorded_ns = 0 if self.job.recorded_ns is None else self.job.recorded_ns[which]
        found = self.job.doubt.between(min(times_ns), max(times_ns), recorded_ns)
        return found if self.checked is None else self.checked.widened(found, free_ns)

    @property
    def storage_pct(self) -> float:
        """Per cent of the predicted time that infinitely fast storage would save."""
        return 100.0 * max(0, self.elapsed_ns - self.free.elapsed_ns) / max(self.elapsed_ns, 1)

    @property
    def utilisation_pct(self) -> float | None:
        """Accelerator utilisation: the recorded compute, per cent of the simulated training loops without evaluations,
        or by the rule of a benchmark; None without steps, or where the capture shows no compute."""
        if not self.job.compute_ns:
            return None
        in_steps = self._spent.spent_ns[:-1]
        of = dict(zip(TIME_CLASSES, in_steps.T, strict=True))
        lasted_ns = in_steps.sum(axis=1) - of["evaluation"]
        if self.job.benchmark is not None:
            columns = {"duration_ns": lasted_ns, "compute_ns": of["compute"], "input_wait_ns": of["input_wait"]}
            columns |= {"rank": 0 * lasted_ns, "step": self._spent.first_step + np.arange(len(lasted_ns))}
            columns |= {"start_ns": np.cumsum(lasted_ns) - lasted_ns, "checkpoint_ns": of["checkpoints"]}
            if (figures := benchmark_figures(pa.table(columns), self.job.benchmark)) is not None:
                return figures.utilisation_pct
        loops_ns = int(lasted_ns.sum())
        compute_ns = self.job.compute_ns * self.ranks / self.job.ranks
        return min(100.0 * compute_ns / loops_ns, 100.0) if loops_ns > 0 else None

    def as_json(self) -> dict[str, Any]:
        """The figures of the prediction, without the steps one by one."""
        return {
            "ranks": self.ranks,
            "nodes": self.model.nodes(self.ranks),
            "operations": self.job.operations_of(self.ranks),
            "elapsed_s": ns_to_seconds(self.elapsed_ns),
            "interval_s": [ns_to_seconds(limit) for limit in self.interval_ns],
            "training_s": ns_to_seconds(self.training_ns),
            "training_interval_s": [ns_to_seconds(limit) for limit in self.training_interval_ns],
            "check": None if self.checked is None else self.checked.as_json(),
            "runs": len(self.runs),
            "model_error_pct": self.job.doubt.error_pct,
            "free_storage_s": ns_to_seconds(self.free.elapsed_ns),
            "storage_limits_pct": self.storage_pct,
            "accelerator_utilisation_pct": self.utilisation_pct,
            "time_s": asdict(self.spent_s()),
            "bottleneck": self.bottleneck(),
            "resources": [asdict(each) for each in self.resources()],
            "requests": {
                "by_operation": {name: asdict(each) for name, each in self.requests().items()},
                "cache_hits": self.use.hits,
                "cache_hit_bytes": self.use.hit_bytes,
            },
            "simulated": {
                "operations": sum(run.operations for run in self.runs),
                "items": sum(run.items for run in self.runs),
                "seconds": sum(run.seconds for run in self.runs),
            },
        }

    @property
    def use(self) -> StorageUse:
        """Use of the storage in the first run."""
        use = self.runs[0].use
        assert use is not None  # only `free` has no storage
        return use

    @property
    def _spent(self) -> Watch:
        spent = self.runs[0].spent
        assert spent is not None  # only `free` is not watched
        return spent

    def spent_s(self) -> TimeSpent:
        """Where the time of a training thread goes in the first run, seconds."""
        totals = self._spent.spent_ns.sum(axis=0).tolist()
        return TimeSpent(
            **{name: ns_to_seconds(total) / self.ranks for name, total in zip(TIME_CLASSES, totals, strict=True)}
        )

    def steps(self) -> list[StepTime]:
        """The same step by step, without steps that take no time."""
        per_rank = self._spent.spent_ns[:-1] / 1e6 / self.ranks
        return [
            StepTime(step=self._spent.first_step + at, **dict(zip(TIME_CLASSES, row, strict=True)))
            for at, row in enumerate(per_rank.tolist())
            if any(row)
        ]

    def resources(self) -> list[ResourceUse]:
        """Use of each limit, and of each kind of servers with slots, in the first run."""
        use, elapsed, model = self.use, max(self.runs[0].elapsed_ns, 1), self.model
        waited_ns = (use.turn_ns + use.pipe_ns).tolist()
        found: list[tuple[str, str, np.ndarray, float | None]] = [
            (limit.name, limit.each, busy_ns / elapsed, waited / 1e9)
            for limit, busy_ns, waited in zip(model.limits, use.busy_ns, waited_ns, strict=True)
        ]
        if model.servers.slots:
            found.append(("slots of each server", "server", use.server_ns / (elapsed * model.servers.slots), None))
        if model.metadata.slots:
            busy = use.metadata_ns / (elapsed * model.metadata.slots)
            found.append(("slots of each metadata server", "metadata", busy, None))
        return [
            ResourceUse(
                name=name,
                each=each,
                instances=len(busy),
                busy_mean_pct=100.0 * float(busy.mean()),
                busy_max_pct=100.0 * float(busy.max()),
                waited_s=waited_s,
            )
            for name, each, busy, waited_s in found
        ]

    def bottleneck(self) -> str:
        """The bottleneck of the job, in words."""
        if self.storage_pct < FREE_PCT:
            return "not storage: with infinitely fast storage the run would take as long"
        busiest = max(self.resources(), key=lambda each: each.busy_max_pct, default=None)
        if busiest is not None and busiest.busy_max_pct >= 100 * BUSY:
            return f"{busiest.name}: busy {busiest.busy_max_pct:.0f} % of the time"
        total = float(self.use.operation_ns.sum())
        if total and float(self.use.operation_ns[2:].sum()) / total > 0.5:
            return "latency of metadata operations: no queue is busy, each operation takes its own time"
        return "latency of reads and writes: no queue is busy, each request takes its own time"

    def requests(self) -> dict[str, RequestTotals]:
        """Operations of the first run, by the name of their kind (KIND_NAMES)."""
        use = self.use
        return {
            name: RequestTotals(
                operations=int(use.operations[kind]),
                bytes=int(use.operation_bytes[kind]),
                mean_us=float(use.operation_ns[kind]) / NS_PER_US / int(use.operations[kind]),
                requests=int(use.requests[kind]),
                request_bytes=int(use.request_bytes[kind]),
            )
            for kind, name in enumerate(KIND_NAMES)
            if use.operations[kind]
        }


def _timed(lanes: Sequence[EventLane]) -> list[EventLane]:
    """The lanes, those of training threads with room for the times of their items."""
    return [replace(lane, times=LaneTimes.room(len(lane.items))) if lane.watched else lane for lane in lanes]


def _training_ns(lanes: Sequence[EventLane]) -> int:
    """From the first mark of a step to the last, over all ranks."""
    marks = [lane.times.begin_ns[lane.items["kind"] == MARK] for lane in lanes if lane.times is not None]
    marks = [found for found in marks if len(found)]
    return max(int(found.max()) for found in marks) - min(int(found.min()) for found in marks) if marks else 0


def _simulated(
    lanes: Sequence[EventLane], storage: SimulatedStorage | None, watch: Watch | None, served: np.ndarray
) -> Run:
    """Run the lanes once, with or without a storage. served: as of `run_lanes`."""
    began, timed = time.thread_time(), _timed(lanes)
    end_ns = run_lanes(timed, storage, watch, served)
    return Run(
        elapsed_ns=int(end_ns.max(initial=0)),
        training_ns=_training_ns(timed),
        use=None if storage is None else storage.use,
        spent=watch,
        operations=int(served[0]),
        items=sum(len(lane.items) for lane in lanes),
        seconds=time.thread_time() - began,
    )


def predict(
    job: SimulatedJob,
    model: StorageModel,
    *,
    ranks: int,
    seeds: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Prediction:
    """Simulate a job on a storage: with `seeds` seeds where the model has jitter, and at the limits of its uncertainty.

    The runs share nothing and go side by side; one run is serial, as its ranks share servers and meet at collectives.
    `on_progress` gets the simulated operations of all runs, and their number when all are done.
    Raises: ReplayError when lanes wait for each other in a circle.
    """
    lanes = job.lanes(ranks)
    first = 1 if model.jitter is None else model.jitter.seed
    chosen = [(first + number, 1.0) for number in range(seeds if model.jitter is not None else 1)]
    limits = [(first, 1.0 - model.uncertainty), (first, 1.0 + model.uncertainty)] if model.uncertainty else []

    served = np.zeros((1 + len(chosen) + len(limits), 1), dtype=np.int64)

    def run(seed: int, scale: float, served: np.ndarray) -> Run:
        storage = SimulatedStorage(model, ranks=ranks, file_bytes=job.file_bytes, seed=seed, scale=scale)
        return _simulated(lanes, storage, job.watch(), served)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        free = pool.submit(_simulated, lanes, None, None, served[0])
        runs = [pool.submit(run, *each, own) for each, own in zip((*chosen, *limits), served[1:], strict=True)]
        left: set[Future[Run]] = {free, *runs}
        while left:
            left = wait(left, timeout=PROGRESS_S).not_done
            if on_progress is not None:
                on_progress(int(served.sum()), len(served) * job.operations_of(ranks))
    return Prediction(
        job=job,
        model=model,
        ranks=ranks,
        runs=[each.result() for each in runs],
        seeds=len(chosen),
        free=free.result(),
    )
