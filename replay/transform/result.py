"""The result of `transform`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.replay.transform.rank_work import RankWork
from dxt_replay.traces.schema import READ


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals of the operations of a capture that a replay issues. elapsed_ns: from its first to its last moment."""

    ranks: int
    operations: int
    reads: int
    bytes_read: int
    elapsed_ns: int

    @classmethod
    def of(cls, work: RankWork) -> Totals:
        """Those of one rank, without the time."""
        is_read = work.op == READ
        return cls(
            ranks=1,
            operations=len(work),
            reads=int(is_read.sum()),
            bytes_read=int(work.length[is_read].sum()),
            elapsed_ns=0,
        )

    @classmethod
    def sum_of(cls, ranks: Iterable[Totals], elapsed_ns: int) -> Totals:
        """The sums over ranks."""
        names = ("ranks", "operations", "reads", "bytes_read")
        sums = np.sum([[getattr(each, name) for name in names] for each in ranks], axis=0, dtype=object)
        return cls(**dict(zip(names, sums, strict=True)), elapsed_ns=elapsed_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """The capture that `transform` wrote.

    path: its folder. changes: by name, in the order in which they were applied. assumptions: sentences.
    before, after: totals of the source and of the result. same: whether nothing changed.
    """

    path: Path
    changes: Mapping[str, Any]
    assumptions: tuple[str, ...]
    before: Totals
    after: Totals
    same: bool

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay transform --json` prints."""
        return {**dataclasses.asdict(self), "path": str(self.path), "assumptions": list(self.assumptions)}
