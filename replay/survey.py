"""One pass over a rank's operations before the run: which lanes and files it has, and what is to be replayed.

A file recorded at two layers is replayed at one: its POSIX rows if it has any, else MPI-IO, else the rest in the
contract's order. Replaying both would read the data twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traces.ops import APIS, READ, WRITE, codes
from traces.store import Capture

SURVEY_COLUMNS = ("lane", "op", "api", "file_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSurvey:
    """What one rank does. `uses`: file_id -> operations to replay on it; `layer`: int8 api code by file_id, -1: none.

    `left_out`: operations that are not replayed, because their file is replayed at another layer or because they are
    neither read nor write.
    """

    rank: int
    lanes: tuple[int, ...]
    uses: Mapping[int, int]
    reads: frozenset[int]
    writes: frozenset[int]
    layer: np.ndarray
    operations: int
    left_out: int


def survey_rank(capture: Capture, rank: int) -> RankSurvey:
    """Read the four narrow columns of a rank's rows once. Memory: a table of counts.

    Raises: CaptureError when a part is damaged or names a file that `files` does not have.
    """
    counts = np.zeros((capture.files.num_rows, len(APIS), 2), dtype=np.int64)
    lanes: dict[int, set[int]] = {}
    total = 0
    for batch in capture.operations(rank, columns=list(SURVEY_COLUMNS)):
        op, api = codes(batch, "op"), codes(batch, "api")
        file_id = batch.column("file_id").to_numpy()
        data = (op == READ) | (op == WRITE)
        total += len(op)
        np.add.at(counts, (file_id[data], api[data], (op[data] == WRITE).astype(np.int8)), 1)
        for code in np.unique(api[data]).tolist():
            mine = data & (api == code)
            lanes.setdefault(code, set()).update(np.unique(batch.column("lane").to_numpy()[mine]).tolist())
    by_layer = counts.sum(axis=2)
    layer = np.where(by_layer.any(axis=1), (by_layer > 0).argmax(axis=1), -1).astype(np.int8)
    chosen = counts[np.arange(len(counts)), layer]
    chosen[layer < 0] = 0
    used = np.flatnonzero(chosen.sum(axis=1))
    operations = int(chosen.sum())
    return RankSurvey(
        rank=rank,
        lanes=tuple(sorted(set().union(*(lanes.get(code, set()) for code in set(layer[used].tolist()))))),
        uses={int(file): int(chosen[file].sum()) for file in used},
        reads=frozenset(np.flatnonzero(chosen[:, 0]).tolist()),
        writes=frozenset(np.flatnonzero(chosen[:, 1]).tolist()),
        layer=layer,
        operations=operations,
        left_out=total - operations,
    )


def replayed_rows(batch: pa.RecordBatch, survey: RankSurvey) -> np.ndarray:
    """Boolean mask of the rows of a batch (columns op, api, file_id) that the replay issues."""
    op = codes(batch, "op")
    layer_of_file = survey.layer[batch.column("file_id").to_numpy()]
    mask: np.ndarray = ((op == READ) | (op == WRITE)) & (codes(batch, "api") == layer_of_file)
    return mask
