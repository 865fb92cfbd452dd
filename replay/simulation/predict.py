"""Predicts the duration of a job on a described storage, the use of its time, and its bottleneck.

The lanes of the simulation are the very items that a replay with the pace `steps` issues.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.benchmark_figures import benchmark_figures
from dxt_replay.replay.causal.events import CODES, KINDS, EventLane, LaneTimes, Watch, run_lanes
from dxt_replay.replay.causal.items import Meetings, with_meetings
from dxt_replay.replay.causal.loop import CHECKPOINT, COLLECTIVE, ENTRY, EVALUATION, FETCH
from dxt_replay.replay.causal.model import unshown
from dxt_replay.replay.causal.ranks import RankItems, meetings_of
from dxt_replay.replay.causal.storage_limit import doubt_of_capture
from dxt_replay.replay.engine.items import (
    ADD,
    EVENT_ROW,
    MARK,
    NO_EVENT,
    OPERATION_ROW,
    READ_AT,
    SLEEP,
    gap,
    operation_rows,
    rows_of_arrays,
)
from dxt_replay.replay.plan.pacing import Pacing
from dxt_replay.replay.simulation._simulated_storage import SimulatedStorage
from dxt_replay.replay.simulation.check import Agreement, StepTime, TimeSpent
from dxt_replay.replay.simulation.model import KIND_NAMES, Client, StorageModel
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.measures.log_waits import longest_log_wait_ns
from dxt_replay.traces.measures.span_times import training_ns
from dxt_replay.traces.records import BenchmarkRun, benchmark_run
from dxt_replay.traces.schema import FORMATS, READ, codes
from dxt_replay.traces.storage_limit import Doubt
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_US, ns_to_seconds

BUSY = 0.7  # Share of the time from which on a queue that is busy holds a job up
FREE_PCT = 2.0  # Per cent of the time that storage costs, up to which it does not limit a job
PROGRESS_S = 0.2  # Seconds between two reports of progress
MAX_FILES = 1 << 31  # Files of a simulation: their numbers are int32
MAX_STEPS = 1 << 20  # Most steps that are counted one by one; what lies beyond counts as outside of steps

TIME_CLASSES = tuple(field.name for field in dataclasses.fields(TimeSpent))
"""The columns of `Watch.spent_ns`, in the order of the kinds of events below."""

CLIENT = 5  # Kind of the event in which a training thread does what the `client` of a storage model says
_CLASSES = {kind: at for at, kind in enumerate((NO_EVENT, FETCH, COLLECTIVE, CHECKPOINT, EVALUATION, ENTRY, CLIENT))}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedJob:
    """The lanes of the recorded ranks, from which those of any number of ranks are made.

    is_data: bool by file, whether it is no checkpoint.
    compute_ns: of the accelerators in the loops of all recorded ranks, at the speed of the simulation; 0 where the
    capture shows none. recorded_ns: of the capture and of its training loop without what the recording cost; None where
    the simulation changes compute. benchmark: the run of one, which has a rule of its own for the utilisation.
    """

    recorded: Sequence[RankItems]
    meetings: Meetings
    pacing: Pacing
    file_bytes: np.ndarray
    is_data: np.ndarray
    compute_ns: float
    warnings: tuple[str, ...]
    doubt: Doubt
    recorded_ns: tuple[int, int] | None = None
    benchmark: BenchmarkRun | None = None

    @property
    def ranks(self) -> int:
        """How many ranks were recorded."""
        return len(self.recorded)

    def operations_of(self, ranks: int) -> int:
        counts = [each.operations for each in self.recorded]
        whole, rest = divmod(ranks, len(counts))
        return whole * sum(counts) + sum(counts[:rest])

    def lanes(self, ranks: int, client: Client | None = None) -> list[EventLane]:
        """The lanes of `ranks` ranks. Rank i does what the recorded rank i modulo their number does.

        Each further set of ranks has files of its own, of the same sizes; all ranks meet at collectives.
        Raises: UsageError for more files than have numbers.
        """
        if -(-ranks // self.ranks) * len(self.file_bytes) >= MAX_FILES:
            raise UsageError(f"{ranks} ranks with files of their own have more than {MAX_FILES} files: simulate fewer")
        meetings, scripts = (
            dataclasses.replace(self.meetings, ranks=ranks),
            [each.script for each in self.recorded[:ranks]],
        )
        if client is not None:
            least_ns = np.int64(round(client.meeting_at(ranks)))
            meetings = dataclasses.replace(meetings, cost_ns=np.maximum(meetings.cost_ns, least_ns))
            scripts = [_with_client(each, round(client.step_ns)) for each in scripts]
        readers = [each.lanes for each in self.recorded[:ranks]]
        if client is not None and client.sample is not None:
            readers = [[self._with_samples(items, client) for items in each] for each in readers]
        scripts = [with_meetings(each, self.pacing, meetings) for each in scripts]
        lanes, shift = [], 0
        for place in range(ranks):
            copy, number = divmod(place, self.ranks)
            own: dict[str, Any] = {"counter_shift": shift, "file_shift": copy * len(self.file_bytes), "rank": place}
            lanes += [EventLane(items=items, **own) for items in readers[number]]
            lanes.append(EventLane(items=scripts[number], watched=True, **own))
            shift += self.recorded[number].counters
        return lanes

    def _with_samples(self, items: np.ndarray, client: Client) -> np.ndarray:
        """The items of a lane in which the processor time of its samples stands behind each read of them, with which it
        begins: as a read of no file, whose bytes are ns and whose offset is the number of the file. A read is a sample,
        or as many as a benchmark has a length of a record for."""
        reads = np.flatnonzero((items["kind"] == READ_AT) & (items.view(OPERATION_ROW)["length"] > 0))
        row = items.view(OPERATION_ROW)[reads]
        reads, row = reads[self.is_data[row["file_id"]]], row[self.is_data[row["file_id"]]]
        length = row["length"].astype(np.float64)
        record = length if self.benchmark is None else np.full(len(row), float(self.benchmark.record_bytes or 1))
        work_ns = np.rint(client.sample_ns(record) * length / record).astype(np.int64)
        nothing = np.zeros(len(row), dtype=np.int64)
        work = operation_rows(
            op=nothing + READ, api=0, origin=0, slot=nothing, file_id=nothing - 1, step=row["step"],
            offset=row["file_id"],
            length=work_ns,
        )  # fmt: skip
        return np.insert(items, reads + 1, work)

    def watch(self) -> Watch:
        """Counts where the time of the training threads goes, by step and TIME_CLASSES."""
        numbers = [each.notes.step_number for each in self.recorded if len(each.notes.step_number)]
        first = min((int(each.min()) for each in numbers), default=0)
        count = min(max((int(each.max()) for each in numbers), default=0) - first + 1, MAX_STEPS)
        class_of = np.zeros((KINDS, CODES), dtype=np.uint8)
        for event, number in _CLASSES.items():
            class_of[:, (event + 1) % CODES] = number
        spent = np.zeros((count + 1, len(TIME_CLASSES)), dtype=np.int64)
        return Watch(class_of=class_of, spent_ns=spent, first_step=first)


def _with_client(script: np.ndarray, step_ns: int) -> np.ndarray:
    """The script of a training thread that is held so long behind the last fetch of each step."""
    own = script.view(EVENT_ROW)
    fetched = np.flatnonzero((script["kind"] == ADD) & (own["event_kind"] == FETCH) & (script["step"] >= 0))
    last = fetched[np.append(np.diff(script["step"][fetched]) != 0, [True] * bool(len(fetched)))]
    place = {"event": own["event"][last], "event_kind": CLIENT, "step": script["step"][last]}
    held = rows_of_arrays(gap(kind=SLEEP, duration_ns=step_ns, **place), len(last))
    return np.insert(script, last + 1, held)


def simulated_job(capture: Capture, recorded: Sequence[RankItems], pacing: Pacing, compute_ns: int) -> SimulatedJob:
    """The job of a capture from the items of all its ranks. `compute_ns`: as recorded, of its accelerators."""
    notes = {rank: each.notes for rank, each in zip(capture.ranks, recorded, strict=True)}
    meetings, warnings = meetings_of(notes)
    speed, (begin_ns, end_ns) = pacing.compute_speed or pacing.speed, capture.time_span_ns
    cost_ns = longest_log_wait_ns(capture.info, capture.spans) or 0
    recorded_ns = end_ns - begin_ns - cost_ns, (training_ns(capture.spans) or 0) - cost_ns
    return SimulatedJob(
        recorded=recorded,
        meetings=meetings,
        pacing=pacing,
        file_bytes=capture.files.column("size").to_numpy().astype(np.int64),
        is_data=codes(capture.files, "format") != FORMATS.index("checkpoint"),
        compute_ns=compute_ns / speed,
        warnings=warnings,
        doubt=doubt_of_capture(capture, reasons=[each.doubt for each in notes.values()]),
        recorded_ns=recorded_ns if speed == 1.0 else None,
        benchmark=benchmark_run(capture.info),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One simulated run.

    training_ns: from the first step's begin to the last one's end. use: what the storage did (`SimulatedStorage.use`),
    and spent: where the time went; None without a storage. seconds: of processor time."""

    elapsed_ns: int
    training_ns: int
    use: Any
    spent: Watch | None
    items: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """How busy a limit is, or the slots of servers, per cent of the time: the mean instance, and the busiest one.
    waited_s: how long all requests waited for it; None if not known."""

    name: str
    each: str
    instances: int
    busy_mean_pct: float
    busy_max_pct: float
    waited_s: float | None


