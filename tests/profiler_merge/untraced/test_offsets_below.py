"""MPI-IO counts no offsets: its operations are rebuilt where the POSIX requests that carried them out were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.merge import MergeResult, merge
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, encode_dxt, write_log

SIZE, EACH, RANKS = 131_072, 50, 4
RECORD = 17


def counters(prefix: str, writes: int, size: int, *, rank: int = -1, **more: Any) -> dict[str, Any]:
    """The counters of writes of one size."""
    agg = "_AGG" if prefix == "MPIIO" else ""
    bin_name = "100K_1M" if size > 100 << 10 else "10K_100K"
    found = {
        "BYTES_WRITTEN": writes * size, f"SIZE_WRITE{agg}_{bin_name}": writes, "ACCESS1_ACCESS": size,
        "ACCESS1_COUNT": writes, "F_WRITE_START_TIMESTAMP": 1.0, "F_WRITE_END_TIMESTAMP": 9.0, "F_WRITE_TIME": 4.0,
    }  # fmt: skip
    named = {f"{prefix}_{name}": value for name, value in {**found, **more}.items()}
    return {"record_id": RECORD, "rank": rank, **named}


def merged(
    tmp_path: Path,
    posix: Sequence[Mapping[str, Any]],
    mpiio: Sequence[Mapping[str, Any]],
    dxt: Sequence[DxtRecord] = (),
) -> tuple[MergeResult, dict[tuple[str, int], list[tuple[int, int]]]]:
    """The result, and (offset, length) of the writes by (interface, rank), in the order of their start."""
    modules = {
        "POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", posix, 4)]),
        "MPI-IO": ModuleSpec(version=3, streams=[encode_counters("MPI-IO", mpiio, 3)]),
    }
    if dxt:
        modules["DXT_POSIX"] = ModuleSpec(version=1, streams=[encode_dxt(dxt)])
    job = JobSpec(nprocs=RANKS, start_s=1000, end_s=1010)
    log = write_log(tmp_path / "j.darshan", job=job, names={RECORD: b"/scratch/shared.dat"}, modules=modules)
    made = merge([log], [], tmp_path / "j.capture")
    rows = pa.Table.from_batches(list(open_capture(made.capture).operations())).to_pylist()
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in rows:
        if row["op"] == "write":
            api = row["api"].removesuffix("_COLL")
            found.setdefault((api, row["rank"]), []).append((row["offset"], row["length"]))
    return made, found


def interleaved(**more: Any) -> dict[str, Any]:
    """What Darshan counts, over all ranks, of a file that they write in turns as IOR does: transfer k of rank r lies at
    (k * RANKS + r) * SIZE. The first write of rank 0, at 0, is not behind the last byte; all others are."""
    count = RANKS * EACH
    order = {
        "WRITES": count, "SEQ_WRITES": count - 1, "MAX_BYTE_WRITTEN": count * SIZE - 1,
        "STRIDE1_STRIDE": (RANKS - 1) * SIZE, "STRIDE1_COUNT": count - RANKS, "OPENS": RANKS,
        "FASTEST_RANK": 2, "FASTEST_RANK_BYTES": EACH * SIZE, "SLOWEST_RANK_BYTES": EACH * SIZE,
    }  # fmt: skip
    return counters("POSIX", count, SIZE, **order, **more)


@pytest.mark.parametrize("kind", ["COLL", "INDEP"])
def test_ranks_that_write_in_turns_do_so_at_both_layers(tmp_path: Path, kind: str) -> None:
    above = counters("MPIIO", RANKS * EACH, SIZE, **{f"{kind}_WRITES": RANKS * EACH})
    made, found = merged(tmp_path, [interleaved()], [above])
    for rank in range(RANKS):
        expected = [((k * RANKS + rank) * SIZE, SIZE) for k in range(EACH)]
        assert found["POSIX", rank] == expected
        assert found["MPIIO", rank] == expected
    assert not any("guess" in text for text in made.info.warnings)


def test_traced_requests_below_give_their_places(tmp_path: Path) -> None:
    """Two ranks with records of their own, of other sizes, at places in no order."""
    chance = np.random.default_rng(7)
    dxt, posix, mpiio, expected = [], [], [], {}
    for rank, size in ((0, SIZE), (1, SIZE // 2)):
        offsets = chance.permutation(EACH) * (3 * size)
        expected[rank] = [(int(offset), size) for offset in offsets]
        segments = [(int(offset), size, 1 + k / 10, 1.05 + k / 10) for k, offset in enumerate(offsets)]
        dxt.append(DxtRecord(record_id=RECORD, rank=rank, writes=segments))
        last = int(offsets.max()) + size - 1
        posix.append(counters("POSIX", EACH, size, rank=rank, WRITES=EACH, MAX_BYTE_WRITTEN=last, OPENS=1))
        mpiio.append(counters("MPIIO", EACH, size, rank=rank, INDEP_WRITES=EACH))
    made, found = merged(tmp_path, posix, mpiio, dxt)
    for rank in (0, 1):
        assert found["POSIX", rank] == expected[rank]
        assert found["MPIIO", rank] == expected[rank]
    assert not any("guess" in text for text in made.info.warnings)


def test_requests_that_were_gathered_show_no_places(tmp_path: Path) -> None:
    """Two aggregators wrote four times as much at once for all: which rank asked for what is not known."""
    size, count = 4 * SIZE, RANKS * EACH // 4
    below = counters("POSIX", count, size, WRITES=count, SEQ_WRITES=count - 1, MAX_BYTE_WRITTEN=count * size - 1)
    below.update(POSIX_SIZE_WRITE_100K_1M=count, POSIX_OPENS=2)
    above = counters("MPIIO", RANKS * EACH, SIZE, COLL_WRITES=RANKS * EACH)
    made, found = merged(tmp_path, [below], [above])
    assert {length for rank in range(RANKS) for _, length in found["MPIIO", rank]} == {SIZE}
    (text,) = [text for text in made.info.warnings if "guess" in text]
    assert text.startswith(f"the places of {RANKS * EACH} rebuilt MPI-IO operations in their files are a guess")


def test_as_many_requests_of_other_sizes_show_no_places(tmp_path: Path) -> None:
    count = RANKS * EACH
    above = counters("MPIIO", count, SIZE // 2, COLL_WRITES=count)
    made, found = merged(tmp_path, [interleaved()], [above])
    assert {length for rank in range(RANKS) for _, length in found["MPIIO", rank]} == {SIZE // 2}
    assert any("are a guess" in text for text in made.info.warnings)
