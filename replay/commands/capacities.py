"""Finds how many accelerators a storage carries."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dxt_replay.replay.commands import session
from dxt_replay.replay.commands.captures import CaptureOrPath, named, opened
from dxt_replay.replay.commands.face import Argument, Option, PathLike, command, output
from dxt_replay.replay.commands.making import generate, workloads
from dxt_replay.replay.commands.predicting import simulate, transform
from dxt_replay.replay.commands.replaying import check_profiled, run, stage, unstage
from dxt_replay.traces.errors import TargetError, UsageError

if TYPE_CHECKING:
    from dxt_replay.replay.capacity import Capacity, Loads
    from dxt_replay.replay.ranks.mpi import Communicator
    from dxt_replay.replay.run.feeder import Progress
    from dxt_replay.traces.storage_limit import Doubt


@command(fails=lambda found, given: found.ranks == 0 and found.limited_by == "storage")
def capacity(
    capture: Annotated[CaptureOrPath | str, Argument("CAPTURE|WORKLOAD")],
    target: Annotated[PathLike, Option("Directory on the storage, or s3:// URL, for the twins.", "DIR", text=True)],
    overrides: Annotated[Sequence[str], Argument("[KEY=VALUE]...", text=True)] = (),
    *,
    utilisation_pct: Annotated[
        float,
        Option(
            "Accelerator utilisation that every run must reach.",
            "PCT",
            name="utilisation",
            least=0,
            most=100,
            inclusive=False,
        ),
    ] = 90.0,
    most: Annotated[int, Option("Most ranks to try.", "N", least=1, most=1 << 16)] = 32,
    storage: Annotated[
        str | Path | None,
        Option("Begin at the ranks that `simulate` predicts for this model, such as nvme.", "MODEL", text=True),
    ] = None,
    output: Annotated[PathLike | None, output("DIR", "Keep the captures in DIR.  [default: deleted]")] = None,
    on_progress: Callable[[str, Progress], None] | None = None,
    comm: Communicator | None = None,
) -> Capacity:
    """Find the largest number of ranks that a storage serves without starving the accelerators.

    Replays the training on more and more ranks, each with files of its own, until the accelerator utilisation falls
    below --utilisation. CAPTURE can also be a workload such as unet3d_h100, with KEY=VALUE for its keys. The search
    bisects and repeats both sides of the border at the end. One more run without I/O shows whether the storage or this
    machine is the limit. Under `mpiexec -n P` the processes share the ranks.

    Exits 1 if one rank alone is too much for the storage.

    In Python:

        dxt_replay.capacity("run.capture", "/lustre/me/twin").ranks

    The twins are staged in `target` and stay there. Each run begins with a cold page cache. `output` is empty or not
    there yet; processes of several nodes need one.
    Raises: UsageError for a capture without steps or compute, and where no storage could reach the utilisation;
    TargetError if a twin does not fit or `output` is not empty; ReplayError if operations of a run fail, or it
    is stopped.
    """
    from dxt_replay.replay import capacity as module
    from dxt_replay.replay.ranks.mpi import connect, first_does
    from dxt_replay.replay.regress.experiment import output_folder
    from dxt_replay.replay.target.targets import target_named
    from dxt_replay.traces.measures.span_times import copies_alike

    limit_pct, place, comm = utilisation_pct, target_named(target), comm or connect()
    keep, name = None if output is None else Path(output), named(capture)
    first_does(comm, lambda: _check_empty(keep))
    with (
        output_folder(keep, comm, "capacity") as folder,
        session.progress(session.of_experiment(most.bit_length() + 4), on_progress, shown=comm.rank == 0) as progress,
    ):
        first, loads = first_does(comm, lambda: _loads(capture, tuple(overrides), folder))
        free_pct, doubt = first_does(comm, lambda: _free_pct(first, name, limit_pct))
        simulated: list[module.SimulatedRun] = []
        guess = None
        if storage is not None:

            def passes(ranks: int) -> bool:
                found_pct = _simulated_pct(loads, first, storage, ranks)
                simulated.append(module.SimulatedRun(ranks=ranks, utilisation_pct=found_pct))
                return found_pct >= limit_pct

            guess = first_does(comm, lambda: module.largest_that_passes(most, passes))
        search = module.Search(limit_pct=limit_pct, most=most, guess=loads.ranks if guess is None else guess)
        runs: list[module.LoadRun] = []
        warnings: list[str] = []
        measure = module.Measuring(
            loads=loads,
            target=place,
            stage=stage,
            unstage=unstage,
            run=run,
            comm=comm,
            free_pct=free_pct,
            on_progress=progress,
            warnings=warnings,
        )
        limited_by = module.searched(search, measure, runs)
        if not loads.own_names:
            with opened(first) as source:
                warnings += copies_alike(source.spans, search.interval[1])
    return module.Capacity(
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

    may_be = isinstance(source, (str, os.PathLike)) and not Path(source).is_dir()
    shipped, first = [each.name for each in workloads()] if may_be else [], source
    workload = may_be and (str(source) in shipped or str(source).endswith((".yaml", ".yml")))
    make = partial(_generated, str(source), overrides) if workload else partial(_copied, source)
    if workload:
        first = Loads.path(folder, 1)
        make(1, first)
    elif overrides:
        raise UsageError(f"{named(source)} is a capture: KEY=VALUE is for workloads")
    name = str(named(first))
    if not workload and not Path(name).exists() and (near := get_close_matches(name, shipped, 1)):
        raise UsageError(f"{name} is neither a capture nor a workload: did you mean {near[0]}?")
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


# Functions of the module: other processes of mpiexec get them too.
def _copied(source: CaptureOrPath, ranks: int, path: Path) -> None:
    transform(source, path, ranks=ranks, weak=True)


def _generated(workload: str, overrides: tuple[str, ...], ranks: int, path: Path) -> None:
    """Generate the load with so many times the files, so that each rank has as much work as one."""
    from dxt_replay.workloads.source import read_workload

    files = read_workload(Path(workload), overrides).workload.dataset.num_files_train
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
    return found, predicted.doubt


def _simulated_pct(loads: Loads, first: CaptureOrPath, storage: str | Path, ranks: int) -> float:
    """Utilisation of a number of ranks on a storage model, per cent."""
    if loads.own_names:
        return simulate(loads.of(ranks), storage, runs=1).prediction.utilisation_pct or 0.0
    found = simulate(first, storage, ranks=[ranks], runs=1).scaling[0]
    return found.utilisation_pct or 0.0
