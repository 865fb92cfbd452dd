"""One pass over both captures of a comparison, in step by rank: the measures of each side, and their equality."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dxt_replay.replay.fidelity.exactness import ExactnessCollector, FileNumbers
from dxt_replay.replay.fidelity.replayed_rows import ReplayedCapture
from dxt_replay.replay.fidelity.side_measures import Measures, Start
from dxt_replay.traces.store.part_capture import pieces_of_both, work_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.sums import Sums
from dxt_replay.traces.workers import Workers

ROWS_TOGETHER = 1 << 17
"""Rows of both captures that are measured at once: of a rank with more, a row group at a time."""


class ComparedSides(Sums):
    """Measures of both captures, `recorded` and `replayed`, and their `equality`. `starts`: of both."""

    STAY = ("_captures", "_files")

    def __init__(
        self, source: ReplayedCapture, replay: ReplayedCapture, numbers: FileNumbers, starts: tuple[Start, Start]
    ) -> None:
        files = len(numbers.paths)
        self.recorded = Measures(source, numbers.source, files, starts[0])
        self.replayed = Measures(replay, numbers.replay, files, starts[1])
        self.equality = ExactnessCollector(source, replay, numbers)
        self._captures, self._files = (source.capture, replay.capture), files

    def add(self, ranks: Sequence[int], on_rows: Callable[[int], None] = lambda rows: None) -> None:
        """Measure and compare ranks, small ones together. Raises: CaptureError when a part is damaged."""
        rows = [_rows(self._captures, rank) for rank in ranks]
        for few in _together(ranks, rows, self._files):
            self.equality.add_ranks(few, self.recorded.add_ranks(few), self.replayed.add_ranks(few))
            on_rows(sum(_rows(self._captures, rank) for rank in few))

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
    starts = (Start.of(source), Start.of(replay))
    whole = ComparedSides(source, replay, numbers, starts)
    pieces = pieces_of_both(captures, len(captures) * workers.piece_operations)
    if len(pieces) == 1:
        whole.add(pieces[0], on_rows)
        return whole
    work = _ComparedRanks(source=source, replay=replay, numbers=numbers, starts=starts)
    operations = sum(map(work_of, captures))
    with workers.results(work, pieces, operations=operations, named=_named) as results:
        for ranks, part in zip(pieces, results, strict=True):
            whole.merge(part)
            on_rows(sum(_rows(captures, rank) for rank in ranks))
    return whole


@dataclass(frozen=True, kw_only=True, eq=False)
class _ComparedRanks:
    """The measures of some ranks. `numbers`: not sent to another process, which computes them once."""

    source: ReplayedCapture
    replay: ReplayedCapture
    starts: tuple[Start, Start]
    numbers: FileNumbers | None = None

    def __call__(self, ranks: Sequence[int]) -> ComparedSides:
        numbers = self.numbers or _numbers_of(self.source.capture.whole, self.replay.capture.whole)
        sides = ComparedSides(self.source.of_ranks(ranks), self.replay.of_ranks(ranks), numbers, self.starts)
        sides.add(ranks)
        return sides

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "numbers": None}


@lru_cache(maxsize=1)
def _numbers_of(source: Capture, replay: Capture) -> FileNumbers:
    return FileNumbers.of(source, replay)


def _together(ranks: Sequence[int], rows: Sequence[int], files: int) -> Iterator[tuple[int, ...]]:
    """The ranks in order, those with few rows together. `files`: keys of files of several ranks have 31 bits."""
    begin = total = 0
    for place, count in enumerate(rows):
        if place > begin and (total + count > ROWS_TOGETHER or (place - begin + 1) * files >= 1 << 31):
            yield tuple(ranks[begin:place])
            begin, total = place, 0
        total += count
    if begin < len(ranks):
        yield tuple(ranks[begin:])


def _rows(captures: Sequence[Capture], rank: int) -> int:
    return sum(capture.stored_rows(rank) for capture in captures)


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
