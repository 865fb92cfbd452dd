from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan.dxt import DxtBlock, read_dxt
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.export import darshan_segments
from dxt_replay.profiler_merge.export.darshan_container import LogRegions, encode_job
from dxt_replay.profiler_merge.export.darshan_rows import ROW
from dxt_replay.profiler_merge.export.darshan_segments import encode_segments
from dxt_replay.traces.units import seconds_to_ns
from tests.examples import examples

IDS = np.array([11, 1 << 63, 13], dtype=np.uint64)
segment = st.tuples(
    st.integers(0, 2), st.booleans(), st.integers(0, 1 << 50), st.integers(0, 1 << 40),
    st.integers(-(10**12), 10**15), st.integers(0, 10**12), st.integers(0, 5),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("segments")


def decoded(folder: Path, data: bytes, version: int) -> list[DxtBlock]:
    job, _ = encode_job(start_ns=1, end_ns=10**9, nprocs=9, job_id=1, exe="x", metadata={}, mounts=[])
    with LogRegions(folder) as regions, open(folder / "x.darshan", "wb") as file:
        regions.append("DXT_POSIX", version, data)
        regions.write(file, job=job, names=b"")
    return list(read_dxt(open_log(folder / "x.darshan")))


def columns(drawn: list[tuple[int, bool, int, int, int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    drawn = sorted(drawn, key=lambda one: one[0])
    rows = np.zeros(len(drawn), dtype=ROW)
    for row, (_, _, offset, length, start, duration, lane) in zip(rows, drawn, strict=True):
        row["offset"], row["length"], row["lane"] = offset, length, lane
        row["start_ns"], row["end_ns"] = start, start + duration
    return np.array([one[0] for one in drawn], dtype=int), np.array([one[1] for one in drawn], dtype=bool), rows


@settings(max_examples=examples(80))
@given(drawn=st.lists(segment, max_size=30), threads=st.booleans())
def test_what_is_written_is_read(folder: Path, drawn: list, threads: bool) -> None:
    file, write, rows = columns(drawn)
    blocks = decoded(folder, b"".join(encode_segments(file, write, rows, IDS, 7, threads=threads)), 1 + threads)
    found, lanes = [], {}
    for block in blocks:
        assert set(block.ranks.tolist()) == {7}
        for i in range(len(block.record)):
            start, end = seconds_to_ns(float(block.start_s[i])), seconds_to_ns(float(block.end_s[i]))
            found.append(
                (block.record_ids[block.record[i]], block.is_write[i], block.offset[i], block.length[i], start, end)
            )
            if block.pthread_id is not None:
                lanes[found[-1]] = block.pthread_id[i]
    keys = [
        (IDS[f], w, row["offset"], row["length"], row["start_ns"], row["end_ns"])
        for f, w, row in zip(file, write, rows, strict=True)
    ]
    assert sorted(found) == sorted(keys)
    assert bool(lanes) == (threads and bool(drawn))
    if threads and len(set(keys)) == len(keys):
        pairs = {(lanes[key], row["lane"]) for key, row in zip(keys, rows, strict=True)}
        assert len(pairs) == len({thread for thread, _ in pairs}) == len({lane for _, lane in pairs})


@settings(max_examples=examples(40))
@given(drawn=st.lists(segment, max_size=30), piece=st.integers(1, 40))
def test_pieces_make_the_same_bytes(drawn: list, piece: int) -> None:
    file, write, rows = columns(drawn)
    whole = b"".join(encode_segments(file, write, rows, IDS, 7, threads=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(darshan_segments, "PIECE_SEGMENTS", piece)
        pieces = list(encode_segments(file, write, rows, IDS, 7, threads=True))
    assert b"".join(pieces) == whole
    assert len(pieces) == -(-len(drawn) // piece)


def test_a_record_that_readers_cannot_hold_is_several(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(darshan_segments, "MAX_RECORD_SEGMENTS", 3)
    drawn = [(file, i % 2 == 0, i, 1, i * 1000, 10, 0) for file in (0, 2) for i in range(7)]
    file, write, rows = columns(drawn)
    (block,) = decoded(folder, b"".join(encode_segments(file, write, rows, IDS, 0, threads=False)), 1)
    assert block.record_ids.tolist() == [11, 11, 11, 13, 13, 13]
    assert block.write_counts.tolist() == [2, 1, 1] * 2
    assert block.read_counts.tolist() == [1, 2, 0] * 2
    assert block.offset.tolist() == [0, 2, 1, 4, 3, 5, 6] * 2
    assert set(block.hostnames) == {"unknown"}
