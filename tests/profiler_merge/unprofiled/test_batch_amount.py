"""The rhythm of reads: how many a process does from one long gap to the next."""

import numpy as np
import pytest

from dxt_replay.profiler_merge.unprofiled.batch_amount import period
from dxt_replay.profiler_merge.unprofiled.loop_reads import LoopReads

MS = 1_000_000


def reads(batch, *, batches, pause_ms, seed=1):
    """Reads of 1 us with gaps of 1 to 5 us, and a pause before each batch."""
    random = np.random.default_rng(seed)
    count = batch * batches
    gap = random.integers(1_000, 5_000, count)
    gap[::batch] += int(pause_ms * MS)
    start = np.cumsum(gap + 1_000)
    nothing = np.zeros(count, np.int64)
    return LoopReads(
        start_ns=start, end_ns=start + 1_000, length=nothing + 4096, opens=nothing.astype(bool), process=nothing
    )


@pytest.mark.parametrize(("batch", "batches"), [(1, 100), (8, 40), (24, 100), (3000, 30)])
def test_the_batch_is_the_distance_of_long_gaps(batch, batches):
    made = reads(batch, batches=batches, pause_ms=100)
    counted = np.ones(len(made), bool)
    found = period(made, counted, max(0.7 * batch, 1), 1.4 * batch)
    assert found == (None if batch == 1 else batch)


def test_gaps_without_a_rhythm_have_none():
    made = reads(24, batches=100, pause_ms=0)
    assert period(made, np.ones(len(made), bool), 10, 40) is None
