"""Finds how many accelerators a storage carries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.interface.captures import CaptureOrPath, named, opened
from dxt_replay.replay.interface.generating import generate, workloads
from dxt_replay.replay.interface.replays import check_profiled, run, stage, unstage
from dxt_replay.replay.interface.simulations import simulate
from dxt_replay.replay.interface.transforming import transform
from dxt_replay.replay.options.choices import CapacityChoices, PathLike
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.errors import TargetError, UsageError
from dxt_replay.traces.storage_limit import Doubt

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.replay.capacity import Capacity, LoadRun, Loads
    from dxt_replay.replay.ranks.mpi import Communicator
    from dxt_replay.replay.run.feeder import Progress


@takes(CapacityChoices)
def capacity(
    capture: CaptureOrPath | str,
    target: PathLike,
    *,
    on_progress: Callable[[str, Progress], None] | None = None,
    comm: Communicator | None = None,
    **choices: Unpack[CapacityChoices],
) -> Capacity:
    """The largest number of ranks, up to `most`, whose accelerators are used `utilisation_pct` or more on `target`.

    `capture`: of a training with steps, or the name or file of a workload, with `overrides` of its keys. Each rank is a
    copy of a recorded one with files of its own. The twins are staged in `target` and stay there. Each run begins with
    a cold page cache. `output` is empty or not there yet; processes of several nodes need one.

        dxt_replay.capacity("run.capture", "/lustre/me/twin").ranks

    Raises: UsageError for a capture without steps or compute, and where no storage could reach the utilisation;
    TargetError if a twin does not fit or `output` is not empty; ReplayError if operations of a run fail, or it
    is stopped.
    """
    from dxt_replay.replay.capacity import (
        Actions,
        Capacity,
        Measuring,
        Search,
        SimulatedRun,
        largest_that_passes,
        searched,
    )
    from dxt_replay.replay.ranks.mpi import connect, first_does
    from dxt_replay.replay.regress.experiment import output_folder
    from dxt_replay.replay.target.targets import place_below, target_named
    from dxt_replay.traces.measures.span_times import copies_alike

    chosen = filled(CapacityChoices, choices)
    limit_pct, most, storage, output = (chosen[name] for name in ("utilisation_pct", "most", "storage", "output"))
    place = target_named(target)
    comm = comm or connect()
    keep, name = None if output is None else Path(output), named(capture)
    first_does(comm, lambda: _check_empty(keep))
    with output_folder(keep, comm, "capacity") as folder:
        first, loads = first_does(comm, lambda: _loads(capture, tuple(chosen["overrides"]), folder))
        free_pct, doubt = first_does(comm, lambda: _free_pct(first, name, limit_pct))
        simulated: list[SimulatedRun] = []
        guess = None
        if storage is not None:

            def passes(ranks: int) -> bool:
                found_pct = _simulated_pct(loads, first, storage, ranks)
                simulated.append(SimulatedRun(ranks=ranks, utilisation_pct=found_pct))
                return found_pct >= limit_pct

            guess = first_does(comm, lambda: largest_that_passes(most, passes))
        search = Search(limit_pct=limit_pct, most=most, guess=loads.ranks if guess is None else guess)
        runs: list[LoadRun] = []
        warnings: list[str] = []
        measure = Measuring(
            loads=loads,
            target=place,
            actions=Actions(stage=stage, unstage=unstage, run=run, below=place_below),
            comm=comm,
            free_pct=free_pct,
            on_progress=on_progress,
            warnings=warnings,
        )
        limited_by = searched(search, measure, runs)
        if not loads.own_names:
            with opened(first) as source:
                warnings += copies_alike(source.spans, search.interval[1])
    return Capacity(
        capture=name,
        target=place,
        limit_pct=limit_pct,
        most=most,
        ranks=search.sustained,
        interval=search.interval,
        limited_by=limited_by,
        free_utilisation_pct=free_pct,
        simulated_ranks=guess,
        simulated=sorted(simulated, key=lambda each: each.ranks),
        runs=runs,
        warnings=tuple(dict.fromkeys(warnings)),
        doubt=doubt,
    )


def _loads(source: CaptureOrPath | str, overrides: tuple[str, ...], folder: Path) -> tuple[CaptureOrPath, Loads]:
    """The smallest load (the recorded ranks, or one rank of a workload), and those of other numbers of ranks."""
    from dxt_replay.replay.capacity import Loads
    from dxt_replay.traces.measures.span_times import computed_in_loops

    workload = isinstance(source, (str, Path)) and not Path(source).is_dir() and _is_workload(str(source))
    make, first = partial(_copied, source), source
    if workload:
        make, first = partial(_generated, str(source), overrides), Loads.path(folder, 1)
        make(1, first)
    elif overrides:
        raise UsageError(f"{named(source)} is a capture: KEY=VALUE is for workloads")
    check_profiled(first)
    with opened(first) as capture:
        ranks, compute_ns = len(capture.ranks), computed_in_loops(capture.spans)[0]
    return first, Loads(folder=folder, make=make, ranks=ranks, compute_ns=compute_ns, own_names=workload)


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
    return name.endswith((".yaml", ".yml")) or any(each.name == name for each in workloads())


def _copied(source: CaptureOrPath, ranks: int, path: Path) -> None:
    transform(source, path, ranks=ranks, weak=True)


def _generated(workload: str, overrides: tuple[str, ...], ranks: int, path: Path) -> None:
    """Generate the load with so many times the files, so that each rank has as much work as one."""
    from dxt_replay.workloads.source import read_workload

    files = read_workload(Path(workload), overrides, None).workload.dataset.num_files_train
    generate(workload, ranks, path, overrides=(*overrides, f"dataset.num_files_train={files * ranks}"))


def _free_pct(first: CaptureOrPath, name: Path, limit_pct: float) -> tuple[float, Doubt]:
    """Utilisation on infinitely fast storage, and its doubt. Raises: UsageError if it is unknown or below the limit."""
    predicted = simulate(first, "null", runs=1).prediction
    found = predicted.utilisation_pct
    if found is None:
        raise UsageError(
            f"{name} shows no compute, so its accelerator utilisation is not known: merge it with a profile"
        )
    if found < limit_pct:
        raise UsageError(
            f"on infinitely fast storage the accelerators of {name} would be used {found:.1f} %: no storage reaches "
            f"{limit_pct:g} %. Storage is not the limit; --utilisation {found * 0.95:.0f} asks for less"
        )
    return found, predicted.job.doubt


def _simulated_pct(loads: Loads, first: CaptureOrPath, storage: str | Path, ranks: int) -> float:
    """Utilisation of a number of ranks on a storage model, per cent."""
    if loads.own_names:
        return simulate(loads.of(ranks), storage, runs=1).prediction.utilisation_pct or 0.0
    found = simulate(first, storage, ranks=[ranks], runs=1).scaling[0]
    return found.utilisation_pct or 0.0
