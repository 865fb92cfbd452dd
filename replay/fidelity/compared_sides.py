"""One pass over both captures of a comparison, in step by rank: the measures of each side, and their equality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from replay.fidelity.exactness import ExactnessCollector, FileNumbers
from replay.fidelity.replayed_rows import ReplayedCapture, first_start_ns
from replay.fidelity.side_measures import Measures
from traces.store.rank_pieces import pieces_of_both
from traces.store.reader import Capture
from traces.sums import Sums
from traces.workers.workers import Workers


class ComparedSides(Sums):
    """What is measured on both captures: `recorded`, `replayed` and their `equality`.

    `origins_ns`: where the curves of both begin.
    """

    def __init__(
        self, source: ReplayedCapture, replay: ReplayedCapture, numbers: FileNumbers, origins_ns: tuple[int, int]
    ) -> None:
        self.recorded = Measures(source, numbers.source, origins_ns[0])
        self.replayed = Measures(replay, numbers.replay, origins_ns[1])
        self.equality = ExactnessCollector(source, replay, numbers)

    def add_rank(self, rank: int) -> None:
        """Measure and compare a rank. Raises: CaptureError when a part is damaged."""
        self.equality.add_rank(rank, self.recorded.add_rank(rank), self.replayed.add_rank(rank))

    def merge(self, later: ComparedSides) -> None:
        """As `Sums.merge`."""
        self.recorded.merge(later.recorded)
        self.replayed.merge(later.replayed)
        self.equality.merge(later.equality)


def compared_sides(
    source: ReplayedCapture, replay: ReplayedCapture, on_rows: Callable[[int], None], workers: Workers
) -> ComparedSides:
    """Both captures measured, all ranks. `on_rows` gets numbers of rows of both as they are done.

    Raises: CaptureError when a capture is damaged.
    """
    captures = (source.capture, replay.capture)
    numbers = FileNumbers.of(*captures)
    origins_ns = (first_start_ns(captures[0]), first_start_ns(captures[1]))
    whole = ComparedSides(source, replay, numbers, origins_ns)
    pieces = pieces_of_both(captures, workers.piece_operations)
    if len(pieces) == 1:
        for rank in pieces[0]:
            whole.add_rank(rank)
            on_rows(_rows(captures, rank))
        return whole
    work = _ComparedRanks(source=source, replay=replay, numbers=numbers, origins_ns=origins_ns)
    operations = sum(capture.stored_rows() for capture in captures)
    with workers.results(work, pieces, operations=operations, named=_named) as results:
        for ranks, part in zip(pieces, results, strict=True):
            whole.merge(part)
            on_rows(sum(_rows(captures, rank) for rank in ranks))
    return whole


@dataclass(frozen=True, kw_only=True, eq=False)
class _ComparedRanks:
    """The measures of some ranks. `numbers`: not sent to another process, which works them out once."""

    source: ReplayedCapture
    replay: ReplayedCapture
    origins_ns: tuple[int, int]
    numbers: FileNumbers | None = None

    def __call__(self, ranks: Sequence[int]) -> ComparedSides:
        numbers = self.numbers or _numbers_of(self.source.capture.whole, self.replay.capture.whole)
        sides = ComparedSides(self.source.of_ranks(ranks), self.replay.of_ranks(ranks), numbers, self.origins_ns)
        for rank in ranks:
            sides.add_rank(rank)
        return sides

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "numbers": None}


@lru_cache(maxsize=1)
def _numbers_of(source: Capture, replay: Capture) -> FileNumbers:
    return FileNumbers.of(source, replay)


def _rows(captures: Sequence[Capture], rank: int) -> int:
    return sum(capture.stored_rows(rank) for capture in captures)


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
