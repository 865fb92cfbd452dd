"""The DXT reader: over written logs of every layout, and against pydarshan on every real one."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan import dxt_stretches
from dxt_replay.profiler_merge.darshan import regions as darshan_stream
from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, read_counters
from dxt_replay.profiler_merge.darshan.dxt import DXT_MODULES, DxtBlock, count_segments, read_dxt
from dxt_replay.profiler_merge.darshan.log import DarshanLog, open_log
from dxt_replay.traces.errors import LogError, UsageError
from tests.darshan_oracle import answer, log_id, shared_logs
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_dxt, segment_dtype, write_log
from tests.examples import examples
from tests.places import recordings

LAYOUTS = [("DXT_POSIX", 1), ("DXT_POSIX", 2), ("DXT_MPIIO", 1), ("DXT_MPIIO", 2), ("DXT_MPIIO", 3)]
WITH_PTHREAD = [("DXT_POSIX", 2), ("DXT_MPIIO", 3)]
PER_RECORD = ("record_ids", "ranks", "write_counts", "read_counts", "host_fields")
PER_SEGMENT = ("is_write", "offset", "length", "start_s", "end_s")

Row = tuple[Any, ...]
MANY = JobSpec(nprocs=1 << 31)

times = st.floats(0, 1e6, allow_nan=False)
segments = st.builds(
    lambda offset, length, start, duration, thread: (offset, length, start, start + duration, thread),
    st.integers(0, 2**60),
    st.integers(0, 2**40),
    times,
    times,
    st.integers(0, 2**64 - 1),
)
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


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "job.darshan"


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 100 bytes and blocks of 300, so that a record of ten segments is split."""
    monkeypatch.setattr(darshan_stream, "PIECE_BYTES", 100)
    monkeypatch.setattr(dxt_stretches, "BLOCK_BYTES", 300)


def expected_rows(written: Sequence[DxtRecord], module: str, version: int) -> list[Row]:
    """The segments as the reader should give them, in file order."""
    rows: list[Row] = []
    for record in written:
        for is_write, parts in ((True, record.writes), (False, record.reads)):
            for offset, length, start, end, *thread in parts:
                shown = -1 if (module, version) == ("DXT_MPIIO", 1) else offset
                kept = thread[0] if (module, version) in WITH_PTHREAD else None
                rows.append((record.record_id, record.rank, is_write, int(shown), int(length), start, end, kept))
    return rows


def rows_of(blocks: Sequence[DxtBlock]) -> list[Row]:
    """The segments of blocks, as `expected_rows`."""
    rows: list[Row] = []
    for block in blocks:
        count = len(block.ranks)
        assert np.array_equal(np.bincount(block.record, minlength=count), block.write_counts + block.read_counts)
        assert np.array_equal(np.bincount(block.record[block.is_write], minlength=count), block.write_counts)
        threads = [None] * len(block.record) if block.pthread_id is None else block.pthread_id.tolist()
        columns = [getattr(block, name).tolist() for name in PER_SEGMENT]
        rows += zip(
            block.record_ids[block.record].tolist(), block.ranks[block.record].tolist(), *columns, threads, strict=True
        )
    return rows


def log_of(target: Path, data: bytes, module: str = "DXT_POSIX", version: int = 1, **options: Any) -> DarshanLog:
    names = {7: b"/a/b", 8: b"/a/c"}
    modules = {module: ModuleSpec(version=version, streams=[data])}
    write_log(target, names=names, modules=modules, job=MANY, **options)
    return open_log(target)


