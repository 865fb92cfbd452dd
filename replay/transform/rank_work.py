"""The operations of one rank as the transformations see them: arrays, with what each operation waits for. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.schema import ORIGINS, READ

NOTHING = -1
"""Value of `feeds` and `follows` of an operation that no batch fetch waits for, or that waits for none."""

TRANSFORMED, MODELLED = ORIGINS.index("transformed"), ORIGINS.index("modelled")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankWork:
    """n operations of a rank in the order in which they are issued; arrays (n,), each lane in order, too.

    lane, op, api, file_id, offset, length, origin: as the columns of `OPS_SCHEMA`, enumerated ones as codes.
    start_ns: int64, when it began in the capture; of a new operation, when the one that it comes from began.
    duration_ns: int64, how long it lasts.
    think_ns: int64, how long after the end of the lane's previous operation, and after what it follows, it begins.
    feeds: int64, number of the batch fetch that waits for it, NOTHING for none.
    follows: int64, 2 n for the begin of batch fetch n, 2 n + 1 for its end, NOTHING for none.
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
    start_ns: np.ndarray
    duration_ns: np.ndarray
    think_ns: np.ndarray
    feeds: np.ndarray
    follows: np.ndarray
    blocks: np.ndarray
    busy_ns: np.ndarray
    held: np.ndarray

    def __len__(self) -> int:
        return len(self.op)

    @property
    def data_reads(self) -> np.ndarray:
        """bool (n,): reads of known place that moved bytes."""
        mask: np.ndarray = (self.op == READ) & (self.offset >= 0) & (self.length > 0)
        return mask

    def rows(self, chosen: np.ndarray) -> RankWork:
        """The operations at these indices or of this mask, in that order."""
        return RankWork(**{name: values[chosen] for name, values in self.columns().items()})

    def columns(self) -> dict[str, np.ndarray]:
        """All arrays by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def same_requests(self, other: RankWork) -> bool:
        """Whether both ask for the same, in the same order, and wait for the same."""
        if len(self) != len(other):
            return False
        mine, others = self.columns(), other.columns()
        return all(np.array_equal(mine[name], others[name]) for name in mine if name != "origin")


def joined(works: Sequence[RankWork]) -> RankWork:
    """All operations, one after the other."""
    columns = [work.columns() for work in works]
    return RankWork(**{name: np.concatenate([each[name] for each in columns]) for name in columns[0]})


def exchanged(
    work: RankWork, gone: np.ndarray, made: RankWork, place: np.ndarray, nth: np.ndarray
) -> tuple[RankWork, np.ndarray]:
    """The operations without those at the indices `gone`, with `made` in their places; and where each one stands.

    place: index of the operation in `work` whose place each of `made` takes, int64. nth: its order at that place.
    """
    stays = np.ones(len(work), dtype=bool)
    stays[gone] = False
    stay = np.flatnonzero(stays)
    places = np.concatenate((stay, place))
    order = np.lexsort((np.concatenate((np.zeros(len(stay), dtype=np.int64), nth)), places))
    return joined([work.rows(stay), made]).rows(order), places[order]
