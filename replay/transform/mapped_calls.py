"""Replaces reads of mapped files by calls: what if the program read eagerly? Exact: the same pages are read. Pure."""

from __future__ import annotations

import dataclasses

import numpy as np

from dxt_replay.replay.transform.rank_work import TRANSFORMED, RankWork
from dxt_replay.replay.transform.read_data import RequestCost
from dxt_replay.replay.transform.transfer_size import with_transfer_size
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import APIS, OPEN_FLAGS, READ, codes
from dxt_replay.traces.store.reader import Capture

CALL_BYTES = 1 << 20
"""Adjacent pages that a lane used one after the other are read by calls that end at multiples of this."""

EAGERLY = (
    "pages that were used one after the other are read by calls of up to 1 MiB, also where a later step used the last "
    "of them; where one page fault mapped several cached pages, the use of some may be missing"
)
"""What a change to calls assumes."""

_SEQUENTIAL = np.int16(1 << OPEN_FLAGS.index("sequential"))
_POSIX, _MMAP = APIS.index("POSIX"), APIS.index("MMAP")


def check_mapped(capture: Capture) -> None:
    """Raises: UsageError for a capture without reads of mapped files."""
    if not any((codes(used, "api") == _MMAP).any() for used in capture.usages()):
        raise UsageError("--mapped: the capture has no read of a mapped file (see docs/recording.md)")


def with_calls(work: RankWork, cost: RequestCost) -> RankWork:
    """The operations, with POSIX reads of at most CALL_BYTES in place of mapped ones, and no mappings.

    Pages that a later step used, adjacent to those of an earlier one, may come with the earlier call.
    """
    mapped = work.api == _MMAP
    gone = mapped & (work.op != READ)
    work = dataclasses.replace(
        work,
        api=np.where(mapped, _POSIX, work.api).astype(work.api.dtype),
        origin=np.where(mapped, TRANSFORMED, work.origin).astype(work.origin.dtype),
        # PyTorch announces sequential reads of files that it maps, and of no others.
        open_flags=np.where(work.open_flags < 0, work.open_flags, work.open_flags & ~_SEQUENTIAL),
        think_ns=work.think_ns + _left_behind(work, gone),
    )
    return with_transfer_size(work.rows(~gone), mapped[~gone], CALL_BYTES, cost)


def _left_behind(work: RankWork, gone: np.ndarray) -> np.ndarray:
    """int64 (n,): think times of operations that go; each passes to the next one of its lane that stays."""
    added = np.zeros(len(work), dtype=np.int64)
    for lane in np.unique(work.lane[gone]).tolist():
        mine = np.flatnonzero(work.lane == lane)
        lost, kept = mine[gone[mine]], mine[~gone[mine]]
        taker = np.searchsorted(kept, lost)
        lost, taker = lost[taker < len(kept)], taker[taker < len(kept)]
        # The think time of an operation that was held back is not work of the lane.
        np.add.at(added, kept[taker], np.where(work.held[lost], 0, work.think_ns[lost]))
    return added