@dataclass(frozen=True, slots=True)
class RequestTotals:
    """Operations of one kind; `requests` and their bytes are those that reached a server."""

    operations: int
    bytes: int
    mean_us: float
    requests: int
    request_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """Prediction for a job with a number of ranks on a storage.

    runs: with different seeds (`seeds` of them), then with all times of the storage shorter and longer by the model's
    uncertainty. free: with storage that takes no time. checked: a window of the job beside its replay.
    """

    job: SimulatedJob
    model: StorageModel
    ranks: int
    runs: Sequence[Run]
    seeds: int
    free: Run
    checked: Agreement | None = None

    @property
    def doubt(self) -> Doubt:
        """How far this may be believed, on this storage."""
        reads, use = max((each.notes.unshown for each in self.job.recorded), default=0), self.use
        reading_ns = reads * float(use.operation_ns[0]) / max(int(use.operations[0]), 1)
        return self.job.doubt.doubted_for(unshown(reading_ns, self.training_ns, "would last up to"))

    @property
    def elapsed_ns(self) -> int:
        """The median of the runs that differ in their seed alone."""
        return int(np.median([run.elapsed_ns for run in self.runs[: self.seeds]]))

    @property
    def training_ns(self) -> int:
        """As `elapsed_ns`, of the training loop: without what the program does before and after it."""
        return int(np.median([run.training_ns for run in self.runs[: self.seeds]]))

    @property
    def interval_ns(self) -> tuple[int, int]:
        """From the shortest to the longest run, with the error of the causal model; wider where a replayed window
        differs."""
        return self._interval([run.elapsed_ns for run in self.runs], self.free.elapsed_ns, 0)

    @property
    def training_interval_ns(self) -> tuple[int, int]:
        """As `interval_ns`, of the training loop."""
        return self._interval([run.training_ns for run in self.runs], self.free.training_ns, 1)

    def _interval(self, times_ns: Sequence[int], free_ns: int, which: int) -> tuple[int, int]:
        recorded_ns = 0 if self.job.recorded_ns is None else self.job.recorded_ns[which]
        found = self.doubt.between(min(times_ns), max(times_ns), recorded_ns)
        return found if self.checked is None else self.checked.widened(found, free_ns)

    @property
    def storage_pct(self) -> float:
        """Per cent of the predicted time that infinitely fast storage would save."""
        return 100.0 * max(0, self.elapsed_ns - self.free.elapsed_ns) / max(self.elapsed_ns, 1)

    @property
    def use(self) -> Any:
        """Use of the storage in the first run."""
        return self.runs[0].use

    @property
    def _spent(self) -> Watch:
        spent = self.runs[0].spent
        assert spent is not None  # only `free` is not watched
        return spent

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
        runs = self.runs
        return {
            "ranks": self.ranks,
            "nodes": self.model.nodes(self.ranks),
            "operations": self.job.operations_of(self.ranks),
            "elapsed_s": ns_to_seconds(self.elapsed_ns),
            "interval_s": [ns_to_seconds(limit) for limit in self.interval_ns],
            "training_s": ns_to_seconds(self.training_ns),
            "training_interval_s": [ns_to_seconds(limit) for limit in self.training_interval_ns],
            "check": None if self.checked is None else self.checked.as_json(),
            "runs": len(runs),
            "model_error_pct": self.doubt.error_pct,
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
                "operations": len(runs) * self.job.operations_of(self.ranks),
                "items": sum(run.items for run in runs),
                "seconds": sum(run.seconds for run in runs),
            },
        }

    def spent_s(self) -> TimeSpent:
        """Where the time of a training thread goes in the first run, seconds."""
        totals = self._spent.spent_ns.sum(axis=0).tolist()
        return TimeSpent(*(ns_to_seconds(total) / self.ranks for total in totals))

    def steps(self) -> list[StepTime]:
        """The same step by step, without steps that take no time."""
        rows, first = (self._spent.spent_ns[:-1] / 1e6 / self.ranks).tolist(), self._spent.first_step
        return [StepTime(*row, step=first + at) for at, row in enumerate(rows) if any(row)]

    def resources(self) -> list[ResourceUse]:
        """Use of each limit in the first run, and of each kind of servers with slots."""
        use, elapsed, model = self.use, max(self.runs[0].elapsed_ns, 1), self.model
        waited_s = ((use.turn_ns + use.pipe_ns) / 1e9).tolist()
        found: list[tuple[str, str, np.ndarray, float | None]] = [
            (limit.name, limit.each, busy_ns / elapsed, waited)
            for limit, busy_ns, waited in zip(model.limits, use.busy_ns, waited_s, strict=True)
        ]
        for name, each, servers, busy_ns in (
            ("slots of each server", "server", model.servers, use.server_ns),
            ("slots of each metadata server", "metadata", model.metadata, use.metadata_ns),
        ):
            if servers.slots:
                found.append((name, each, busy_ns / (elapsed * servers.slots), None))
        return [
            ResourceUse(name, each, len(busy), 100.0 * float(busy.mean()), 100.0 * float(busy.max()), waited)
            for name, each, busy, waited in found
        ]

    def bottleneck(self) -> str:
        """The bottleneck of the job, in words."""
        if self.storage_pct < FREE_PCT:
            return "not storage: with infinitely fast storage the run would take as long"
        busy_pct, name = max(((each.busy_max_pct, each.name) for each in self.resources()), default=(0.0, ""))
        if busy_pct >= 100 * BUSY:
            return f"{name}: busy {busy_pct:.0f} % of the time"
        total = float(self.use.operation_ns.sum())
        if total and float(self.use.operation_ns[2:].sum()) / total > 0.5:
            return "latency of metadata operations: no queue is busy, each operation takes its own time"
        return "latency of reads and writes: no queue is busy, each request takes its own time"

    def requests(self) -> dict[str, RequestTotals]:
        """Operations of the first run, by the name of their kind."""
        use = self.use
        mean_us = use.operation_ns / NS_PER_US / np.maximum(use.operations, 1)
        columns = (use.operations, use.operation_bytes, mean_us, use.requests, use.request_bytes)
        kinds = [(kind, name) for kind, name in enumerate(KIND_NAMES) if use.operations[kind]]
        return {name: RequestTotals(*(each[kind].item() for each in columns)) for kind, name in kinds}


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
    lanes = job.lanes(ranks, model.client)
    first = 1 if model.jitter is None else model.jitter.seed
    seeds = 1 if model.jitter is None else seeds
    chosen = [(first + number, 1.0) for number in range(seeds)]
    if model.uncertainty:
        chosen += [(first, 1.0 - model.uncertainty), (first, 1.0 + model.uncertainty)]
    served = np.zeros((1 + len(chosen), 1), dtype=np.int64)

    def run(storage: SimulatedStorage | None, watch: Watch | None, served: np.ndarray) -> Run:
        began = time.thread_time()
        timed = [
            dataclasses.replace(lane, times=LaneTimes.room(len(lane.items))) if lane.watched else lane for lane in lanes
        ]
        end_ns = run_lanes(timed, storage, watch, served)
        marks = [lane.times.begin_ns[lane.items["kind"] == MARK] for lane in timed if lane.times is not None]
        marks = [found for found in marks if len(found)]
        return Run(
            elapsed_ns=int(end_ns.max(initial=0)),
            training_ns=max(int(each.max()) for each in marks) - min(int(each.min()) for each in marks) if marks else 0,
            use=None if storage is None else storage.use,
            spent=watch,
            items=sum(len(lane.items) for lane in timed),
            seconds=time.thread_time() - began,
        )

    def stored(seed: int, scale: float, served: np.ndarray) -> Run:
        storage = SimulatedStorage(model, ranks=ranks, file_bytes=job.file_bytes, seed=seed, scale=scale)
        return run(storage, job.watch(), served)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        # Readers need their processors on any storage.
        bare = StorageModel(name="free", client=model.client, ranks_per_node=model.ranks_per_node)
        samples = model.client is not None and model.client.sample is not None
        free = pool.submit(
            run, SimulatedStorage(bare, ranks=ranks, file_bytes=job.file_bytes) if samples else None, None, served[0]
        )
        runs = [pool.submit(stored, *each, own) for each, own in zip(chosen, served[1:], strict=True)]
        left: set[Future[Run]] = {free, *runs}
        while left:
            left = wait(left, timeout=PROGRESS_S).not_done
            if on_progress is not None:
                most = len(served) * job.operations_of(ranks)
                on_progress(min(int(served.sum()), most), most)
    found = [each.result() for each in runs]
    return Prediction(job=job, model=model, ranks=ranks, runs=found, seeds=seeds, free=free.result())


def read_times_ns(model: StorageModel, offsets: np.ndarray, size: int, file_bytes: int) -> np.ndarray:
    """int64 (n,): how long each read of `size` bytes of one file takes where it begins when the one before has ended,
    without jitter. offsets: int64 (n,)."""
    zeros = np.zeros(len(offsets), dtype=np.int64)
    rows = operation_rows(
        op=zeros + READ, api=0, origin=0, slot=zeros, file_id=zeros, step=0, offset=offsets, length=size
    )
    times = LaneTimes.room(len(rows))
    steady = msgspec.structs.replace(model, jitter=None)
    run_lanes(
        [EventLane(items=rows, times=times)], SimulatedStorage(steady, ranks=1, file_bytes=np.array([file_bytes]))
    )
    return np.diff(times.end_ns, prepend=0)
