"""The DXT reader over written logs of every layout; test_counters.py has the real ones."""

import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan import dxt
from dxt_replay.profiler_merge.darshan import log as container
from dxt_replay.profiler_merge.darshan.dxt import DXT_MODULES, DxtBlock, count_segments, read_dxt
from dxt_replay.profiler_merge.darshan.log import DarshanLog, open_log
from dxt_replay.traces.errors import LogError
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_dxt, segment_dtype, write_log
from tests.examples import examples

SIZES = {("DXT_POSIX", 1): 32, ("DXT_POSIX", 2): 40, ("DXT_MPIIO", 1): 32, ("DXT_MPIIO", 2): 32, ("DXT_MPIIO", 3): 40}
"""Layout -> bytes of a segment; one of 40 has the thread."""

times = st.floats(0, 1e6, allow_nan=False)
segments = st.builds(
    lambda offset, length, start, duration, thread: (offset, length, start, start + duration, thread),
    st.integers(0, 2**60), st.integers(0, 2**40), times, times, st.integers(0, 2**64 - 1),
)  # fmt: skip
records = st.lists(
    st.builds(
        DxtRecord,
        record_id=st.integers(0, 2**64 - 1),
        rank=st.integers(0, 2**31 - 1),
        writes=st.lists(segments, max_size=4),
        reads=st.lists(segments, max_size=6),
        hostname=st.sampled_from([b"node0", b"nid00097", b"h" * 64]),
    ),
    max_size=8,
)


def expected_rows(written: Sequence[DxtRecord], module: str = "DXT_POSIX", version: int = 1) -> list[tuple[Any, ...]]:
    """The segments as the reader should give them, in file order."""
    rows = []
    for record in written:
        for is_write, parts in ((True, record.writes), (False, record.reads)):
            for offset, length, start, end, *thread in parts:
                shown = -1 if (module, version) == ("DXT_MPIIO", 1) else offset
                kept = thread[0] if SIZES[module, version] == 40 else None
                rows.append((record.record_id, record.rank, is_write, int(shown), int(length), start, end, kept))
    return rows


