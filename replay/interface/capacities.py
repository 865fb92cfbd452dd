"""Finds how many accelerators a storage carries."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.captures import CaptureOrPath, named, opened
from dxt_replay.replay.interface.generating import generate
from dxt_replay.replay.interface.merging import PathLike
from dxt_replay.replay.interface.replays import check_profiled, run, stage, unstage
from dxt_replay.replay.interface.simulations import simulate
from dxt_replay.replay.interface.transforming import transform
from dxt_replay.traces.errors import ReplayError, TargetError, UsageError
from dxt_replay.traces.units import format_counted

if TYPE_CHECKING:
    from dxt_replay.replay.capacity.search import Search
    from dxt_replay.replay.ranks.comm import Communicator
    from dxt_replay.replay.run.process import Progress
    from dxt_replay.traces.store.reader import Capture

STORAGE, MACHINE, NOTHING, MEMORY = "storage", "machine", "nothing", "memory"
"""What limits the number of ranks: the storage; the machine that replays; nothing up to the most that were tried; or
unknown, because the files lie in memory."""

WARM_PCT = 5.0
"""Share of the data in the page cache before a run, in per cent, from which on the run says little of the storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """One replay with a number of ranks.

    utilisation_pct: accelerator utilisation, for a benchmark by its own rule. training_s: of the training loop.
    mib_s: bytes read and written, over the whole replay. latency_us: of all operations, by percentile.
    processors_pct: share of the machine's processor time that the replay took. storage: False for a run without I/O.
    """

    ranks: int
    utilisation_pct: float
    training_s: float | None
    mib_s: float
    latency_us: dict[str, float] | None
    processors_pct: float | None
    storage: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The number of ranks that keep their accelerators busy on a storage.

    ranks: the largest number up to which every run reached `limit_pct`. interval: the bounds of `ranks`, both
    included; they differ if runs contradict each other. limited_by: STORAGE, MACHINE, NOTHING or MEMORY.
    free_pct: utilisation on infinitely fast storage. simulated: (ranks, utilisation) of a storage model, if one was
    given; `simulated_ranks` what it predicts. runs: in their order; empty for a dry run.
    """

    capture: Path
    target: Path | None
    limit_pct: float
    most: int
    strong: bool
    ranks: int | None
    interval: tuple[int, int] | None
    limited_by: str | None
    free_pct: float
    simulated_ranks: int | None
    simulated: Sequence[tuple[int, float]]
    runs: Sequence[LoadRun]
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay capacity --json` prints."""
        return {
            "capture": str(self.capture),
            "target": None if self.target is None else str(self.target),
            "limit_pct": self.limit_pct,
            "most": self.most,
            "scaling": "strong" if self.strong else "weak",
            "ranks": self.ranks,
            "interval": None if self.interval is None else list(self.interval),
            "limited_by": self.limited_by,
            "free_utilisation_pct": self.free_pct,
            "simulated_ranks": self.simulated_ranks,
            "simulated": [{"ranks": ranks, "utilisation_pct": found} for ranks, found in self.simulated],
            "runs": [asdict(each) for each in self.runs],
            "warnings": list(self.warnings),
        }


def capacity(
    capture: CaptureOrPath | str,
    target: PathLike | None,
    *,
    utilisation_pct: float = 90.0,
    most: int = 32,
    strong: bool = False,
    storage: str | Path | None = None,
    dry_run: bool = False,
    overrides: Sequence[str] = (),
    output: PathLike | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
    comm: Communicator | None = None,
) -> Capacity:
    """The largest number of ranks, up to `most`, whose accelerators are used `utilisation_pct` or more on `target`.

    `capture`: of a training with steps, or the name or file of a workload, with `overrides` of its keys. Each rank is
    a copy of a recorded one with files of its own; with `strong`, the recorded work is shared among the ranks instead.
    The twins are staged in `target` and stay there. Each run begins with a cold page cache. `storage`: a storage model,
    from which the search starts; with `dry_run` its prediction alone is returned. `output`: a folder for the captures,
    which are deleted otherwise, empty or not there yet; processes of several nodes need one.

        dxt_replay.capacity("run.capture", "/lustre/me/twin").ranks

    Raises: UsageError for a capture without steps or compute, and where no storage could reach the utilisation;
    TargetError if a twin does not fit or `output` is not empty; ReplayError if operations of a run fail, or it
    is stopped.
    """
    from dxt_replay.replay.capacity.search import Search, largest_that_passes
    from dxt_replay.replay.ranks.comm import first_does
    from dxt_replay.replay.ranks.mpi_world import connect
    from dxt_replay.replay.regression.experiment import output_folder

    if not 0 < utilisation_pct < 100 or not 1 <= most <= 1 << 16:
        raise UsageError("--utilisation lies between 0 and 100, and --most between 1 and 65536")
    if (dry_run and storage is None) or (not dry_run and target is None):
        raise UsageError("give --target DIR to measure, or --storage MODEL with --dry-run to simulate alone")
    comm = comm or connect()
    keep = None if output is None else Path(output)
    first_does(comm, lambda: _check_empty(keep))
    with output_folder(keep, comm, "capacity") as folder:
        loads = _Loads(capture, tuple(overrides), folder, strong=strong)
        first = first_does(comm, loads.first)
        free_pct = first_does(comm, lambda: _free_pct(first, loads.name, utilisation_pct))
        simulated: dict[int, float] = {}
        guess = None
        if storage is not None:

            def passes(ranks: int) -> bool:
                simulated[ranks] = _simulated_pct(loads, first, storage, ranks)
                return simulated[ranks] >= utilisation_pct

            guess = first_does(comm, lambda: largest_that_passes(most, passes))
        search = Search(limit_pct=utilisation_pct, most=most, guess=loads.recorded(first) if guess is None else guess)
        runs: list[LoadRun] = []
        warnings: list[str] = []
        limited_by = None
        if not dry_run:
            assert target is not None
            measure = _Measuring(loads, Path(target), comm, on_progress, warnings, free_pct)
            limited_by = _searched(search, measure, runs)
        return Capacity(
            capture=loads.name,
            target=None if target is None else Path(target),
            limit_pct=utilisation_pct,
            most=most,
            strong=strong,
            ranks=None if dry_run else search.sustained,
            interval=None if dry_run else search.interval,
            limited_by=limited_by,
            free_pct=free_pct,
            simulated_ranks=guess,
            simulated=sorted(simulated.items()),
            runs=runs,
            warnings=tuple(dict.fromkeys(warnings)),
        )


