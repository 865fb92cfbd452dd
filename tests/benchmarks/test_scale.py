"""The benchmark of scale: what its logs hold, and a short form of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.large_log import FILES_PER_RANK, PATTERNS, write_large_log
from benchmarks.scale import measure, table
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.darshan.rank_segments import read_rank_segments


@pytest.mark.parametrize("version", [1, 2])
def test_a_large_log_has_the_segments_of_each_rank(tmp_path: Path, version: int) -> None:
    ranks, each = PATTERNS + 2, FILES_PER_RANK * 5
    assert write_large_log(tmp_path / "job.darshan", ranks * each + 3, ranks, version) == ranks * each
    log = open_log(tmp_path / "job.darshan")
    found = list(read_rank_segments(log))
    assert [segments.rank for segments in found] == list(range(ranks))
    assert {len(segments) for segments in found} == {each}
    assert len(log.names) == ranks * FILES_PER_RANK
    of_rank = [{log.names[record] for record in np.unique(segments.record_id).tolist()} for segments in found]
    assert b"/scratch/data/00003-1.bin" in of_rank[3]
    assert sum(map(len, of_rank)) == len(set().union(*of_rank))
    assert all((segments.thread is None) == (version == 1) for segments in found)


@pytest.mark.slow
def test_each_command_finds_all_operations_of_a_large_log(tmp_path: Path) -> None:
    result = measure([8_000, 16_000], [8, 16], job_ranks=8, workers=(1, 2), folder=tmp_path)
    assert {run["operations"] for run in result["by_operations"]} == {8_000, 16_000}
    assert {run["ranks"] for run in result["by_ranks"]} == {8, 16}
    assert len(result["by_operations"]) == len(result["by_ranks"]) == 2 * 4 * 2
    assert len(result["growth"]) == 8
    assert result["pydarshan_ratio"] > 0
    assert table(result).count("\n| 16,000 | 8 | compare |") == 2
    assert not list(tmp_path.iterdir())
