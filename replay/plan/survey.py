"""Surveys the lanes, files and back ends of a rank before the run (see `replay.plan.chosen_layers`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.replay.plan.chosen_layers import BACKENDS, LayerChoice
from dxt_replay.traces.schema import OPS, READ, WRITE, codes
from dxt_replay.traces.store.reader import Capture

RENAME, DELETE = OPS.index("rename"), OPS.index("delete")


SLOT_USE = np.dtype([("file_id", np.int32), ("backend", np.int8), ("uses", np.int64)])
"""A file that a rank uses through one back end. `backend`: its code in `chosen_layers.BACKENDS`; `uses`: operations on
the file through this back end."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankSurvey:
    """The work of one rank in a replay.

    `lane_operations`: lane -> operations to replay, ascending by lane.
    `reads`, `writes`: ids of the files that are read, or written, ascending (int32). A rename writes the files of both
        names.
    `slots`: `SLOT_USE` of each file and back end, ascending.
    `lane_backends`: lane -> codes of the back ends that it needs.
    `layers`: at which layer each file is replayed.
    `operations`: operations to replay, of all lanes.
    `left_out`: recorded operations that are not replayed, because their file is replayed at another layer, or because
        they were reconstructed and are not wanted.
    """

    rank: int
    lane_operations: Mapping[int, int]
    reads: np.ndarray
    writes: np.ndarray
    slots: np.ndarray
    lane_backends: Mapping[int, frozenset[int]]
    layers: LayerChoice
    operations: int
    left_out: int

    @property
    def lanes(self) -> tuple[int, ...]:
        """The lanes that have anything to replay, ascending."""
        return tuple(self.lane_operations)


def survey_rank(capture: Capture, rank: int, layers: LayerChoice) -> RankSurvey:
    """Survey a rank by the counts that the capture keeps of it (`Capture.usage`), without reading its operations.

    Raises: CaptureError when a part is damaged.
    """
    everything = capture.usage(rank)
    used = layers.usage(capture, rank)
    replayed = layers.replayed(used)
    used = used if replayed.all() else used.filter(pa.array(replayed))
    op, file_id, lane = codes(used, "op"), used["file_id"].to_numpy(), used["lane"].to_numpy()
    number, new_name = used["operations"].to_numpy(), used["other_file_id"].to_numpy()
    backend = layers.backends(codes(used, "api"), file_id)
    renames = op == RENAME
    # A rename is a use of the files of both names.
    files = np.concatenate((file_id, new_name[renames]))
    uses = np.concatenate((number, number[renames]))
    keys = files.astype(np.int64) * len(BACKENDS) + np.concatenate((backend, backend[renames]))
    lanes, operations = _sums(lane, number)
    written = (op == WRITE) | (op == DELETE) | renames
    return RankSurvey(
        rank=rank,
        lane_operations=dict(zip(lanes.tolist(), operations.tolist(), strict=True)),
        reads=np.unique(file_id[op == READ]),
        writes=np.unique(np.concatenate((file_id[written], new_name[renames]))),
        slots=_slots(*_sums(keys, uses)),
        lane_backends={one: frozenset(np.unique(backend[lane == one]).tolist()) for one in lanes.tolist()},
        layers=layers,
        operations=int(operations.sum()),
        left_out=int(everything["operations"].to_numpy().sum() - operations.sum()),
    )


def spans_by_rank(spans: pa.Table, ranks: Iterable[int]) -> dict[int, pa.Table]:
    """Rank -> its spans in the order of `spans` (rows of `SPANS_SCHEMA`), for each of `ranks`, found in one pass."""
    of_row = spans["rank"].to_numpy()
    if (np.diff(of_row) < 0).any():
        order = np.argsort(of_row, kind="stable")
        spans, of_row = spans.take(pa.array(order)), of_row[order]
    limits = {rank: np.searchsorted(of_row, (rank, rank + 1)).tolist() for rank in ranks}
    return {rank: spans.slice(first, until - first) for rank, (first, until) in limits.items()}


def _slots(keys: np.ndarray, uses: np.ndarray) -> np.ndarray:
    slots = np.empty(len(keys), dtype=SLOT_USE)
    slots["file_id"], slots["backend"], slots["uses"] = keys // len(BACKENDS), keys % len(BACKENDS), uses
    return slots


def _sums(keys: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct keys, ascending, and the sum of `number` for each of them (int64)."""
    found, index = np.unique(keys, return_inverse=True)
    return found, np.bincount(index, weights=number, minlength=len(found)).astype(np.int64)
