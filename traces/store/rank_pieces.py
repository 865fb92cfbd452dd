"""Cuts a capture into pieces of whole ranks, which several processes can work on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dxt_replay.traces.store.reader import Capture

OPERATIONS_PER_FILE = 8
"""Operations per file that a piece has at least, since sums by file are as long as the files table."""


RANK_OPERATIONS = 1 << 12
"""Cost of a rank in operations: its entry in the sums, and its row groups."""


def work_of(capture: Capture) -> int:
    """Amount of work of a pass over a capture, in operations."""
    return capture.stored_rows() + RANK_OPERATIONS * len(capture.index.ranks)


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
