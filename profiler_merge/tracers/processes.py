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
_Children = dict[int, list[TracedProcess]]


def rank_processes(
    processes: Sequence[TracedProcess], names: Sequence[Path]
) -> tuple[tuple[TracedRank, ...], list[str]]:
    """The ranks in order, and warnings. `names`: the first file of each trace, by `TracedProcess.trace`.

    The processes of a recording that marked a training loop are its ranks, if there are several, and have the ranks in
    their marks. Else the order is that of the rank numbers in the trace; without them, of `rank0`, `0-of-8` ... in the
    file names; without those, of the starts.
    """
    folders = dict.fromkeys(filter(None, map(recording_of, names)))
    marks = [read_process(files[0]) for each in folders for files in ranks_of(sorted(each.glob("profile/*.marks")))]
    loops = {each.pid: each.rank if each.rank >= 0 else None for each in marks}
    marked = [process for process in processes if process.pid in loops]
    children: _Children = {process.number: [] for process in processes}
    for process in processes:
        if process.parent is not None:
            children[process.parent.number].append(process)
    if len(marked) > 1:
        firsts = marked
    else:
        roots = (process for process in processes if process.parent is None)
        firsts = [first for root in roots for first in _below_launchers(root, children)]
    firsts.sort(key=lambda process: (process.started_ns, process.pid))
    numbers = [loops[process.pid] if len(marked) > 1 else process.rank for process in firsts]
    if None in numbers:
        found = [_RANK_IN_NAME.search(names[process.trace].name) for process in firsts]
        numbers = [int(each[1] or each[2]) if each else None for each in found]
    known = [number for number in numbers if number is not None]
    is_numbered = len(set(known)) == len(firsts)
    if is_numbered:
        firsts = [firsts[place] for place in sorted(range(len(firsts)), key=known.__getitem__)]
    ranks = tuple(TracedRank(processes=tuple(_tree(first, children))) for first in firsts)

    warnings = []
    kept = {process.number for rank in ranks for process in rank.processes}
    lost = sum(process.operations for process in processes if process.number not in kept)
    if lost:
        warnings.append(f"{lost} operations of launchers, and of programs beside the ranks, are left out")
    if is_numbered and sorted(known) != list(range(len(ranks))):
        shown = ", ".join(map(str, sorted(known)[:8])) + (" ..." if len(known) > 8 else "")
        warnings.append(
            f"there are traces of rank {shown} alone: they become ranks 0 to {len(ranks) - 1} of the capture, which "
            "lacks the other ranks"
        )
    if len(ranks) > 1 and not is_numbered:
        warnings.append(
            "the trace does not number its ranks, so they are numbered by start time. Put rank0, rank1 ... into the "
            "names of the files to number them"
        )
    return ranks, warnings


def _below_launchers(root: TracedProcess, children: _Children) -> list[TracedProcess]:
    """The ranks below the launchers of a tree: of the first programs below each, those of the program that works most.
    The root alone if the tree has no launcher."""
    tree = _tree(root, children)
    if not any(map(_launches, tree)):
        return [root]
    found = []
    for process in tree:
        above = process.parent
        while above is not None and not above.executed:
            above = above.parent
        if process.executed and not _launches(process) and above is not None and _launches(above):
            found.append(process)
    work: Counter[str] = Counter()
    for process in found:
        work[process.exe] += 1 + sum(each.operations for each in _tree(process, children))
    return [process for process in found if process.exe == work.most_common(1)[0][0]]


def _launches(process: TracedProcess) -> bool:
    return process.executed and _LAUNCHER.fullmatch(PurePosixPath(process.exe).name) is not None


def _tree(first: TracedProcess, children: _Children) -> list[TracedProcess]:
    """A process and all below it, by start."""
    found, waiting = [], [first]
    while waiting:
        process = waiting.pop()
        found.append(process)
        waiting += children[process.number]
    return [first, *sorted(found[1:], key=lambda process: (process.started_ns, process.number))]
