"""Makes the capture of each number of ranks, replays it on a target and measures it, until the capacity is found."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.profiler_merge.analysis.benchmark_figures import benchmark_figures
from dxt_replay.profiler_merge.analysis.loop import overlap
from dxt_replay.replay.capacity.result import MACHINE, MEMORY, NOTHING, STORAGE, LoadRun
from dxt_replay.replay.capacity.search import Search
from dxt_replay.replay.ranks.comm import Communicator, first_does
from dxt_replay.replay.run.result import WARM_PCT, RunResult
from dxt_replay.replay.target.targets import check_there
from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.measures.span_times import computed_in_loops, training_ns
from dxt_replay.traces.records import benchmark_run, percentiles_us
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.units import MIB, format_counted, ns_to_seconds

if TYPE_CHECKING:
    from dxt_replay.replay.run.process import Progress

BUSY_PCT = 90.0
"""Share of its processors from which on a replay is limited by them."""


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
        """Path of the capture with so many ranks."""
        return folder / f"{ranks}-ranks.capture"

    def of(self, ranks: int) -> Path:
        """The capture with so many ranks."""
        path = self.path(self.folder, ranks)
        if not path.exists():
            self.make(ranks, path)
        return path

    def utilisation_pct(self, replay: Capture, ranks: int) -> float:
        """Accelerator utilisation of a replay with so many ranks, per cent: of a benchmark by its own rule, else the
        recorded compute as a share of the replayed training loops. Raises: CaptureError when a part is damaged."""
        benchmark = benchmark_run(replay.info)
        figures = None if benchmark is None else benchmark_figures(overlap(replay).steps, benchmark)
        if figures is not None:
            return figures.utilisation_pct
        loops_ns = computed_in_loops(replay.spans)[1]
        return 100.0 * self.compute_ns * ranks / self.ranks / loops_ns if loops_ns else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """The public functions `stage`, `unstage` and `run`, which lie above this folder and are handed in.

    `below`: the target in a folder of a target (`replay.target.targets.place_below`).
    """

    stage: Callable[[Path, str | Path], object]
    unstage: Callable[[str | Path], object]
    run: Callable[..., RunResult]
    below: Callable[[str | Path, str], str | Path]


@dataclass(slots=True, kw_only=True)
class Measuring:
    """Replays loads on `target` and measures them. Collective.

    free_pct: utilisation on infinitely fast storage, %. in_memory: whether the target keeps its files in memory, or
    more than `WARM_PCT` of the data stayed in the page cache before a run.
    number: of the last run. place: where the last twin is.
    """

    loads: Loads
    target: str | Path
    actions: Actions
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
        load, place = first_does(self.comm, lambda: self._staged(ranks))
        output = self.loads.folder / f"run-{self.number}-{ranks}-ranks{'' if storage else '-no-io'}.capture"
        result = self.actions.run(
            load,
            place,
            output,
            cold=True,
            comm=self.comm,
            on_progress=self._labelled(ranks, storage=storage),
            pace="steps",
            api="auto" if storage else "null",
        )
        if result.stopped:
            raise ReplayError(f"the search was stopped in a run of {format_counted(ranks, 'rank')}: there is no answer")
        if not result.succeeded:
            raise ReplayError(
                f"operations of a run of {format_counted(ranks, 'rank')} failed or moved too few bytes, so it does not "
                "show what the storage carries. Keep the load with -o DIR, then name the operations: `dxt-replay run "
                f"DIR/{load.name} --target {shlex.quote(str(place))} --pace steps -o OUT.capture`"
            )
        found = first_does(self.comm, lambda: self._measured(output, result, ranks, storage=storage))
        warm = storage and (result.cache.resident_before_pct or 0.0) > WARM_PCT
        self.in_memory |= result.cache.keeps_pages or warm
        if warm and not result.cache.keeps_pages:
            self.warnings.append(
                f"{result.cache.resident_before_pct:.0f} % of the data stayed in the page cache before a run of "
                f"{format_counted(ranks, 'rank')}: another process may have the files mapped"
            )
        self.warnings += result.conditions
        return found

    def _staged(self, ranks: int) -> tuple[Path, str | Path]:
        """The load, and where its twin is. Loads with file names of their own cannot use each other's twin: each has a
        folder of its own, and the one before goes, to make room."""
        load, place = self.loads.of(ranks), self.target
        if self.loads.own_names:
            place = self.actions.below(self.target, f"{ranks}-ranks")
            if self.place is not None and self.place != place:
                self.actions.unstage(self.place)
            if isinstance(place, Path):
                check_there(self.target)
                place.mkdir(exist_ok=True)
        self.actions.stage(load, place)
        self.place = place
        return load, place

    def _labelled(self, ranks: int, *, storage: bool) -> Callable[[Progress], None] | None:
        report, label = self.on_progress, f"run {self.number}, {ranks} ranks{'' if storage else ' without I/O'}"
        return None if report is None else lambda progress: report(label, progress)

    def _measured(self, output: Path, result: RunResult, ranks: int, *, storage: bool) -> LoadRun:
        """The figures of a run, whose capture `output` is deleted."""
        replay, tally = open_capture(output), result.tally
        utilised, loop_ns = self.loads.utilisation_pct(replay, ranks), training_ns(replay.spans)
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
