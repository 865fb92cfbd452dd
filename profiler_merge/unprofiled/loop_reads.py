"""Selects the reads of a rank that feed its training loop, by comparison with reads during the profile. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import PurePosixPath

import numpy as np

from dxt_replay.profiler_merge.unprofiled.profiled_steps import ProfiledSteps
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import APIS, READ, TRACED

_DIGITS = re.compile(r"\d+")
_OWN = 0
"""Number of the rank's own process; its data-loader workers have 1, 2 ..."""
_NEAR = 4
_MANY_NAMES = 8
"""Number of name patterns from which, if most have one file each, the numbers in names cannot be ignored."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopReads:
    """The reads that feed the loop, in order of their starts; columns (n,).

    start_ns, end_ns: their times.
    length: bytes.
    opens: whether the read is the first of its file by its offset.
    process: 0 for the rank's own process, else the number of the worker.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    length: np.ndarray
    opens: np.ndarray
    process: np.ndarray

    def __len__(self) -> int:
        """Number of reads."""
        return len(self.start_ns)

    @property
    def readers(self) -> int:
        """Number of processes that read at a time, at least 1: the fewest that could read everything in turns of equal
        length."""
        processes = np.unique(self.process)
        begin = np.array([self.start_ns[self.process == one].min() for one in processes])
        end = np.array([self.end_ns[self.process == one].max() for one in processes])
        return max((int(((begin < at) & (at < end)).sum()) for at in (begin + end) // 2), default=1) or 1

    def outside(self, times: Intervals) -> LoopReads:
        """Without those that begin in these times."""
        kept = times.covered_within(self.start_ns, self.start_ns + 1) == 0
        return LoopReads(**{each.name: getattr(self, each.name)[kept] for each in fields(self)})


def loop_reads(
    operations: dict[str, np.ndarray], process: np.ndarray, path: Callable[[int], str], steps: ProfiledSteps
) -> LoopReads:
    """The reads of files like those read during the profiled steps, by processes like those that read then.

    `operations`: columns of one rank in start order, as `traces.schema.OPS_SCHEMA`. `process`: of each operation.
    `path`: of a file_id.
    """
    window_ns = int(steps.begin_ns[0]), int(steps.end_ns[-1])
    api = APIS.index("POSIX")
    reads = (operations["op"] == READ) & (operations["origin"] == TRACED) & (operations["length"] > 0)
    if not (reads & (operations["api"] == api)).any():
        api = APIS.index("MPIIO")
    reads &= (operations["api"] == api) | (operations["api"] == APIS.index("MMAP"))
    start = operations["start_ns"]
    inside = reads & (start >= window_ns[0]) & (start < window_ns[1])
    chosen = reads & ((process == _OWN) if _reads_itself(start, inside, process, steps) else (process != _OWN))
    inside &= chosen
    if not inside.any():
        inside = chosen & _near(start, window_ns)
    alike = _alike(operations["file_id"], inside, start // max(int(np.median(steps.end_ns - steps.begin_ns)), 1), path)
    rows = np.flatnonzero(chosen & alike[operations["file_id"]])
    return LoopReads(
        start_ns=start[rows],
        end_ns=operations["end_ns"][rows],
        length=operations["length"][rows],
        opens=operations["offset"][rows] == 0,
        process=process[rows],
    )


def _reads_itself(start_ns: np.ndarray, inside: np.ndarray, process: np.ndarray, steps: ProfiledSteps) -> bool:
    """Whether the rank's own process reads the batches: there are no workers, or it reads while its steps wait for a
    batch."""
    if not (process != _OWN).any():
        return True
    own = start_ns[inside & (process == _OWN)]
    place = np.maximum(np.searchsorted(steps.wait_ns, own, side="right") - 1, 0)
    waiting = int((own < steps.fetch_ns[place]).sum())
    return waiting > max(len(own) // 2, int((inside & (process != _OWN)).sum()))


def _near(start_ns: np.ndarray, window_ns: tuple[int, int]) -> np.ndarray:
    """bool: within some lengths of the window around it; a loader that reads far ahead may read nothing inside."""
    around = _NEAR * (window_ns[1] - window_ns[0])
    return (start_ns >= window_ns[0] - around) & (start_ns < window_ns[1] + around)


def _alike(file_id: np.ndarray, inside: np.ndarray, step: np.ndarray, path: Callable[[int], str]) -> np.ndarray:
    """bool by file_id: whether the file's name, numbers aside, is that of files read `inside`.

    Names that are read in far fewer steps than others belong to an evaluation. `step`: of each operation, any
    numbering.
    """
    kinds = {file: _DIGITS.sub("#", path(file)) for file in np.unique(file_id).tolist()}
    if 2 * len({kinds[file] for file in np.unique(file_id[inside]).tolist()}) > max(
        len(np.unique(file_id[inside])), _MANY_NAMES
    ):
        # Names without numbers, such as digests: accept all with the suffix in the folder.
        kinds = {file: _place(kind) for file, kind in kinds.items()}
    steps_of: dict[str, set[int]] = {}
    for file, number in distinct_rows(file_id[inside], step[inside]).values.tolist():
        steps_of.setdefault(kinds[file], set()).add(number)
    most = max(map(len, steps_of.values()), default=0)
    alike = np.zeros(int(file_id.max(initial=-1)) + 1, dtype=bool)
    for file, kind in kinds.items():
        alike[file] = 2 * len(steps_of.get(kind, ())) > most
    return alike


def _place(kind: str) -> str:
    name = PurePosixPath(kind)
    return f"{name.parent}/{name.suffix}"
