"""Cuts a capture into pieces of whole ranks, and large ranks into stretches of time, which several processes can work
on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dxt_replay.traces.part import Part
from dxt_replay.traces.store.checks import MOST_NS
from dxt_replay.traces.store.part_capture import PartCapture
from dxt_replay.traces.store.reader import Capture

OPERATIONS_PER_FILE = 8
"""Operations per file that a piece has at least, since sums by file are as long as the files table."""


RANK_OPERATIONS = 1 << 12
"""Cost of a rank in operations: its entry in the sums, and its row groups."""


def work_of(capture: Capture) -> int:
    """Amount of work of a pass over a capture, in operations."""
    return capture.stored_rows() + RANK_OPERATIONS * len(capture.index.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some ranks of a capture, or the operations of one rank that start within `starts_ns`, [begin, end).

    rows: their number, without reading them."""

    ranks: tuple[int, ...]
    rows: int
    starts_ns: tuple[int, int] | None = None

    def __str__(self) -> str:
        first, last = self.ranks[0], self.ranks[-1]
        named = f"rank {first}" if first == last else f"ranks {first} to {last}"
        return named if self.starts_ns is None else f"a stretch of {named}"


def pieces_of(capture: Capture, operations: int) -> list[Piece]:
    """As `rank_pieces`, but a rank with twice as many operations or more is cut into stretches of time, where row
    groups begin."""
    return [piece for ranks in rank_pieces(capture, operations) for piece in _stretches(capture, ranks, operations)]


def _stretches(capture: Capture, ranks: tuple[int, ...], operations: int) -> list[Piece]:
    index, rows = capture.index, sum(map(capture.stored_rows, ranks))
    count = rows // _piece_size((capture,), operations)
    if len(ranks) != 1 or count < 2:
        return [Piece(ranks=ranks, rows=rows)]
    groups = index.of(ranks[0])
    places = np.searchsorted(np.cumsum(index.rows[groups]), rows * np.arange(1, count) // count)
    cuts = np.unique(index.first_ns[groups][places])
    edges = [-MOST_NS, *cuts[cuts > index.first_ns[groups[0]]].tolist(), MOST_NS]
    return [Piece(ranks=ranks, rows=rows // (len(edges) - 1), starts_ns=edge) for edge in pairwise(edges)]


def rank_pieces(capture: Capture, operations: int) -> list[tuple[int, ...]]:
    """The ranks of a capture in groups of about `operations` each, or of one larger rank; at least one piece.

    The cut follows from the capture alone, and so do sums over the pieces.
    """
    return pieces_of_both((capture,), operations)


def pieces_of_both(captures: Sequence[Capture], operations: int) -> list[tuple[int, ...]]:
    """As `rank_pieces`, for a pass over several captures in step: the pieces hold the ranks of all of them."""
    ranks = sorted({rank for capture in captures for rank in capture.ranks})
    rows = np.sum([capture.index.row_counts(ranks) for capture in captures], axis=0)
    work = rows + RANK_OPERATIONS * (rows > 0)
    size = _piece_size(captures, operations)
    count = int(min(len(ranks), max(work.sum() // size, 1))) if len(ranks) else 1
    if count == 1:
        return [tuple(ranks)]
    # A rank belongs to the piece in which its middle lies.
    place = (2 * np.cumsum(work) - work) * count // max(2 * int(work.sum()), 1)
    begins = [0, *(np.flatnonzero(np.diff(place)) + 1).tolist(), len(ranks)]
    return [tuple(ranks[begin:end]) for begin, end in pairwise(begins)]


def _piece_size(captures: Sequence[Capture], operations: int) -> int:
    """The least operations of a piece."""
    files = max(capture.files.num_rows for capture in captures)
    return max(operations, OPERATIONS_PER_FILE * files if operations > 1 else 1)


def only_ranks(capture: Capture, ranks: Sequence[int]) -> Capture:
    """The capture restricted to these ranks, for sums that are then merged with those of the others."""
    chosen = set(ranks)
    mine = tuple(rank for rank in capture.ranks if rank in chosen)
    return PartCapture(capture, Part(ranks=mine), mine, None, None)
