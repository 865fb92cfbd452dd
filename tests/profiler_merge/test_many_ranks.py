"""A log of many small ranks, which are worked on together: each comes out as from a log of its own, and as one that is
kept in files and merged in stretches of time."""

import zlib

import numpy as np
import pytest

from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import encode_dxt
from tests.log_of_ranks import RANKS, rank_of_log, rows_by_rank, write_ranks


def merged(log, **options):
    """The rows of each rank, with paths in the place of files, and the number of reads and writes that were rebuilt."""
    result = merge([log], [], log.with_suffix(".capture"), MergeOptions(force=True, **options))
    assert sorted(path.name for path in result.capture.iterdir()) == sorted(
        ["capture.json", "files.parquet", "index.parquet", "lanes.parquet", "ops", "spans.parquet"]
    )
    rows = rows_by_rank(open_capture(result.capture))
    return rows, result.as_json()["rebuilt"]["operations"]


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_ranks_in_files_are_those_in_memory(tmp_path, threads, seed):
    rng = np.random.default_rng(seed)
    parts = [rank_of_log(rank, rng, threads=threads, most=60) for rank in range(RANKS)]
    log, options = (
        write_ranks(tmp_path / "a.darshan", parts, threads=threads),
        {"exclude": ("*-0.bin",)} if seed else {},
    )
    assert merged(log, **options) == merged(log, memory_rows=20, block_rows=13, **options)


@pytest.mark.parametrize("threads", [True, False])
def test_ranks_together_are_what_each_is_alone(tmp_path, threads):
    rng = np.random.default_rng(12)
    parts = [rank_of_log(rank, rng, threads=threads) for rank in range(RANKS)]
    together, rebuilt = merged(write_ranks(tmp_path / "all.darshan", parts, threads=threads))
    assert all(together.values())
    assert {"rename", "open", "write"} <= {row["op"] for rows in together.values() for row in rows}
    alone = [
        merged(write_ranks(tmp_path / f"{rank}.darshan", [part], threads=threads)) for rank, part in enumerate(parts)
    ]
    for rank, (rows, _) in enumerate(alone):
        assert together[rank] == rows[rank]
    assert rebuilt == sum(count for _, count in alone) > 0


def test_streams_in_any_order_are_those_in_the_order_of_the_ranks(tmp_path):
    rng = np.random.default_rng(5)
    parts = [rank_of_log(rank, rng, threads=True) for rank in range(RANKS)]
    ordered = merged(write_ranks(tmp_path / "a.darshan", parts, threads=True))
    assert merged(write_ranks(tmp_path / "b.darshan", [*parts[3:], *parts[:3]], threads=True)) == ordered


def test_what_the_trace_lacks_behind_damage_is_rebuilt(tmp_path):
    rng = np.random.default_rng(12)
    parts = [rank_of_log(rank, rng, threads=True) for rank in range(RANKS)]
    dxt = [zlib.compress(encode_dxt(part[1], "DXT_POSIX", 2)) for part in parts]
    log = write_ranks(tmp_path / "a.darshan", parts, threads=True, dxt=[*dxt[:5], dxt[5][:-20]])
    result = merge([log], [], log.with_suffix(".capture"))
    assert any(text.startswith("a.darshan is damaged") for text in result.info.warnings)
    assert 0 < result.info.coverage.traceable[0] < 1
    rows = [row for ranks in rows_by_rank(open_capture(result.capture)).values() for row in ranks]
    reads = sum(row["op"] == "read" and row["api"] == "POSIX" for row in rows)
    assert reads == result.counted["POSIX"]["reads"]
