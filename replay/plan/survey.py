"""Surveys the lanes, files and back ends of a rank before the run (see `replay.plan.chosen_layers`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.replay.plan.chosen_layers import BACKENDS, LayerChoice
from dxt_replay.traces.schema import OPS, READ, WRITE, codes
from dxt_replay.traces.store.reader import Capture

RENAME = OPS.index("rename")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUse:
    """One file of a rank that is used through one back end.

    `backend`: its code in `chosen_layers.BACKENDS`.
    `uses`: operations on the file through this back end.
    """

    file_id: int
    backend: int
    uses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSurvey:
    """The work of one rank in a replay.

    `lane_operations`: lane -> operations to replay, ascending by lane.
    `reads`, `writes`: ids of the files that are read, or written. A rename writes the files of both names.
    `slots`: one for each file and back end.
    `lane_backends`: lane -> codes of the back ends that it needs.
    `layers`: at which layer each file is replayed.
    `operations`: operations to replay, of all lanes.
    `left_out`: recorded operations that are not replayed, because their file is replayed at another layer, or because
        they were reconstructed and are not wanted.
    """

    rank: int
    lane_operations: Mapping[int, int]
    reads: frozenset[int]
    writes: frozenset[int]
    slots: tuple[SlotUse, ...]
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
    used = used.filter(pa.array(layers.replayed(used)))
    op, file_id, lane = codes(used, "op"), used["file_id"].to_numpy(), used["lane"].to_numpy()
    number, new_name = used["operations"].to_numpy(), used["other_file_id"].to_numpy()
    backend = layers.backends(codes(used, "api"), file_id)
    renames = op == RENAME
    # A rename is a use of the files of both names.
    files = np.concatenate((file_id, new_name[renames]))
    uses = np.concatenate((number, number[renames]))
    keys = files.astype(np.int64) * len(BACKENDS) + np.concatenate((backend, backend[renames]))
    lanes, operations = _sums(lane, number)
    written = (op == WRITE) | renames
    return RankSurvey(
        rank=rank,
        lane_operations=dict(zip(lanes, operations, strict=True)),
        reads=frozenset(file_id[op == READ].tolist()),
        writes=frozenset([*file_id[written].tolist(), *new_name[renames].tolist()]),
        slots=tuple(
            SlotUse(file_id=key // len(BACKENDS), backend=key % len(BACKENDS), uses=count)
            for key, count in zip(*_sums(keys, uses), strict=True)
        ),
        lane_backends={one: frozenset(np.unique(backend[lane == one]).tolist()) for one in lanes},
        layers=layers,
        operations=sum(operations),
        left_out=int(everything["operations"].to_numpy().sum()) - sum(operations),
    )


def spans_by_rank(spans: pa.Table, ranks: Iterable[int]) -> dict[int, pa.Table]:
    """Rank -> its spans in the order of `spans` (rows of `SPANS_SCHEMA`), for each of `ranks`, found in one pass."""
    of_row = spans["rank"].to_numpy()
    if (np.diff(of_row) < 0).any():
        order = np.argsort(of_row, kind="stable")
        spans, of_row = spans.take(pa.array(order)), of_row[order]
    limits = {rank: np.searchsorted(of_row, (rank, rank + 1)).tolist() for rank in ranks}
    return {rank: spans.slice(first, until - first) for rank, (first, until) in limits.items()}


def _sums(keys: np.ndarray, number: np.ndarray) -> tuple[list[int], list[int]]:
    """The distinct keys, ascending, and the sum of `number` for each of them."""
    found, index = np.unique(keys, return_inverse=True)
    return found.tolist(), np.bincount(index, weights=number, minlength=len(found)).astype(np.int64).tolist()
