"""The form of a rank that transformations change: operations, their dependencies, and the training loop. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.causal.training_loop import FETCH, TrainingLoop
from dxt_replay.traces.schema import ORIGINS, READ

NOTHING = -1
"""Value of `feeds` and `follows` of an operation that no batch fetch waits for, or that waits for none."""

ENTERED = -2
"""Value of `BatchMaking.room` of a batch that is made from the end of the entry on."""

EXITED = -3
"""Value of `RankWork.follows` of an operation that waits for the exit from the loop."""

BY_BATCH, BY_FILE = "batch", "file"
"""What readers take turns with: batches, as the workers of a PyTorch DataLoader do, or files, as tf.data does."""

TRANSFORMED, MODELLED = ORIGINS.index("transformed"), ORIGINS.index("modelled")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankWork:
    """n operations of a rank in the order of issue, which is also the order of each lane; arrays (n,).

    lane, op, api, file_id, offset, length, origin: as the columns of `OPS_SCHEMA`, enumerated ones as codes.
    other_file_id, open_flags: as there, -1 for null.
    start_ns: int64, recorded begin; for a new operation, that of the operation that it comes from.
    duration_ns: int64, its duration.
    think_ns: int64, time from the later of two ends to its begin: of the lane's previous operation, and of what it
    follows.
    feeds: int64, number of the batch fetch that waits for it, NOTHING for none.
    follows: int64, 2 n for the begin of batch fetch n, 2 n + 1 for its end, EXITED or NOTHING.
    made: int64, in place of `follows`, 2 n for the begin of the making of batch n, 2 n + 1 for its end.
    blocks: int64, number of the other event of the training loop that it is part of and that waits for it (the entry, a
    checkpoint, an evaluation), NOTHING for none.
    busy_ns: int64, how long its lane is busy with its data after its end (decoding).
    held: bool, whether in the capture it began after what it follows, while its lane had long been free.
    """

    lane: np.ndarray
    op: np.ndarray
    api: np.ndarray
    file_id: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    origin: np.ndarray
    other_file_id: np.ndarray
    open_flags: np.ndarray
    start_ns: np.ndarray
    duration_ns: np.ndarray
    think_ns: np.ndarray
    feeds: np.ndarray
    follows: np.ndarray
    made: np.ndarray
    blocks: np.ndarray
    busy_ns: np.ndarray
    held: np.ndarray

    def __len__(self) -> int:
        return len(self.op)

    @property
    def data_reads(self) -> np.ndarray:
        """bool (n,): reads with a known place that moved bytes."""
        mask: np.ndarray = (self.op == READ) & (self.offset >= 0) & (self.length > 0)
        return mask

    def rows(self, chosen: np.ndarray) -> RankWork:
        """The operations at these indices or of this mask, in that order."""
        return RankWork(**{name: values[chosen] for name, values in self.columns().items()})

    def columns(self) -> dict[str, np.ndarray]:
        """All arrays by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def same_requests(self, other: RankWork) -> bool:
        """Whether both make the same requests in the same order with the same dependencies."""
        if len(self) != len(other):
            return False
        mine, others = self.columns(), other.columns()
        return all(np.array_equal(mine[name], others[name]) for name in mine if name != "origin")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchMaking:
    """How tf.data makes the batch of each fetch, one after the other (`replay.causal.production`); int64 (fetches,).

    room: what lets it begin: 2 n for the begin of batch fetch n, 2 n + 1 for its end, ENTERED or NOTHING.
    delay_ns: how long after that and after the batch before it begins.
    head_ns, tail_ns: processing in front of and behind its last read.
    """

    room: np.ndarray
    delay_ns: np.ndarray
    head_ns: np.ndarray
    tail_ns: np.ndarray

    @property
    def asked(self) -> np.ndarray:
        """bool (fetches,): batches that are made only when the loop asks for them."""
        found: np.ndarray = self.room == 2 * np.arange(len(self.room))
        return found

    @property
    def ahead(self) -> int:
        """How many batches are made ahead of the loop."""
        number, free = np.arange(len(self.room)), ~self.asked
        return int((number - np.where(self.room < 0, -1, self.room // 2))[free].max(initial=0))

    def with_ahead(self, ahead: int) -> BatchMaking:
        """With room for so many batches; 0: each is made when the loop asks for it.

        Where few batches were made only when asked for, these begin a pass over the data, and nothing is made before.
        """
        number, begins_pass = np.arange(len(self.room)), self.asked
        if not ahead or begins_pass.mean() > 0.5:
            begins_pass = np.full(len(number), not ahead)
        room = np.where(number >= ahead, 2 * (number - ahead) + 1, ENTERED)
        return dataclasses.replace(self, room=np.where(begins_pass, 2 * number, room))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankLoop:
    """The training loop of a rank, with the time of its events beyond their operations.

    loop: its events and steps; an evaluation is a batch fetch of its own.
    residual_ns: int64 (events,), how long an event lasts after all that it waits for.
    ready_ns: int64 (fetches,), how long making the batch of each fetch ready takes after its last read.
    making: how a pipeline beside the readers makes the batches; None where it does not show.
    """

    loop: TrainingLoop
    residual_ns: np.ndarray
    ready_ns: np.ndarray
    making: BatchMaking | None = None

    @property
    def moments_ns(self) -> np.ndarray:
        """int64 (2 fetches,): begin and end of each batch fetch."""
        fetches = self.loop.fetches
        return np.stack((self.loop.begin_ns[fetches], self.loop.end_ns[fetches]), axis=1).ravel()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankState:
    """A rank between reading and writing.

    model: the causal model of the rank in the capture.
    spans: rows of `SPANS_SCHEMA`, as in the capture; None for a rank whose loop was not recorded.
    readers: lanes that read the batches, 0 for the training thread. ahead: the most batches that they read ahead.
    deal: the unit with which readers take turns, BY_BATCH or BY_FILE.
    pass_first: see `replay.transform.readers.with_read_ahead`.
    """

    work: RankWork
    loop: RankLoop
    model: LoopModel
    spans: pa.Table | None
    readers: int
    ahead: int
    deal: str
    pass_first: np.ndarray | None


def fetch_numbers(loop: TrainingLoop) -> np.ndarray:
    """int64 (events,): number of each batch fetch among the batch fetches, NOTHING for other events."""
    is_fetch = loop.kind == FETCH
    return np.where(is_fetch, np.cumsum(is_fetch) - 1, NOTHING)


def joined(works: Sequence[RankWork]) -> RankWork:
    """All operations, one after the other."""
    columns = [work.columns() for work in works]
    return RankWork(**{name: np.concatenate([each[name] for each in columns]) for name in columns[0]})


def exchanged(
    work: RankWork, gone: np.ndarray, made: RankWork, place: np.ndarray, nth: np.ndarray
) -> tuple[RankWork, np.ndarray]:
    """Replace the operations at the indices `gone` by `made`. Returns the operations and the place of each.

    place: int64, index of the operation in `work` whose place each of `made` takes. nth: its order at that place.
    """
    stays = np.ones(len(work), dtype=bool)
    stays[gone] = False
    stay = np.flatnonzero(stays)
    places = np.concatenate((stay, place))
    order = np.lexsort((np.concatenate((np.zeros(len(stay), dtype=np.int64), nth)), places))
    return joined([work.rows(stay), made]).rows(order), places[order]
