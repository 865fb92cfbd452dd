"""Finds the processes of a trace that are the ranks of the job: a trace has only the tree of processes.

Each traced command is a rank, together with its descendants. If the command starts ranks itself (mpiexec, torchrun),
the programs below the launcher are the ranks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from dxt_replay.profiler_merge.profiles.marks import ranks_of, read_process
from dxt_replay.profiler_merge.tracers.traced_job import TracedProcess, TracedRank
from dxt_replay.traces.unseen import recording_of

_LAUNCHER = re.compile(
    r"(mpiexec|mpirun|orterun|orted|prterun|prted|prun|srun|jsrun|aprun|hydra_\w+|pmi_proxy|slurmstepd|palsd|torchrun"
    r"|horovodrun|accelerate|deepspeed)([.\-]\w+)?"
)
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d+)|[-_.](\d+)[-_]of[-_]\d+", re.IGNORECASE)


def rank_processes(
    processes: Sequence[TracedProcess], names: Sequence[Path]
) -> tuple[tuple[TracedRank, ...], list[str]]:
    """The ranks in order, and warnings. `names`: the first file of each trace, by `TracedProcess.trace`.

    The processes of a recording that marked a training loop are its ranks, if there are several, and have the ranks in
    their marks. Else the order is that of the rank numbers in the trace; without them, of `rank0`, `0-of-8` ... in the
    file names; without those, of the starts.
    """
    loops = _marked(names)
    marked = [process for process in processes if process.pid in loops]
    children: dict[int, list[TracedProcess]] = {process.number: [] for process in processes}
    for process in processes:
        if process.parent is not None:
            children[process.parent.number].append(process)
    firsts: list[TracedProcess] = []
    for root in (process for process in processes if process.parent is None):
        below = _below_launchers(root, children)
        firsts += [root] if below is None else below
    if len(marked) > 1:
        firsts = marked
    firsts.sort(key=lambda process: (process.started_ns, process.pid))
    numbers = [process.rank if len(marked) < 2 else loops[process.pid] for process in firsts]
    if None in numbers:
        numbers = [_named_rank(names[process.trace]) for process in firsts]
    named = None not in numbers and len(set(numbers)) == len(firsts)
    if named:
        firsts = [first for _, first in sorted(zip(numbers, firsts, strict=True), key=lambda pair: pair[0] or 0)]
    ranks = tuple(TracedRank(processes=tuple(_tree(first, children))) for first in firsts)
    return ranks, _warnings(processes, ranks, sorted(number or 0 for number in numbers) if named else None)


def _marked(names: Sequence[Path]) -> dict[int, int | None]:
    """Process id -> rank, of the processes with a training loop in the marks beside these traces."""
    folders = dict.fromkeys(filter(None, map(recording_of, names)))
    found = (read_process(files[0]) for folder in folders for files in ranks_of(sorted(folder.glob("profile/*.marks"))))
    return {each.pid: each.rank if each.rank >= 0 else None for each in found}


def _below_launchers(root: TracedProcess, children: dict[int, list[TracedProcess]]) -> list[TracedProcess] | None:
    """The ranks below the launchers of a tree; None if it has no launcher."""
    tree = _tree(root, children)
    if not any(_launches(process) for process in tree):
        return None
    found = [
        process
        for process in tree
        if process.executed
        and not _launches(process)
        and any(_launches(parent) for parent in _parents(process))
        and not any(parent.executed and not _launches(parent) for parent in _parents_below_launcher(process))
    ]
    work: Counter[str] = Counter()
    for process in found:
        work[process.exe] += 1 + sum(each.operations for each in _tree(process, children))
    return [process for process in found if process.exe == work.most_common(1)[0][0]]


def _launches(process: TracedProcess) -> bool:
    return process.executed and _LAUNCHER.fullmatch(PurePosixPath(process.exe).name) is not None


def _parents(process: TracedProcess) -> list[TracedProcess]:
    found = []
    while process.parent is not None:
        process = process.parent
        found.append(process)
    return found


def _parents_below_launcher(process: TracedProcess) -> list[TracedProcess]:
    """The parents up to the nearest launcher."""
    parents = _parents(process)
    nearest = next(place for place, parent in enumerate(parents) if _launches(parent))
    return parents[:nearest]


def _tree(first: TracedProcess, children: dict[int, list[TracedProcess]]) -> list[TracedProcess]:
    """A process and all below it, by start."""
    found, waiting = [], [first]
    while waiting:
        process = waiting.pop()
        found.append(process)
        waiting += children[process.number]
    return [first, *sorted(found[1:], key=lambda process: (process.started_ns, process.number))]


def _named_rank(path: Path) -> int | None:
    found = _RANK_IN_NAME.search(path.name)
    return int(found[1] or found[2]) if found else None


def _warnings(
    processes: Sequence[TracedProcess], ranks: Sequence[TracedRank], numbers: Sequence[int] | None
) -> list[str]:
    warnings = []
    kept = {process.number for rank in ranks for process in rank.processes}
    lost = sum(process.operations for process in processes if process.number not in kept)
    if lost:
        warnings.append(f"{lost} operations of launchers, and of programs beside the ranks, are left out")
    if numbers is not None and list(numbers) != list(range(len(ranks))):
        shown = ", ".join(map(str, numbers[:8])) + (" ..." if len(numbers) > 8 else "")
        warnings.append(
            f"there are traces of rank {shown} alone: they become ranks 0 to {len(ranks) - 1} of the capture, which "
            "lacks the other ranks"
        )
    if len(ranks) > 1 and numbers is None:
        warnings.append(
            "the trace does not number its ranks, so they are numbered by start time. Put rank0, rank1 ... into the "
            "names of the files to number them"
        )
    return warnings