class TestEveryLayout:
    @pytest.mark.parametrize("byte_order", ["<", ">"])
    @pytest.mark.parametrize(("module", "version"), LAYOUTS)
    @given(written=st.lists(records, min_size=1, max_size=3))
    @settings(max_examples=examples(12))
    def test_gives_what_was_written(
        self,
        module: str,
        version: int,
        byte_order: str,
        written: list[list[DxtRecord]],
        tmp_path_factory: pytest.TempPathFactory,
    ) -> None:
        streams = [encode_dxt(rank, module, version, byte_order) for rank in written]
        target = tmp_path_factory.mktemp("dxt") / "job.darshan"
        modules = {module: ModuleSpec(version=version, streams=streams)}
        write_log(target, byte_order=byte_order, modules=modules, job=MANY)
        blocks = list(read_dxt(open_log(target), module))
        flat = [record for rank in written for record in rank]
        assert rows_of(blocks) == expected_rows(flat, module, version)
        assert [host for block in blocks for host in block.hostnames] == [r.hostname.decode() for r in flat]
        assert [n for block in blocks for n in block.read_counts.tolist()] == [len(r.reads) for r in flat]

    @given(written=records, piece=st.integers(8, 300), block=st.integers(dxt_stretches.HEADER_BYTES, 600))
    @settings(max_examples=examples(40))
    def test_block_size_changes_nothing(
        self, written: list[DxtRecord], piece: int, block: int, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        target = tmp_path_factory.mktemp("dxt") / "job.darshan"
        modules = {"DXT_POSIX": ModuleSpec(version=2, streams=[encode_dxt(written, version=2)])}
        write_log(target, modules=modules, job=MANY)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(darshan_stream, "PIECE_BYTES", piece)
            patch.setattr(dxt_stretches, "BLOCK_BYTES", block)
            assert rows_of(list(read_dxt(open_log(target)))) == expected_rows(written, "DXT_POSIX", 2)
            found: Counter[tuple[int, int, bool]] = Counter()
            for part in count_segments(open_log(target), "DXT_POSIX"):
                for record, rank, writes, reads in zip(
                    *(getattr(part, name).tolist() for name in ("record_ids", "ranks", "writes", "reads")),
                    strict=True,
                ):
                    found.update({(record, rank, True): writes, (record, rank, False): reads})
            assert +found == Counter(row[:3] for row in expected_rows(written, "DXT_POSIX", 2))

    @pytest.mark.parametrize(("module", "version"), LAYOUTS)
    def test_columns_have_the_promised_types(self, target: Path, module: str, version: int) -> None:
        data = encode_dxt([DxtRecord(record_id=7, reads=[(0, 1, 0.5, 1.5, 9)])], module, version, ">")
        (block,) = read_dxt(log_of(target, data, module, version, byte_order=">"), module)
        types = {f.name: getattr(block, f.name).dtype for f in fields(block) if f.name != "pthread_id"}
        assert types == {
            "record_ids": np.dtype("u8"), "ranks": np.dtype("i8"), "host_fields": np.dtype("S64"),
            "write_counts": np.dtype("i8"), "read_counts": np.dtype("i8"), "record": np.dtype("i4"),
            "is_write": np.dtype("?"), "offset": np.dtype("i8"), "length": np.dtype("i8"),
            "start_s": np.dtype("f8"), "end_s": np.dtype("f8"),
        }  # fmt: skip
        if (module, version) in WITH_PTHREAD:
            assert block.pthread_id is not None
            assert (block.pthread_id.dtype, block.pthread_id.tolist()) == (np.dtype("u8"), [9])
        else:
            assert block.pthread_id is None


class TestBlocks:
    @pytest.mark.usefixtures("tiny_blocks")
    def test_a_record_is_split_only_when_it_alone_is_too_large(self, target: Path) -> None:
        small = [DxtRecord(record_id=n, reads=[(n, 1, 1.0, 2.0)]) for n in range(4)]
        large = DxtRecord(
            record_id=9, writes=[(n, 1, 1.0, 2.0) for n in range(15)], reads=[(n, 2, 1.0, 2.0) for n in range(15)]
        )
        blocks = list(read_dxt(log_of(target, encode_dxt([*small, large, *small]))))
        assert rows_of(blocks) == expected_rows([*small, large, *small], "DXT_POSIX", 1)
        parts = [block for block in blocks if 9 in block.record_ids]
        assert len(parts) > 2
        assert all(block.record_ids.tolist() == [9] for block in parts)
        assert sum(int(block.write_counts.sum()) for block in parts) == 15
        assert sum(int(block.read_counts.sum()) for block in parts) == 15

    def test_many_records_make_few_blocks(self, target: Path) -> None:
        written = [DxtRecord(record_id=n, reads=[(n, 1, 1.0, 2.0)]) for n in range(2000)]
        (block,) = read_dxt(log_of(target, encode_dxt(written)))
        assert block.record_ids.tolist() == list(range(2000))
        assert block.record.tolist() == list(range(2000))

    def test_a_host_that_is_no_utf8_is_shown(self, target: Path) -> None:
        (block,) = read_dxt(log_of(target, encode_dxt([DxtRecord(record_id=1, hostname=b"n\xff\0junk")])))
        assert block.hostnames == ("n\\xff",)

    def test_no_module_no_blocks(self, target: Path) -> None:
        log = open_log(write_log(target))
        assert [list(read_dxt(log, module)) for module in DXT_MODULES] == [[], []]


class TestErrors:
    @pytest.mark.parametrize(("module", "version"), [("DXT_POSIX", 3), ("DXT_POSIX", 0), ("DXT_MPIIO", 4)])
    def test_an_unknown_version_is_named(self, target: Path, module: str, version: int) -> None:
        with pytest.raises(LogError, match=f"{module} version {version}; this release reads 1, 2"):
            list(read_dxt(log_of(target, b"whatever", module, version), module))

    def test_another_module_is_a_wrong_use(self, target: Path) -> None:
        with pytest.raises(UsageError, match="'POSIX' is not a DXT module"):
            list(read_dxt(open_log(write_log(target)), "POSIX"))

    @pytest.mark.parametrize(
        ("segment", "defect"),
        [
            ((0, 1, 2.0, 1.0), "ends before it starts"),
            ((0, 1, float("nan"), 1.0), "has an impossible time"),
            ((0, 1, 1.0, float("nan")), "has an impossible time"),
            ((0, 1, 1.0, float("inf")), "has an impossible time"),
            ((0, 1, float("-inf"), 1.0), "has an impossible time"),
            ((0, 1, 1e300, 1e300), "has an impossible time"),
            ((0, -1, 1.0, 2.0), "has an impossible length"),
            ((0, 2**62, 1.0, 2.0), "has an impossible length"),
            ((-1, 1, 1.0, 2.0), "has an impossible offset"),
            ((2**62, 1, 1.0, 2.0), "has an impossible offset"),
        ],
    )
    def test_a_damaged_segment(self, target: Path, segment: tuple[float, ...], defect: str) -> None:
        good = [(n, 1, 1.0, 2.0) for n in range(5)]
        written = [
            DxtRecord(record_id=7, rank=2, reads=good),
            DxtRecord(record_id=8, rank=3, writes=good[:2], reads=[*good[:3], segment, *good]),
        ]
        log = log_of(target, encode_dxt(written))
        kept = [written[0], DxtRecord(record_id=8, rank=3, writes=good[:2], reads=good[:3])]
        assert rows_of(list(read_dxt(log))) == expected_rows(kept, "DXT_POSIX", 1)
        assert f"DXT_POSIX segment 5 of rank 3 {defect} (/a/c) (missing: 6 segments)" in log.warnings[0]
        (counts,) = count_segments(log, "DXT_POSIX")
        assert (counts.writes.tolist(), counts.reads.tolist()) == ([0, 2], [5, 3])

    def test_the_end_of_every_segment_fits(self, target: Path) -> None:
        log = log_of(target, encode_dxt([DxtRecord(record_id=7, reads=[(2**62 - 1, 2**62 - 1, 1.0, 2.0)])]))
        (block,) = read_dxt(log)
        assert (block.offset + block.length).tolist() == [2**63 - 2]

    def test_mpiio_may_not_know_offsets(self, target: Path) -> None:
        data = encode_dxt([DxtRecord(record_id=7, reads=[(-1, 5, 1.0, 2.0)])], "DXT_MPIIO", 2)
        (block,) = read_dxt(log_of(target, data, "DXT_MPIIO", 2), "DXT_MPIIO")
        assert block.offset.tolist() == [-1]
        data = encode_dxt([DxtRecord(record_id=7, reads=[(-2, 5, 1.0, 2.0)])], "DXT_MPIIO", 2)
        log = log_of(target, data, "DXT_MPIIO", 2)
        assert not rows_of(list(read_dxt(log, "DXT_MPIIO")))
        assert "impossible offset" in log.damage["DXT_MPIIO"].problem

    @pytest.mark.usefixtures("tiny_blocks")
    def test_a_segment_of_a_split_record_keeps_its_number(self, target: Path) -> None:
        reads = [(n, 1, 1.0, 2.0) for n in range(40)]
        reads[33] = (0, 1, 2.0, 1.0)
        log = log_of(target, encode_dxt([DxtRecord(record_id=7, rank=1, reads=reads)]))
        assert len(rows_of(list(read_dxt(log)))) == 33
        assert "segment 33 of rank 1 ends before" in log.damage["DXT_POSIX"].problem
        assert log.damage["DXT_POSIX"].missing == "7 segments"

    @pytest.mark.parametrize("rank", [-1, 2**31])
    @pytest.mark.parametrize("reads", [[], [(0, 1, 1.0, 2.0)]])
    def test_an_impossible_rank(self, target: Path, rank: int, reads: list[tuple[float, ...]]) -> None:
        good = DxtRecord(record_id=8, rank=1, reads=[(3, 4, 1.0, 2.0)])
        log = log_of(target, encode_dxt([good, DxtRecord(record_id=7, rank=rank, reads=reads), good]))
        blocks = list(read_dxt(log))
        assert rows_of(blocks) == expected_rows([good], "DXT_POSIX", 1)
        assert [block.record_ids.tolist() for block in blocks] == [[8]]
        assert f"record of the impossible rank {rank} (/a/b)" in log.damage["DXT_POSIX"].problem

    @pytest.mark.parametrize("count", [-1, -(2**63), 2**40, 2**63 - 1])
    def test_a_lying_count(self, target: Path, count: int) -> None:
        good = DxtRecord(record_id=7, rank=1, reads=[(0, 1, 1.0, 2.0)])
        data = bytearray(encode_dxt([good, DxtRecord(record_id=8, rank=2, reads=[(5, 1, 1.0, 2.0)])]))
        data[136 + 96 : 136 + 104] = count.to_bytes(8, "little", signed=True)
        log = log_of(target, bytes(data))
        rows = rows_of(list(read_dxt(log)))
        assert rows[:1] == expected_rows([good], "DXT_POSIX", 1)
        assert len(rows) == (1 if count < 0 else 2)
        assert re.search(r"DXT_POSIX (ends inside a record|has a record of 0 writes)", log.warnings[0])

    @pytest.mark.parametrize("cut", [1, 31, 32, 33, 4 * 32, 5 * 32 + 1, 5 * 32 + 103, 5 * 32 + 104 + 10])
    def test_a_cut_module_keeps_the_segments_before_the_cut(self, target: Path, cut: int) -> None:
        written = [DxtRecord(record_id=7, reads=[(n, 1, 1.0, 2.0) for n in range(5)]) for _ in range(2)]
        data = encode_dxt(written)[:-cut]
        log = log_of(target, data)
        whole = 5 + max(0, (len(data) - 264 - 104) // 32) if cut < 264 else (len(data) - 104) // 32
        assert rows_of(list(read_dxt(log))) == expected_rows(written, "DXT_POSIX", 1)[:whole]
        assert "ends inside a record" in log.damage["DXT_POSIX"].problem


@pytest.mark.parametrize("path", shared_logs(), ids=log_id)
def test_real_logs_agree_with_pydarshan(path: Path) -> None:
    log, theirs = open_log(path), answer(path)
    for module in DXT_MODULES:
        blocks = list(read_dxt(log, module))
        if module not in log.modules:
            assert blocks == []
            continue
        if (module, log.modules[module].version) in WITH_PTHREAD:
            # Published pydarshan knows no 40-byte segments and reads none; see the comparison with the counters.
            assert len(theirs[f"{module} ids"]) == 0
            assert sum(len(block.record) for block in blocks) > 0
            continue
        ours = {n: np.concatenate([getattr(block, n) for block in blocks]) for n in (*PER_RECORD, *PER_SEGMENT)}
        assert np.array_equal(ours["record_ids"], theirs[f"{module} ids"])
        assert np.array_equal(ours["ranks"], theirs[f"{module} ranks"])
        assert np.array_equal(ours["write_counts"], theirs[f"{module} writes"])
        assert np.array_equal(ours["read_counts"], theirs[f"{module} reads"])
        assert [host for block in blocks for host in block.hostnames] == theirs[f"{module} hosts"].tolist()
        assert np.array_equal(np.column_stack([ours["offset"], ours["length"]]), theirs[f"{module} whole"])
        assert np.array_equal(np.column_stack([ours["start_s"], ours["end_s"]]), theirs[f"{module} times"])
        runs = np.column_stack([ours["write_counts"], ours["read_counts"]]).ravel()
        assert np.array_equal(ours["is_write"], np.repeat(np.tile([True, False], len(runs) // 2), runs))


@pytest.mark.parametrize("path", recordings("captures/*/job.darshan"), ids=log_id)
def test_captures_agree_with_their_own_counters(path: Path) -> None:
    """Counts and bytes per file and rank: the check for version 2, which pydarshan cannot read.

    Where Darshan reduced the counters of a file that all ranks opened, the ranks' segments are added up too.
    """
    log = open_log(path)
    counted = read_counters(log, "POSIX")
    assert counted is not None
    keys = list(zip(counted.ranks.tolist(), counted.record_ids.tolist(), strict=True))
    names = ("POSIX_READS", "POSIX_WRITES", "POSIX_BYTES_READ", "POSIX_BYTES_WRITTEN")
    traced = {key: [0, 0, 0, 0] for key in keys}
    for block in read_dxt(log):
        for number, (rank, record) in enumerate(zip(block.ranks.tolist(), block.record_ids.tolist(), strict=True)):
            key = (SHARED_RANK if (SHARED_RANK, record) in traced else rank, record)
            rows = block.record == number
            for way, mask in ((0, rows & ~block.is_write), (1, rows & block.is_write)):
                traced[key][way] += int(mask.sum())
                traced[key][2 + way] += int(block.length[mask].sum())
    assert traced == {key: [int(counted.counters[name][row]) for name in names] for row, key in enumerate(keys)}
    if log.modules["DXT_POSIX"].version == 2:
        threads = np.concatenate([b.pthread_id for b in read_dxt(log) if b.pthread_id is not None])
        assert len(threads) == sum(len(b.record) for b in read_dxt(log))
        assert 1 < len(np.unique(threads)) < 64


def test_segment_size_of_the_writer() -> None:
    assert [segment_dtype(module, version).itemsize for module, version in LAYOUTS] == [32, 40, 32, 32, 40]