class _Loads:
    """The captures for each number of ranks, made on demand.

    Copies of a recorded rank have the same file names for every number of ranks, so a larger load of a capture stages
    only the additional files.
    """

    def __init__(self, source: CaptureOrPath | str, overrides: tuple[str, ...], folder: Path, *, strong: bool) -> None:
        self.source, self.overrides, self.folder, self.strong = source, overrides, folder, strong
        self.workload = isinstance(source, (str, Path)) and not Path(source).is_dir() and _is_workload(str(source))
        self.name = Path(str(source)) if self.workload else named(source)
        self.made: dict[int, Path] = {}
        if overrides and not self.workload:
            raise UsageError(f"{self.name} is a capture: KEY=VALUE is for workloads")

    def first(self) -> CaptureOrPath:
        """The smallest load: the recorded ranks, or one rank of a workload."""
        if self.workload:
            return self.of(1)
        check_profiled(self.source)
        return self.source

    def recorded(self, first: CaptureOrPath) -> int:
        """The number of ranks in the capture itself."""
        with opened(first) as capture:
            return len(capture.ranks)

    def utilisation_pct(self, replay: Capture, ranks: int) -> float:
        """Accelerator utilisation of a replay with so many ranks, per cent: of a benchmark by its own rule, else the
        recorded compute as a share of the replayed training loops. Raises: CaptureError when a part is damaged."""
        from dxt_replay.profiler_merge.analysis.benchmark_figures import benchmark_figures
        from dxt_replay.profiler_merge.analysis.overlap import overlap
        from dxt_replay.traces.benchmark_run import benchmark_run
        from dxt_replay.traces.measures.span_times import computed_in_loops

        benchmark = benchmark_run(replay.info)
        figures = None if benchmark is None else benchmark_figures(overlap(replay).steps, benchmark)
        if figures is not None:
            return figures.utilisation_pct
        with opened(self.first()) as source:
            recorded_ns, copies = computed_in_loops(source.spans)[0], ranks / len(source.ranks)
        loops_ns = computed_in_loops(replay.spans)[1]
        return 100.0 * recorded_ns * (1.0 if self.strong else copies) / loops_ns if loops_ns else 0.0

    def of(self, ranks: int) -> Path:
        """The capture with so many ranks. Raises: UsageError where the work cannot be shared among them."""
        if ranks not in self.made:
            path = self.folder / f"{ranks}-ranks.capture"
            if self.workload:
                generate(str(self.source), ranks, path, overrides=self._scaled(ranks))
            else:
                transform(self.source, path, ranks=ranks, weak=not self.strong)
            self.made[ranks] = path
        return self.made[ranks]

    def _scaled(self, ranks: int) -> list[str]:
        """The overrides with the files multiplied by the ranks, so that each rank has as much work as one alone."""
        if self.strong:
            return list(self.overrides)
        from dxt_replay.workloads.workload_source import read_workload

        files = read_workload(Path(str(self.source)), self.overrides, None).workload.dataset.num_files_train
        return [*self.overrides, f"dataset.num_files_train={files * ranks}"]


def _check_empty(folder: Path | None) -> None:
    """Raises: TargetError where `folder` holds anything, such as the captures of another search."""
    try:
        if folder is not None and any(folder.iterdir()):
            raise TargetError(f"{folder} is not empty: give a directory that is empty or does not exist")
    except FileNotFoundError:
        return
    except OSError as error:
        raise TargetError(f"cannot keep captures in {folder}: {error.strerror}") from error


def _is_workload(name: str) -> bool:
    from dxt_replay.replay.interface.generating import workloads

    return name.endswith((".yaml", ".yml")) or any(each.name == name for each in workloads())


