"""Operations of a capture that a DLIO description cannot hold, their bytes, and why. Pure."""

from __future__ import annotations

import os

import numpy as np

from dxt_replay.traces.schema import READ, WRITE
from dxt_replay.workloads.fit.data_files import DataFiles
from dxt_replay.workloads.fit.estimate import Unexpressed
from dxt_replay.workloads.fit.observation import BEFORE, SAVING, Observation
from dxt_replay.workloads.fit.saves import Saves

MARKS = "dxt-anchor"
"""Prefix of the files into which a recorded job writes the marks that align its clocks."""

MAX_NAMED = 3
"""Number of files that a reason names."""


def unexpressed(seen: Observation, data: DataFiles | None, saves: Saves) -> tuple[Unexpressed, ...]:
    """Operations that no key of DLIO expresses, by reason; those with the most operations first.

    The expressed operations may still differ in number: comparing the generated capture with this one shows that.
    """
    uses = seen.uses
    rest = np.ones(len(uses.file_id), dtype=bool)
    found: list[Unexpressed] = []

    def take(rows: np.ndarray, reason: str) -> None:
        chosen = rows & rest
        operations, moved = uses.total(chosen)
        if operations:
            found.append(Unexpressed(operations=operations, bytes=moved, reason=f"{reason}{_named(seen, chosen)}"))
        rest[chosen] = False

    if data is not None:
        rest[np.isin(uses.file_id, np.concatenate((data.train, data.evaluation))) & (uses.op != WRITE)] = False
    marks = np.array([os.path.basename(path).startswith(MARKS) for path in seen.paths], dtype=bool)
    take(marks[uses.file_id] if len(marks) else rest & False, "they are marks of the recording")
    saved = (uses.phase == SAVING) & (uses.op == WRITE)
    of_saves = np.isin(uses.file_id, uses.file_id[saved]) & (uses.op != READ)
    if saves.any:
        rest[of_saves & (uses.phase == SAVING)] = False
    rest[np.isin(uses.file_id, saves.results) & (uses.op != READ)] = False
    take(uses.phase == SAVING, "DLIO writes a checkpoint and does nothing else in it")
    if data is not None:
        take(np.isin(uses.file_id, data.left_out), "the loop reads them beside the data set, and DLIO has one data set")
    take((uses.op == READ) & (uses.phase == BEFORE), "they are read before the first step")
    take(uses.op == READ, "no step waits for these reads")
    take(uses.op == WRITE, "they are written outside of the loop's checkpoints")
    moved = np.isin(uses.file_id, uses.file_id[uses.bytes > 0])
    take(moved, "they belong to files of which DLIO reads or writes nothing")
    take(rest.copy(), "their files are opened or looked at, and no bytes are moved")
    return (*sorted(found, key=lambda each: -each.operations), *_repeated(seen, data))


def _named(seen: Observation, rows: np.ndarray) -> str:
    """Some files of the rows, in brackets."""
    ids, place = np.unique(seen.uses.file_id[rows], return_inverse=True)
    most = np.argsort(-np.bincount(place, weights=seen.uses.operations[rows]), kind="stable")
    names = [os.path.basename(seen.paths[file_id]) for file_id in ids[most[:MAX_NAMED]].tolist()]
    more = f" and {len(ids) - len(names)} more" if len(ids) > len(names) else ""
    return f" ({', '.join(names)}{more})"


def _repeated(seen: Observation, data: DataFiles | None) -> tuple[Unexpressed, ...]:
    """Reads of training files that an evaluation waits for."""
    if data is None or len(seen.looked) < seen.ranks:
        return ()
    operations = moved = 0
    for rank in seen.looked:
        mine = np.isin(rank.file_id, data.train) & (rank.fetch >= 0) & ~rank.of_training
        operations += int(mine.sum())
        moved += int(rank.length[mine].sum())
    if not operations:
        return ()
    return (Unexpressed(operations=operations, bytes=moved, reason="evaluations read files of the training again"),)
