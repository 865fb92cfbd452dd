from __future__ import annotations

from pathlib import Path

import pytest

from dxt_replay.replay.plan.layers import choose_layers
from dxt_replay.replay.transform.changes import Changes
from dxt_replay.replay.transform.read_data import BYTES_PER_OPERATION, check_memory, data_set_of
from dxt_replay.traces.errors import UsageError
from tests.capture_builder import build_capture, read


@pytest.mark.parametrize(
    ("changes", "operations"),
    [
        (Changes(compute_speed=2.0), 8),
        (Changes(ranks=1), 8),
        (Changes(transfer_bytes=250), 8 + 32),  # 4 requests for each of its reads of 1,000 bytes
    ],
)
def test_what_does_not_fit_in_memory_is_refused(tmp_path: Path, changes: Changes, operations: int) -> None:
    ops = [read(0, rank=rank, length=1000, start_ns=number) for rank, n in ((0, 2), (1, 6)) for number in range(n)]
    capture = build_capture(tmp_path, files=["/d/a"], ops=ops)
    data = data_set_of(capture, choose_layers(capture))
    needed = operations * BYTES_PER_OPERATION
    check_memory(capture, changes, data, needed)
    check_memory(capture, changes, data, None)
    with pytest.raises(UsageError, match=rf"the {operations} operations of"):
        check_memory(capture, changes, data, needed - 1)