def _free_pct(first: CaptureOrPath, name: Path, limit_pct: float) -> float:
    """Utilisation on infinitely fast storage. Raises: UsageError if it is unknown or below the limit."""
    found = simulate(first, "null", runs=1).prediction.utilisation_pct
    if found is None:
        raise UsageError(
            f"{name} shows no compute, so its accelerator utilisation is not known: merge it with a profile"
        )
    if found < limit_pct:
        raise UsageError(
            f"on infinitely fast storage the accelerators of {name} would be used {found:.1f} %: no storage reaches "
            f"{limit_pct:g} %. Storage is not the limit; --utilisation {found * 0.95:.0f} asks for less"
        )
    return found


def _simulated_pct(loads: _Loads, first: CaptureOrPath, storage: str | Path, ranks: int) -> float:
    """Utilisation of a number of ranks on a storage model, per cent."""
    if loads.workload:
        return simulate(loads.of(ranks), storage, runs=1).prediction.utilisation_pct or 0.0
    found = simulate(first, storage, ranks=[ranks], strong=loads.strong, runs=1).scaling[0]
    return found.utilisation_pct or 0.0


class _Measuring:
    """Replays a load on the target and measures it. Collective."""

    def __init__(
        self,
        loads: _Loads,
        target: Path,
        comm: Communicator,
        on_progress: Callable[[str, Progress], None] | None,
        warnings: list[str],
        free_pct: float,
    ) -> None:
        self.free_pct = free_pct
        self.loads, self.target, self.comm = loads, target, comm
        self.on_progress, self.warnings = on_progress, warnings
        self.in_memory, self.number = False, 0
        self.place: Path | None = None

    def __call__(self, ranks: int, *, storage: bool = True) -> LoadRun:
        """Run with a number of ranks; without I/O if not `storage`."""
        from dxt_replay.replay.ranks.comm import first_does

        self.number += 1
        load, place = first_does(self.comm, lambda: self._staged(ranks))
        output = self.loads.folder / f"run-{self.number}-{ranks}-ranks{'' if storage else '-no-io'}.capture"
        result = run(
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
                f"DIR/{load.name} --target {place} --pace steps -o OUT.capture`"
            )
        self.in_memory |= result.cache.keeps_pages
        found = first_does(self.comm, lambda: _measured(self.loads, output, result.as_json(), ranks, storage=storage))
        if storage and (result.cache.resident_before_pct or 0.0) > WARM_PCT:
            self.warnings.append(
                f"{result.cache.resident_before_pct:.0f} % of the data were in the page cache before a run of {ranks} "
                "ranks: the storage may carry less"
            )
        self.warnings += result.conditions
        return found

    def _staged(self, ranks: int) -> tuple[Path, Path]:
        """The load, and where its twin is. DLIO's file names hold the number of files, so no load of a workload can use
        the twin of another: it has a folder of its own, and the one before goes, to make room."""
        load, place = self.loads.of(ranks), self.target
        if self.loads.workload:
            place = self.target / f"{ranks}-ranks"
            if self.place not in (None, place):
                unstage(self.place)
        stage(load, place)
        self.place = place
        return load, place

    def _labelled(self, ranks: int, *, storage: bool) -> Callable[[Progress], None] | None:
        report, label = self.on_progress, f"run {self.number}, {ranks} ranks{'' if storage else ' without I/O'}"
        return None if report is None else lambda progress: report(label, progress)


def _measured(loads: _Loads, output: Path, result: dict[str, Any], ranks: int, *, storage: bool) -> LoadRun:
    from dxt_replay.traces.measures.span_times import training_ns
    from dxt_replay.traces.units import ns_to_seconds

    with opened(output) as replay:
        utilised, loop_ns = loads.utilisation_pct(replay, ranks), training_ns(replay.spans)
    shutil.rmtree(output, ignore_errors=True)
    moved = (result["bytes"]["read"] + result["bytes"]["written"]) / (1 << 20)
    return LoadRun(
        ranks=ranks,
        utilisation_pct=utilised,
        training_s=None if loop_ns is None else ns_to_seconds(loop_ns),
        mib_s=moved / result["elapsed_s"] if result["elapsed_s"] else 0.0,
        latency_us=result["latency_us"],
        processors_pct=result["processors_pct"],
        storage=storage,
    )


def _searched(search: Search, measure: _Measuring, runs: list[LoadRun]) -> str:
    """Run the search to its end. Returns what limits the number of ranks."""
    while (ranks := search.next_ranks()) is not None:
        runs.append(measure(ranks))
        search.put(ranks, runs[-1].utilisation_pct)
    if measure.in_memory:
        return MEMORY
    if search.failing is None:
        return NOTHING
    # The same load without I/O. If it too misses the limit, or causes most of the loss, then the machine that
    # replays is the limit, and the storage was not measured.
    runs.append(measure(search.failing, storage=False))
    without, lost = runs[-1].utilisation_pct, max(search.tried[search.failing])
    held_up = without < search.limit_pct or measure.free_pct - without > (measure.free_pct - lost) / 2
    return MACHINE if held_up else STORAGE
