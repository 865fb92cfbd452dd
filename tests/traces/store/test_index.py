"""The index: where the operations of each rank are, and counts of them, held against the rows as others find them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.schema import APIS, OPS, USAGE_SCHEMA
from dxt_replay.traces.store import writer as writer_home
from dxt_replay.traces.store.checks import read_info
from dxt_replay.traces.store.index import INDEX_NAME
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.store.writer import OpsWriter, write_capture_info
from tests.capture_builder import Op, Span, build_capture, ops_table, read, with_counts_of
from tests.examples import examples

Stretch = tuple[str, int, int, int, int, int, int]


def rows_of(sizes: list[int]) -> list[Op]:
    """So many operations of rank 0, 1, 2 ..., each of which ends 5 ns after the next begins."""
    return [
        Op(
            OPS[at % 7 % 3], at % 3, rank=rank, lane=at % 5 % 2, api=APIS[at % 11 % 2], offset=at - 1,
            length=7 * at % 10, start_ns=10 * at + rank, end_ns=10 * at + rank + 15,
        )
        for rank, size in enumerate(sizes)
        for at in range(size)
    ]  # fmt: skip


def stretches(capture: Path) -> list[Stretch]:
    """What the index has to hold, from the rows alone."""
    found: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for part in sorted((capture / "ops").iterdir()):
        file = pq.ParquetFile(part)
        for group in range(file.num_row_groups):
            for row in file.read_row_group(group).to_pylist():
                found.setdefault((part.name, group, row["rank"]), []).append((row["start_ns"], row["end_ns"]))
    return [(*key, len(times), times[0][0], times[-1][0], max(end for _, end in times)) for key, times in found.items()]


def stored(capture: Path) -> list[Stretch]:
    names = ("part", "row_group", "rank", "rows", "first_ns", "last_start_ns", "last_ns")
    return [tuple(row[name] for name in names) for row in pq.read_table(capture / INDEX_NAME).to_pylist()]


@settings(max_examples=examples(12))
@example(sizes=[5, 5, 5], group=5, cut=100, shared=1 << 13)
@example(sizes=[3, 11, 0, 5, 1, 0, 2], group=5, cut=4, shared=1)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6), group=st.integers(1, 8), cut=st.integers(1, 20),
    shared=st.sampled_from([1, 1 << 13]),
)  # fmt: skip
def test_every_rank_is_where_the_index_says(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], group: int, cut: int, shared: int
) -> None:
    """However its rows come to the writer and whatever is read at once, with the index and without it."""
    ops = rows_of(sizes)
    path = build_capture(tmp_path_factory.mktemp("index"), files=["/a", "/b", "/c"], ranks=range(len(sizes))).path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_home, "SHARED_ROWS", shared)
        with OpsWriter(path, row_group_rows=group) as writer:
            for begin in range(0, len(ops), cut):
                writer.write(ops_table(ops[begin : begin + cut]))
        write_capture_info(path, read_info(path))
        assert stored(path) == stretches(path)
        assert_ranks(open_capture(path), sizes, ops)
        with pytest.MonkeyPatch.context() as told:
            told.setattr(Capture, "operations", lambda *_, **__: pytest.fail("counted, although the index has it"))
            list(map(open_capture(path).usage, range(len(sizes))))
        (path / INDEX_NAME).unlink()
        assert_ranks(open_capture(path), sizes, ops)


def counts(usage: pa.Table) -> dict[tuple[object, ...], tuple[int, ...]]:
    assert usage.schema.equals(USAGE_SCHEMA)
    key, numbers = ("rank", "lane", "op", "api", "file_id"), ("operations", "least_length", "reach")
    return {tuple(row[name] for name in key): tuple(row[name] for name in numbers) for row in usage.to_pylist()}


def counted(ops: Iterable[Op]) -> dict[tuple[object, ...], tuple[int, ...]]:
    found: dict[tuple[object, ...], list[Op]] = {}
    for op in ops:
        found.setdefault((op.rank, op.lane, op.op, op.api, op.file_id), []).append(op)
    return {
        key: (len(same), min(op.length for op in same), max(max(op.offset, 0) + op.length for op in same))
        for key, same in found.items()
    }


def assert_ranks(capture: Capture, sizes: list[int], ops: list[Op]) -> None:
    for rank in reversed(range(len(sizes))):
        mine = [op.start_ns for op in ops if op.rank == rank]
        found = [batch["start_ns"].to_pylist() for batch in capture.operations(rank, columns=["start_ns"])]
        assert [start for starts in found for start in starts] == mine
        assert capture.operation_count(rank) == sizes[rank]
        assert counts(capture.usage(rank)) == counted(op for op in ops if op.rank == rank)
    together = list(capture.rank_operations(columns=["rank", "offset"]))
    assert [(rank, set(batch["rank"].to_pylist())) for rank, batch in together] == [(r, {r}) for r, _ in together]
    assert [op.offset for op in ops] == [offset for _, batch in together for offset in batch["offset"].to_pylist()]
    assert capture.time_span_ns == (
        min((op.start_ns for op in ops), default=0),
        max((op.end_ns or 0 for op in ops), default=0),
    )


def test_small_ranks_share_row_groups_and_large_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_home, "SHARED_ROWS", 8)
    path = build_capture(
        tmp_path, files=["/a", "/b", "/c"], ops=rows_of([2, 2, 2, 50, 3, 3, 3, 9]), row_group_rows=20
    ).path
    groups: dict[int, list[tuple[int, int]]] = {}
    for _, group, rank, rows, *_ in stored(path):
        groups.setdefault(group, []).append((rank, rows))
    assert list(groups.values()) == [
        [(0, 2), (1, 2), (2, 2)], [(3, 20)], [(3, 20)], [(3, 10)], [(4, 3), (5, 3), (6, 3)], [(7, 9)],
    ]  # fmt: skip


def test_a_row_group_of_many_ranks_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = build_capture(tmp_path, files=["/a", "/b", "/c"], ops=rows_of([4] * 50))
    reads: list[int] = []
    read_row_group = pq.ParquetFile.read_row_group

    def counted(self: pq.ParquetFile, number: int, **options: object) -> object:
        reads.append(number)
        return read_row_group(self, number, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    for rank in capture.ranks:
        assert [batch.num_rows for batch in capture.operations(rank)] == [4]
    assert reads == [0]


def test_stale_counts_of_many_ranks_at_once_are_counted_again(tmp_path: Path) -> None:
    """As many operations in all, but not of each rank."""
    files = ["/a"]
    capture = build_capture(tmp_path, ops=[Op("read", 0, rank=rank) for rank in (0, 0, 1, 1)], files=files)
    stale = build_capture(tmp_path, ops=[Op("read", 0, rank=rank) for rank in (0, 1, 1, 1)], files=files, name="stale")
    again = with_counts_of(capture, stale)
    found = [(row["rank"], row["operations"]) for table in again.usages() for row in table.to_pylist()]
    assert found == [(0, 2), (1, 2)]


def test_parts_that_are_not_those_of_the_index_are_named(tmp_path: Path) -> None:
    path = build_capture(tmp_path, files=["/a"], ops=[read(0)]).path
    part, more = (path / "ops" / f"part-000000{number}-0000.parquet" for number in (0, 1))
    whole = part.read_bytes()
    for here, data, expected in (
        (more, whole, "does not list .*part-0000001"),
        (part, whole[:-1], "does not have the size"),
        (part, None, "lacks part-0000000"),
    ):
        here.write_bytes(data) if data else here.unlink()
        with pytest.raises(CaptureError, match=expected):
            open_capture(path)
        more.unlink(missing_ok=True)


def test_other_readers_learn_units_version_order_and_identity(tmp_path: Path) -> None:
    identities = []
    for name, last in (("a", 3), ("b", 3), ("c", 4)):
        spans = [Span("step", 0, 9, step=0)]
        path = build_capture(tmp_path, files=["/a", "/b", "/c"], ops=rows_of([3, last]), spans=spans, name=name).path
        identities.append(pq.read_metadata(path / INDEX_NAME).metadata[b"dxt_replay.capture_id"])
    assert identities[0] == identities[1] != identities[2]
    for name, order in (("ops/part-0000000-0000.parquet", [0, 7]), ("spans.parquet", [0, 5]), ("files.parquet", [0])):
        footer = pq.read_metadata(path / name)
        assert footer.metadata[b"dxt_replay.schema_version"] == b"5"
        assert footer.metadata[b"dxt_replay.units"].startswith(b"times: ns")
        assert [column.column_index for column in footer.row_group(0).sorting_columns] == order


def test_several_writers_make_one_index_and_a_worker_looks_at_no_part_but_those_that_it_reads(tmp_path: Path) -> None:
    path = build_capture(tmp_path, files=["/a", "/b", "/c"], ranks=range(5)).path
    ops = rows_of([20] * 5)
    with OpsWriter(path) as one, OpsWriter(path) as other:  # as two processes write it
        for rank in range(5):
            (other if rank % 2 else one).write(ops_table([op for op in ops if op.rank == rank]))
    write_capture_info(path, read_info(path))
    assert [set(batch["rank"].to_pylist()) for batch in open_capture(path).operations()] == [{n} for n in range(5)]
    sent = pickle.dumps(open_capture(path))
    (path / "ops" / "part-0000000-0000.parquet").unlink()
    found = pickle.loads(sent)
    assert (sum(batch.num_rows for batch in found.operations(3)), found.operation_count()) == (20, 100)
