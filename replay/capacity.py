"""How many ranks a storage carries: a search over replays.

The utilisation falls as ranks are added. So bisection finds the largest number that keeps it above the limit, and two
more runs at both sides of the border, after all others, show whether the machine drifted meanwhile.
"""

from __future__ import annotations

import math
import shlex
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.profiler_merge.analysis.benchmark_figures import benchmark_figures
from dxt_replay.profiler_merge.analysis.loop import overlap
from dxt_replay.replay.ranks.mpi import Communicator, first_does
from dxt_replay.replay.run.result import WARM_PCT, RunResult
from dxt_replay.replay.target.targets import check_there, place_below
from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.measures.span_times import computed_in_loops, training_ns
from dxt_replay.traces.plain import Result, plain
from dxt_replay.traces.records import benchmark_run, percentiles_us
from dxt_replay.traces.storage_limit import NO_DOUBT, Doubt
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.units import MIB, format_counted, ns_to_seconds

if TYPE_CHECKING:
    from dxt_replay.replay.run.feeder import Progress

BUSY_PCT = 90.0
"""Share of its processors from which on a replay is limited by them."""

STORAGE, MACHINE, NOTHING, MEMORY = "storage", "machine", "nothing", "memory"
"""What limits the number of ranks: the storage; the machine that replays; nothing up to the most that were tried; or
unknown, because files were in memory before a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """One replay with a number of ranks; `schemas/capacity.json` explains it."""

    ranks: int
    utilisation_pct: float
    training_s: float | None
    mib_s: float
    latency_us: Mapping[str, float] | None
    processors_pct: float | None
    storage: bool = True
    samples_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """Accelerator utilisation of a number of ranks on a storage model, in per cent."""

    ranks: int
    utilisation_pct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(Result):
    """The number of ranks that keep their accelerators busy on a storage; `schemas/capacity.json` explains it.
    `limited_by`: STORAGE, MACHINE, NOTHING or MEMORY."""

    capture: Path
    target: str | Path
    limit_pct: float
    most: int
    ranks: int
    interval: tuple[int, int]
    limited_by: str
    free_utilisation_pct: float
    simulated_ranks: int | None
    simulated: Sequence[SimulatedRun]
    runs: Sequence[LoadRun]
    warnings: tuple[str, ...] = ()
    doubt: Doubt = NO_DOUBT

    def as_json(self) -> dict[str, Any]:
        return dict(plain(self))


@dataclass(slots=True, kw_only=True)
class Search:
    """The tries of a search between 1 and `most` ranks.

    limit_pct: least utilisation that passes. guess: number of ranks to begin with.
    tried: by number of ranks, the utilisation of each run there, in per cent.

    It takes one run at the guess, ceil(log2(most + 1)) to bisect and two to confirm; a border that moves meanwhile ends
    the search there, with an interval.
    """

    limit_pct: float
    most: int
    guess: int = 1
    tried: dict[int, list[float]] = field(default_factory=dict)

    def put(self, ranks: int, utilisation_pct: float) -> None:
        self.tried.setdefault(ranks, []).append(utilisation_pct)

    def next_ranks(self) -> int | None:
        """Number of ranks of the next run; None once the border lies between two neighbours and both were confirmed."""
        if sum(map(len, self.tried.values())) >= math.ceil(math.log2(self.most + 1)) + 3:
            return None
        if not self.tried:
            return min(max(self.guess, 1), self.most)
        passes = [ranks for ranks, each in self.tried.items() if statistics.median(each) >= self.limit_pct]
        passed = max(passes, default=0)
        failed = min((ranks for ranks in self.tried if ranks > passed), default=self.most + 1)
        if failed - passed > 1:
            return (passed + failed) // 2
        # The higher number first: in A B ... B A the drift of the machine acts on both alike.
        return next((ranks for ranks in (failed, passed) if len(self.tried.get(ranks, ())) == 1), None)

    @property
    def sustained(self) -> int:
        """The most ranks at which, and below which, every run passed; 0 if none did."""
        return max(takewhile(lambda ranks: min(self.tried[ranks]) >= self.limit_pct, sorted(self.tried)), default=0)

    @property
    def failing(self) -> int | None:
        """The fewest ranks at which, and above which, every run failed; None if none did."""
        from_above = sorted(self.tried, reverse=True)
        return min(takewhile(lambda ranks: max(self.tried[ranks]) < self.limit_pct, from_above), default=None)

    @property
    def interval(self) -> tuple[int, int]:
        """The capacity lies between these numbers, both included; the upper one is `most` if no number failed."""
        failing = self.failing
        return self.sustained, self.most if failing is None else max(failing - 1, self.sustained)


def largest_that_passes(most: int, passes: Callable[[int], bool]) -> int:
    """The largest number from 1 to `most` for which the function `passes`, which is true up to some number; else 0."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """The captures in `folder`, by number of ranks. Each is made when it is first needed.

    make: writes the capture with a number of ranks to a path.
    ranks, compute_ns: of the recorded capture, or of one rank of a workload; compute is the sum over the ranks.
    own_names: the file names of a load depend on its number of ranks. Copies of a recorded rank keep their names, so
    a larger load stages only the additional files.
    """

    folder: Path
    make: Callable[[int, Path], object]
    ranks: int
    compute_ns: int
    own_names: bool

    @staticmethod
    def path(folder: Path, ranks: int) -> Path:
        return folder / f"{ranks}-ranks.capture"

    def of(self, ranks: int) -> Path:
        path = self.path(self.folder, ranks)
        if not path.exists():
            self.make(ranks, path)
        return path

    def carried(self, replay: Capture, ranks: int) -> tuple[float, float | None]:
        """`LoadRun.utilisation_pct` and `samples_per_s` of a replay with so many ranks; without a benchmark's own rule,
        the recorded compute as a share of the replayed training loops. Raises: CaptureError when a part is damaged."""
        benchmark = benchmark_run(replay.info)
        figures = None if benchmark is None else benchmark_figures(overlap(replay).steps, benchmark)
        if figures is not None:
            return figures.utilisation_pct, figures.samples_per_s
        loops_ns = computed_in_loops(replay.spans)[1]
        return 100.0 * self.compute_ns * ranks / self.ranks / loops_ns if loops_ns else 0.0, None


@dataclass(slots=True, kw_only=True)
class Measuring:
    """Replays loads on `target` and measures them. Collective.

    stage, unstage, run: the public functions, which lie above this module.
    free_pct: utilisation on infinitely fast storage, %. in_memory: whether the target keeps its files in memory, or
    more than `WARM_PCT` of the data stayed in the page cache before a run.
    number: of the last run. place: where the last twin is.
    """

    loads: Loads
    target: str | Path
    stage: Callable[[Path, str | Path], object]
    unstage: Callable[[str | Path], object]
    run: Callable[..., RunResult]
    comm: Communicator
    free_pct: float
    on_progress: Callable[[str, Progress], None] | None = None
    warnings: list[str] = field(default_factory=list)
    in_memory: bool = False
    number: int = 0
    place: str | Path | None = None

    def __call__(self, ranks: int, *, storage: bool = True) -> LoadRun:
        """Run with a number of ranks; without I/O if not `storage`. Raises: ReplayError for a run that failed."""
        self.number += 1
        counted, without = format_counted(ranks, "rank"), "" if storage else "-no-io"
        load, place = first_does(self.comm, lambda: self._staged(ranks))
        output = self.loads.folder / f"run-{self.number}-{ranks}-ranks{without}.capture"
        report, label = self.on_progress, f"run {self.number}, {ranks} ranks{' without I/O' if without else ''}"
        result = self.run(
            load,
            place,
            output,
            cold=True,
            comm=self.comm,
            on_progress=None if report is None else lambda progress: report(label, progress),
            pace="steps",
            api="auto" if storage else "null",
        )
        if result.stopped:
            raise ReplayError(f"the search was stopped in a run of {counted}: there is no answer")
        if not result.succeeded:
            raise ReplayError(
                f"operations of a run of {counted} failed or moved too few bytes, so it does not show what the storage "
                "carries. Keep the load with -o DIR, then name the operations: `dxt-replay run "
                f"DIR/{load.name} --target {shlex.quote(str(place))} --pace steps -o OUT.capture`"
            )
        found = first_does(self.comm, lambda: self._measured(output, result, ranks, storage=storage))
        warm = storage and (result.resident_before_pct or 0.0) > WARM_PCT
        self.in_memory |= result.tally.keeps_pages or warm
        if warm and not result.tally.keeps_pages:
            self.warnings.append(
                f"{result.resident_before_pct:.0f} % of the data stayed in the page cache before a run of "
                f"{counted}: another process may have the files mapped"
            )
        self.warnings += result.conditions
        return found

    def _staged(self, ranks: int) -> tuple[Path, str | Path]:
        """The load, and where its twin is. Loads with file names of their own cannot use each other's twin: each has a
        folder of its own, and the one before goes, to make room."""
        load, place = self.loads.of(ranks), self.target
        if self.loads.own_names:
            place = place_below(self.target, f"{ranks}-ranks")
            if self.place is not None and self.place != place:
                self.unstage(self.place)
            if isinstance(place, Path):
                check_there(self.target)
                place.mkdir(exist_ok=True)
        self.stage(load, place)
        self.place = place
        return load, place

    def _measured(self, output: Path, result: RunResult, ranks: int, *, storage: bool) -> LoadRun:
        replay, tally = open_capture(output), result.tally
        (utilised, samples_per_s), loop_ns = self.loads.carried(replay, ranks), training_ns(replay.spans)
        shutil.rmtree(output, ignore_errors=True)
        moved, elapsed_s = (tally.bytes_read + tally.bytes_written) / MIB, ns_to_seconds(tally.last_end_ns)
        return LoadRun(
            ranks=ranks,
            utilisation_pct=utilised,
            training_s=None if loop_ns is None else ns_to_seconds(loop_ns),
            mib_s=moved / elapsed_s if elapsed_s else 0.0,
            latency_us=percentiles_us(tally.latency_ns),
            processors_pct=result.processors_pct,
            storage=storage,
            samples_per_s=samples_per_s,
        )


def searched(search: Search, measure: Measuring, runs: list[LoadRun]) -> str:
    """Run the search to its end, and append its runs to `runs`. Returns the limit of the number of ranks: STORAGE,
    MACHINE, NOTHING or MEMORY."""
    while (ranks := search.next_ranks()) is not None:
        runs.append(measure(ranks))
        search.put(ranks, runs[-1].utilisation_pct)
    if measure.in_memory:
        return MEMORY
    if search.failing is None:
        return NOTHING
    # What system calls, copies and requests to object stores cost, a run without I/O does not show.
    busy = [run.processors_pct or 0.0 for run in runs if run.ranks == search.failing and run.storage]
    if min(busy) >= BUSY_PCT:
        return MACHINE
    # The same load without I/O. If it too misses the limit, or causes most of the loss, then the machine that
    # replays is the limit, and the storage was not measured.
    runs.append(measure(search.failing, storage=False))
    without, lost = runs[-1].utilisation_pct, max(search.tried[search.failing])
    held_up = without < search.limit_pct or measure.free_pct - without > (measure.free_pct - lost) / 2
    return MACHINE if held_up else STORAGE