def rows_of(blocks: Sequence[DxtBlock]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for block in blocks:
        count = len(block.ranks)
        assert np.array_equal(np.bincount(block.record, minlength=count), block.write_counts + block.read_counts)
        assert np.array_equal(np.bincount(block.record[block.is_write], minlength=count), block.write_counts)
        threads = [None] * len(block.record) if block.pthread_id is None else block.pthread_id.tolist()
        columns = [getattr(block, name).tolist() for name in ("is_write", "offset", "length", "start_s", "end_s")]
        ids, ranks = (values[block.record].tolist() for values in (block.record_ids, block.ranks))
        rows += zip(ids, ranks, *columns, threads, strict=True)
    return rows


def log_of(target: Path, *streams: bytes, module: str = "DXT_POSIX", version: int = 1, **options: Any) -> DarshanLog:
    modules = {module: ModuleSpec(version=version, streams=streams)}
    names = {7: b"/a/b", 8: b"/a/c"}
    return open_log(write_log(target, names=names, modules=modules, job=JobSpec(nprocs=1 << 31), **options))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "job.darshan"


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 100 bytes and blocks of 300, so that a record of ten segments is split."""
    monkeypatch.setattr(container, "PIECE_BYTES", 100)
    monkeypatch.setattr(dxt, "BLOCK_BYTES", 300)


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize(("module", "version"), SIZES)
@given(
    written=st.lists(records, min_size=1, max_size=3),
    piece=st.integers(8, 300),
    block=st.integers(dxt.HEADER_BYTES, 600),
)
@settings(max_examples=examples(12))
def test_every_layout_gives_what_was_written_whatever_the_size_of_blocks(
    module: str, version: int, byte_order: str, written: list[list[DxtRecord]], piece: int, block: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    streams = [encode_dxt(rank, module, version, byte_order) for rank in written]
    log = log_of(tmp_path_factory.mktemp("a") / "a", *streams, module=module, version=version, byte_order=byte_order)
    flat = [record for rank in written for record in rank]
    blocks = list(read_dxt(log, module))
    assert rows_of(blocks) == expected_rows(flat, module, version)
    assert [host for block in blocks for host in block.hostnames] == [r.hostname.decode() for r in flat]
    assert segment_dtype(module, version).itemsize == SIZES[module, version]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(container, "PIECE_BYTES", piece)
        patch.setattr(dxt, "BLOCK_BYTES", block)
        assert rows_of(list(read_dxt(log, module))) == expected_rows(flat, module, version)
        found: Counter[tuple[int, bool]] = Counter()
        for part in count_segments(log, module):
            for record, writes, reads in zip(*(each.tolist() for each in part), strict=True):
                found.update({(record, True): writes, (record, False): reads})
        assert +found == Counter((row[0], row[2]) for row in expected_rows(flat, module, version))


@pytest.mark.usefixtures("tiny_blocks")
def test_a_record_is_split_only_when_it_alone_is_too_large(target: Path) -> None:
    small = [DxtRecord(record_id=n, reads=[(n, 1, 1.0, 2.0)]) for n in range(4)]
    ways = {way: [(n, 1, 1.0, 2.0) for n in range(15)] for way in ("writes", "reads")}
    large = DxtRecord(record_id=9, **ways)
    blocks = list(read_dxt(log_of(target, encode_dxt([*small, large, *small]))))
    assert rows_of(blocks) == expected_rows([*small, large, *small])
    parts = [block for block in blocks if 9 in block.record_ids]
    assert len(parts) > 2
    assert all(block.record_ids.tolist() == [9] for block in parts)


def test_blocks_and_their_ends(target: Path) -> None:
    assert [list(read_dxt(open_log(write_log(target)), module)) for module in DXT_MODULES] == [[], []]
    many = [DxtRecord(record_id=n, reads=[(n, 1, 1.0, 2.0)], hostname=b"n\xff\0junk") for n in range(2000)]
    (block,) = read_dxt(log_of(target, encode_dxt(many)))
    assert block.record.tolist() == list(range(2000))
    assert block.hostnames[0] == "n\\xff"
    (block,) = read_dxt(log_of(target, encode_dxt([DxtRecord(record_id=7, reads=[(2**62 - 1, 2**62 - 1, 1.0, 2.0)])])))
    assert (block.offset + block.length).tolist() == [2**63 - 2]


@pytest.mark.parametrize("after", [b"", b"\n", b"\0\x07\x00\x00\x08", b"\n\x000123"])
def test_segments_with_64_bytes_of_text_are_read_with_their_threads(target: Path, after: bytes) -> None:
    """As the branch dev-dxt-extra-info writes them; `after`: old memory behind the text."""
    threads = [23438262046720, 7, 23438262046720]
    reads = [(100 * number, 100, number + 1.0, number + 1.5) for number in range(3)]
    data = struct.pack("<Qqq64sqq", 1, 0, 0, b"node", 0, 3)
    for each, thread in zip(reads, threads, strict=True):
        data += struct.pack("<qqdd64s", *each, b"pthread_id=%d" % thread + after)
    (block,) = read_dxt(log_of(target, data))
    assert block.pthread_id is not None
    assert (block.pthread_id.tolist(), block.offset.tolist()) == (threads, [0, 100, 200])


@pytest.mark.parametrize(("module", "version"), [("DXT_POSIX", 3), ("DXT_POSIX", 0), ("DXT_MPIIO", 4)])
def test_an_unknown_version_is_named(target: Path, module: str, version: int) -> None:
    with pytest.raises(LogError, match=f"{module} version {version}; this release reads 1, 2"):
        list(read_dxt(log_of(target, b"whatever", module=module, version=version), module))


@pytest.mark.parametrize(
    ("segment", "defect"),
    [
        ((0, 1, 2.0, 1.0), "ends before it starts"), ((0, 1, float("nan"), 1.0), "has an impossible time"),
        ((0, 1, 1.0, float("nan")), "has an impossible time"), ((0, 1, 1.0, float("inf")), "has an impossible time"),
        ((0, 1, float("-inf"), 1.0), "has an impossible time"), ((0, 1, 1e300, 1e300), "has an impossible time"),
        ((0, -1, 1.0, 2.0), "has an impossible length"), ((0, 2**62, 1.0, 2.0), "has an impossible length"),
        ((-1, 1, 1.0, 2.0), "has an impossible offset"), ((2**62, 1, 1.0, 2.0), "has an impossible offset"),
    ],
)  # fmt: skip
def test_a_damaged_segment_ends_the_trace(target: Path, segment: tuple[float, ...], defect: str) -> None:
    good = [(n, 1, 1.0, 2.0) for n in range(5)]
    first = DxtRecord(record_id=7, rank=2, reads=good)
    second = DxtRecord(record_id=8, rank=3, writes=good[:2], reads=[*good[:3], segment, *good])
    log = log_of(target, encode_dxt([first, second]))
    kept = [first, DxtRecord(record_id=8, rank=3, writes=good[:2], reads=good[:3])]
    assert rows_of(list(read_dxt(log))) == expected_rows(kept)
    assert f"DXT_POSIX segment 5 of rank 3 {defect} (/a/c) (missing: 6 segments)" in log.warnings[0]
    ((_, writes, reads),) = count_segments(log, "DXT_POSIX")
    assert (writes.tolist(), reads.tolist()) == ([0, 2], [5, 3])


@pytest.mark.parametrize(("offset", "kept"), [(-1, [-1]), (-2, [])])
def test_mpiio_may_not_know_offsets(target: Path, offset: int, kept: list[int]) -> None:
    data = encode_dxt([DxtRecord(record_id=7, reads=[(offset, 5, 1.0, 2.0)])], "DXT_MPIIO", 2)
    log = log_of(target, data, module="DXT_MPIIO", version=2)
    assert [row[3] for row in rows_of(list(read_dxt(log, "DXT_MPIIO")))] == kept
    assert bool(kept) == ("DXT_MPIIO" not in log.damage)


@pytest.mark.usefixtures("tiny_blocks")
def test_a_segment_of_a_split_record_keeps_its_number(target: Path) -> None:
    reads = [(n, 1, 1.0, 2.0) for n in range(40)]
    reads[33] = (0, 1, 2.0, 1.0)
    log = log_of(target, encode_dxt([DxtRecord(record_id=7, rank=1, reads=reads)]))
    assert len(rows_of(list(read_dxt(log)))) == 33
    assert "segment 33 of rank 1 ends before" in log.damage["DXT_POSIX"].problem
    assert log.damage["DXT_POSIX"].missing == "7 segments"


@pytest.mark.parametrize("rank", [-1, 2**31])
@pytest.mark.parametrize("reads", [[], [(0, 1, 1.0, 2.0)]])
def test_an_impossible_rank(target: Path, rank: int, reads: list[tuple[float, ...]]) -> None:
    good = DxtRecord(record_id=8, rank=1, reads=[(3, 4, 1.0, 2.0)])
    log = log_of(target, encode_dxt([good, DxtRecord(record_id=7, rank=rank, reads=reads), good]))
    blocks = list(read_dxt(log))
    assert rows_of(blocks) == expected_rows([good])
    assert [block.record_ids.tolist() for block in blocks] == [[8]]
    assert f"record of the impossible rank {rank} (/a/b)" in log.damage["DXT_POSIX"].problem


@pytest.mark.parametrize(
    ("count", "cut", "whole", "said"),
    [
        *((count, 0, 1, "has a record of 0 writes") for count in (-1, -(2**63))),
        *((count, 0, 2, "ends inside a record") for count in (2**40, 2**63 - 1)),
        *((None, cut, 1 + (cut < 1), "ends inside a record") for cut in (1, 31, 32)),
        *((None, cut, 1, "ends inside a record") for cut in (33, 32 + 104 - 1)),
        (None, 32 + 104 + 1, 0, "ends inside a record"),
    ],
)
def test_a_lying_count_and_a_cut_keep_the_segments_before(
    target: Path, count: int | None, cut: int, whole: int, said: str
) -> None:
    written = [DxtRecord(record_id=7 + n, rank=1, reads=[(n, 1, 1.0, 2.0)]) for n in range(2)]
    data = bytearray(encode_dxt(written))
    if count is not None:
        data[136 + 96 : 136 + 104] = count.to_bytes(8, "little", signed=True)
    log = log_of(target, bytes(data[: len(data) - cut]))
    assert rows_of(list(read_dxt(log))) == expected_rows(written)[:whole]
    assert said in log.warnings[0]
