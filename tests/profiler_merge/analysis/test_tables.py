"""The tables of the analysis: descriptions, ranks and files by a plain count, queries, times, contents, formats."""

from __future__ import annotations

import csv
import dataclasses
import io
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.contents import contents
from dxt_replay.profiler_merge.analysis.named_tables import flat_table, table_of, to_pandas, write_csv
from dxt_replay.profiler_merge.analysis.patterns import patterns, rank_files
from dxt_replay.profiler_merge.analysis.queries import group_totals, made_by_query, query
from dxt_replay.profiler_merge.analysis.summary import Summary
from dxt_replay.profiler_merge.analysis.tables import COLUMNS, COUNTS, GROUPS, SUMMED, TABLES
from dxt_replay.profiler_merge.analysis.timeline import round_width_ns, timeline
from dxt_replay.traces.errors import CaptureError, MissingDependencyError, UsageError
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.text import unit_of
from tests.capture_builder import File, Op, Span, build_capture, read, write
from tests.examples import examples
from tests.schemas import schema

MS = 1_000_000


def test_every_column_is_of_a_table_and_explained_with_one_type_and_unit() -> None:
    assert {column for table in (*TABLES.values(), GROUPS) for column in table.columns} == set(COLUMNS)
    assert all(column.meaning for column in COLUMNS.values())
    assert "-1" in COLUMNS["rank"].meaning
    assert [TABLES[name].schema.field("files").type for name in ("findings", "ranks")] == [pa.string(), pa.int64()]
    assert {column for column in COLUMNS if unit_of(column) == "s"} == {"at_stake_s"}
    units = {"bytes_read": "bytes", "read_mib_s": "MiB/s", "io_busy_share": "0 to 1", "reads": ""}
    assert {name: unit_of(name) for name in units} == units


def test_every_key_of_the_summary_is_explained() -> None:
    keys = schema("summary")["properties"].items()
    explained = {key for key, about in keys if "description" in about} - {"tables", "overlap", "unread"}
    fields = {field.name for field in dataclasses.fields(Summary)} - {"generated"}
    assert explained == fields | {"storage_limit", "model"}


# ---- ranks and files

RANKS, FILES = 4, 5
SIZE, STRIPE = 400, 30
DATA = ("read", "write")

SOME = st.lists(
    st.builds(
        Op,
        op=st.sampled_from(["read", "read", "read", "write", "open", "stat"]),
        file_id=st.integers(0, FILES - 1),
        offset=st.sampled_from([-1, 0, 10, 20, 30, 50, 90, 200]),
        length=st.sampled_from([0, 1, 10, 10, 20, STRIPE - 1, STRIPE, 100]),
        rank=st.integers(0, RANKS - 1),
        api=st.sampled_from(["POSIX", "POSIX", "POSIX", "HDF5"]),
        origin=st.sampled_from(["traced", "traced", "traced", "reconstructed"]),
    ),
    max_size=80,
)


def one_layer(ops: list[Op]) -> list[Op]:
    """Each file's rows at the lower of the layers that moved most surely data of it: traced, else at all, else used."""
    best: dict[int, tuple[int, bool]] = {}
    for op in ops:
        sure = (op.op in DATA) * (1 + (op.origin == "traced"))
        best[op.file_id] = max(best.get(op.file_id, (0, False)), (sure, op.api == "POSIX"))
    return [op for op in ops if (op.api == "POSIX") == best[op.file_id][1]]


def plain_row(ops: list[Op]) -> dict[str, Any]:
    """Columns of SUMMED and the pattern, of what one rank did to one file."""
    row: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
    seen = np.zeros(2 * SIZE, dtype=np.int64)
    for op in ops:
        took = (op.end_ns or 0) - op.start_ns
        data = op.op in DATA
        if op.origin == "reconstructed":
            row["reconstructed_operations"] += 1
            row["reconstructed_bytes" if data else "reconstructed_metadata_ns"] += op.length if data else took
        elif not data:
            row["other_operations"] += 1
            row["metadata_ns"] += took
        else:
            row[f"{op.op}s"] += 1
            row["bytes_read" if op.op == "read" else "bytes_written"] += op.length
            row["io_ns"] += took
            row[f"small_{op.op}s"] += 0 < op.length < STRIPE
            if op.op == "read" and op.offset >= 0:
                seen[op.offset : op.offset + op.length] += 1
    for name in DATA:
        row.update(plain_order([op for op in ops if op.op == name and op.origin == "traced"]))
    unique = int((seen > 0).sum())
    return {**row, "unique_bytes_read": unique, "reread_bytes": row["bytes_read"] - unique, "seen": seen > 0}


def plain_order(ops: list[Op]) -> Counter[str]:
    """How often each class of `rank_files` is, of accesses of one direction."""
    known = [op for op in ops if op.offset >= 0 and op.length > 0]
    found: Counter[str] = Counter()
    for place in range(1, len(known)):
        moved = known[place].offset - known[place - 1].offset
        found["sequential"] += moved >= known[place - 1].length
        if moved == known[place - 1].length:
            found["consecutive"] += 1
        elif place > 1 and moved != 0 and moved == known[place - 1].offset - known[place - 2].offset:
            found["strided"] += 1
        elif known[place].offset == 0:
            found["restarts"] += 1
        else:
            found["random"] += 1
    return found


def with_pattern(row: dict[str, Any]) -> dict[str, Any]:
    kinds = {name: row[name] for name in ("consecutive", "strided", "random")}
    kinds["sequential"] = max(row["sequential"] - row["consecutive"] - row["strided"], 0)
    return {**row, "pattern": max(kinds, key=lambda name: kinds[name]) if any(kinds.values()) else None}


def accessed(row: dict[str, Any]) -> bool:
    return row["reads"] + row["writes"] + row["reconstructed_bytes"] > 0


def totals(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    rows = list(rows)
    return {name: sum(row[name] for row in rows) for name in SUMMED}


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([Op("read", 0, offset=at, length=10) for at in (50, 0, 10, 20, 10)], 9, ())
@given(SOME, st.integers(1, 9), st.sampled_from([(), (1,), (0, 3)]))
def test_ranks_and_files_against_a_plain_count(
    tmp_path: Path, ops: list[Op], group: int, ranks: tuple[int, ...]
) -> None:
    """However the rows come in parts; operations other than reads and writes move no bytes."""
    assume(not ranks or any(op.rank in ranks for op in ops))
    nothing = {"offset": -1, "length": 0}
    ops = [
        dataclasses.replace(op, start_ns=10 * n, end_ns=10 * n + 1 + n % 7, **({} if op.op in DATA else nothing))
        for n, op in enumerate(ops)
    ]
    files = [File(f"/data/{number}", size=SIZE, stripe_size=STRIPE) for number in range(FILES)]
    capture = build_capture(tmp_path, files=files, ops=ops, ranks=range(RANKS), row_group_rows=group)
    # The layer of a file is that of all ranks.
    mine = [op for op in one_layer(ops) if not ranks or op.rank in ranks]
    rows = {
        pair: plain_row([op for op in mine if (op.rank, op.file_id) == pair])
        for pair in sorted({(op.rank, op.file_id) for op in mine})
    }
    named = {file: {"file_id": file, "path": f"/data/{file}", "format": "other"} for file in range(FILES)}
    of_files = []
    for file in sorted({file for _, file in rows}):
        every = [row for (_, number), row in rows.items() if number == file]
        summed, unique = totals(every), int(np.any([row["seen"] for row in every], axis=0).sum())
        summed |= {"unique_bytes_read": unique, "read_by_several_bytes": summed["unique_bytes_read"] - unique}
        of_files.append(with_pattern(summed) | named[file] | {"size_bytes": SIZE, "ranks": sum(map(accessed, every))})
    users = Counter(file for (_, file), row in rows.items() if accessed(row))
    of_ranks = []
    for rank in ranks or range(RANKS):
        used = [file for (number, file), row in rows.items() if number == rank and accessed(row)]
        summed = totals(row for (number, _), row in rows.items() if number == rank)
        shared = sum(users[file] > 1 for file in used)
        of_ranks.append({**summed, "rank": rank, "files": len(used), "shared_files": shared})
    part = part_of(capture, Part(ranks=ranks or None))
    found = patterns(part)
    for name, table, expected in (
        (
            "rank-files",
            rank_files(part),
            [with_pattern(row) | named[of] | {"rank": n} for (n, of), row in rows.items()],
        ),
        ("files", found.files, of_files),
        ("ranks", found.ranks, of_ranks),
    ):
        assert table.to_pylist() == [{column: row[column] for column in TABLES[name].columns} for row in expected]


# ---- queries

SIZES = [0, 1, 100, 101, 1024, 1025, 4096, 4096, 4096, 8191, 8192]


@pytest.mark.parametrize(
    ("table", "bins"),
    [
        ("sizes", {"0": (0, 0, 1), "2^0": (1, 1, 1), "2^6": (64, 127, 2), "2^10": (1024, 2047, 2),
                   "2^12": (4096, 8191, 4), "2^13": (8192, 16383, 1), "2^49": (1 << 49, (2 << 49) - 1, 1)}),
        ("darshan-sizes", {"0_100": (0, 100, 3), "100_1K": (101, 1024, 2), "1K_10K": (1025, 10240, 6),
                           "1G_PLUS": ((1 << 30) + 1, None, 1)}),
    ],
)  # fmt: skip
def test_classes_of_sizes(tmp_path: Path, table: str, bins: dict[str, tuple[int, int | None, int]]) -> None:
    ops = [read(0, length=size, start_ns=n) for n, size in enumerate([*SIZES, (2 << 49) - 1])]
    ops += [
        write(0, length=100, start_ns=50), write(0, length=5, start_ns=60, api="STDIO", origin="reconstructed"),
    ]  # fmt: skip
    found = made_by_query(build_capture(tmp_path, files=["/a"], ops=ops), TABLES[table]).to_pylist()
    reads = [row for row in found if row["op"] == "read"]
    assert {row["bin"]: (row["least_bytes"], row["most_bytes"], row["operations"]) for row in reads} == bins
    assert sum(row["bytes"] for row in reads) == sum(SIZES) + (2 << 49) - 1
    kinds = [(row["interface"], row["op"], row["origin"], row["bytes"]) for row in found[len(bins) :]]
    assert kinds == [("POSIX", "write", "traced", 100), ("STDIO", "write", "reconstructed", 5)]


def test_totals_by_size(tmp_path: Path) -> None:
    ops = [read(0, length=length, start_ns=length, end_ns=length + 1000) for length in (0, 1, 4096, 8191)]
    found = group_totals(build_capture(tmp_path, files=["/a"], ops=[*ops, write(0, length=8192, end_ns=9)]), "size")
    assert [(each.group, each.reads, each.writes, each.io_ns) for each in found] == [
        ("0 B", 1, 0, 1000), ("1 B", 1, 0, 1000), ("4.00 KiB to < 8.00 KiB", 2, 0, 2000),
        ("8.00 KiB to < 16.0 KiB", 0, 1, 9),
    ]  # fmt: skip


def test_users_may_ask_for_what_they_like_and_damage_is_the_error_of_the_reader(tmp_path: Path) -> None:
    ops = [read(0, length=4, start_ns=5, api="MPIIO"), read(0, length=4, start_ns=6), read(0, length=2, start_ns=9)]
    capture = part_of(build_capture(tmp_path, files=["/a"], ops=ops), Part(until_ns=9))
    found = query(capture, "SELECT path, sum(length) AS bytes FROM transfers JOIN files USING (file_id) GROUP BY path")
    assert found.to_pylist() == [{"path": "/a", "bytes": 4}]
    every = query(capture, "SELECT * FROM ops ORDER BY number").to_pylist()
    rows = [(row["start_ns"], row["interface"], row["counted"], row["number"]) for row in every]
    assert rows == [(5, "MPIIO", False, 0), (6, "POSIX", True, 1)]
    damaged = build_capture(tmp_path / "damaged", files=["/a"], ops=ops)
    part = next((damaged.path / "ops").iterdir())
    part.write_bytes(part.read_bytes()[:-200] + bytes(200))
    with pytest.raises(CaptureError):
        query(damaged, "SELECT count(*) FROM ops")


# ---- over time


def small(tmp_path: Path) -> Capture:
    ops = [
        read(0, length=1000, start_ns=0, end_ns=10 * MS),
        read(0, length=300, start_ns=5 * MS, end_ns=20 * MS, lane=1),
        write(1, length=7, start_ns=12 * MS, end_ns=13 * MS, rank=1),
        Op("open", 1, start_ns=11 * MS, rank=1),
        write(1, length=999, start_ns=1 * MS, end_ns=19 * MS, rank=1, origin="reconstructed"),
    ]
    return build_capture(tmp_path, files=["/a", "/b"], ops=ops, spans=[Span("compute", start_ns=0, end_ns=15 * MS)])


def test_a_rank_without_a_profile_has_no_share_of_compute(tmp_path: Path) -> None:
    by_rank = timeline(small(tmp_path), bin_ns=10 * MS, per_rank=True)
    np.testing.assert_equal(by_rank.matrix("compute_busy_share"), [[1, 0.5], [np.nan, np.nan]])
    assert by_rank.matrix("reconstructed").tolist() == [[0, 0], [1, 0]]
    assert timeline(small(tmp_path / "all"), bin_ns=10 * MS).matrix("io_busy_share").tolist() == [[0.5, 0.55]]


OPERATIONS = st.lists(
    st.tuples(
        *(st.integers(0, 3), st.integers(0, 2000), st.integers(0, 900), st.integers(0, 1 << 40)), st.sampled_from("rw")
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([(0, 0, 300, 5, "r"), (0, 100, 50, 5, "r")], 700, 9)
@given(OPERATIONS, st.integers(1, 700), st.integers(1, 9))
def test_totals_are_exact_at_any_width(tmp_path: Path, rows: list[Any], width: int, group: int) -> None:
    ops = [
        (read if op == "r" else write)(0, rank=rank, start_ns=start, end_ns=start + length, length=size)
        for rank, start, length, size, op in rows
    ]
    capture = build_capture(tmp_path, files=["/a"], ops=ops, row_group_rows=group)
    over_all, by_rank = timeline(capture, bin_ns=width), timeline(capture, bin_ns=width, per_rank=True)
    for found in (over_all, by_rank):
        for op, operations, moved in (("r", "reads", "bytes_read"), ("w", "writes", "bytes_written")):
            chosen = [row for row in rows if row[4] == op]
            assert found.matrix(operations).sum() == len(chosen)
            assert int(found.matrix(moved).sum()) == sum(row[3] for row in chosen)
    for column in ("reads", "bytes_written", "in_flight_mean"):
        np.testing.assert_allclose(by_rank.matrix(column).sum(axis=0), over_all.matrix(column)[0])
    in_flight = np.zeros((4, 3600), dtype=np.int64)
    for rank, start, length, _, _ in rows:
        in_flight[rank, start : start + length] += 1
    for number in range(over_all.bins):
        part = in_flight[:, over_all.start_ns + number * width :][:, :width]
        assert over_all.matrix("in_flight_max")[0, number] == (part.sum(axis=0).max() if part.size else 0)
        busy = by_rank.matrix("io_busy_share")[:, number] * width
        assert busy.tolist() == pytest.approx((part[list(by_rank.ranks)] > 0).sum(axis=1).tolist())


def test_bins_and_windows(tmp_path: Path) -> None:
    """Operations that end after the window keep their bytes; bins begin at multiples of a round width."""
    capture = small(tmp_path)
    found = timeline(part_of(capture, Part(from_ns=0, until_ns=10 * MS)), bin_ns=5 * MS)
    assert (found.matrix("reads").sum(), found.matrix("bytes_read").sum(), found.bins) == (2, 1300, 4)
    widths = [round_width_ns(*given) for given in ((20, 7), (7_533, 40), (0, 3), (100, 100))]
    assert widths == [5, 200, 1, 1]
    late = [read(0, length=1, start_ns=2_319 * MS, end_ns=9_700 * MS)]
    late_capture = build_capture(tmp_path / "late", files=["/a"], ops=late)
    found = timeline(late_capture, bins=40)
    assert (found.start_ns, found.bin_ns, found.bins) == (2_200 * MS, 200 * MS, 38)
    window = timeline(part_of(late_capture, Part(from_ns=2_319 * MS)), bins=40)
    assert window.start_ns == 2_319 * MS, "a window begins where it was asked to"
    for bin_ns, words in ((1, "choose wider bins"), (0, "nanosecond")):
        with pytest.raises(UsageError, match=words):
            timeline(capture, bin_ns=bin_ns)


# ---- contents of files


def tfrecord(path: Path, lengths: list[int], cut: int | None = None) -> File:
    frames = [length.to_bytes(8, "little") + b"crc1" + b"x" * length + b"crc2" for length in lengths]
    path.write_bytes(b"".join(frames)[:cut])
    return File(str(path), format="tfrecord")


def test_tfrecord_files_have_records_and_hdf5_files_datasets(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("train/x", data=[[1.0] * 8] * 6, chunks=(2, 8), compression="gzip", dtype="f4")
        file.create_dataset("y", data=[1, 2, 3], dtype="i8")
    files = [tfrecord(tmp_path / "a", [10, 30, 20]), tfrecord(tmp_path / "b", [])]
    found = contents(build_capture(tmp_path, files=[*files, File(str(tmp_path / "a.h5"), format="hdf5")]))
    assert found.tfrecords.drop_columns("path").to_pydict() == {
        "file_id": [0, 1], "size_bytes": [3 * 16 + 60, 0], "records": [3, 0], "least_bytes": [10, None],
        "most_bytes": [30, None], "mean_bytes": [20, None],
    }  # fmt: skip
    first, second = found.datasets.to_pylist()
    assert 0 < first["stored_bytes"] < 192
    wanted = {
        "path": str(tmp_path / "a.h5"), "dataset": "train/x", "shape": "6x8", "type": "float32", "chunk": "2x8",
        "chunk_bytes": 64, "filter": "gzip", "chunks_stored": 3, "bytes": 192,
    }  # fmt: skip
    assert {name: first[name] for name in wanted} == wanted
    assert (second["dataset"], second["chunk"], second["stored_bytes"]) == ("y", None, 24)


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "no.h5").write_bytes(b"text")
    gone, other = File(str(tmp_path / "gone"), format="tfrecord"), File(str(tmp_path / "no.h5"), format="hdf5")
    found = contents(build_capture(tmp_path, files=[tfrecord(tmp_path / "torn", [10, 30], -1), gone, other, "/x"]))
    assert (found.tfrecords.num_rows, found.datasets.num_rows) == (0, 0)
    assert list(found.unread) == [str(tmp_path / name) for name in ("torn", "gone", "no.h5")]
    assert "record 1 ends beyond" in found.unread[str(tmp_path / "torn")]


# ---- formats


def test_whole_numbers_stay_whole_in_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"a": pa.array([1, None], pa.int64()), "b": pa.array([1, 2], pa.int64()), "c": ["x", None]})
    frame = to_pandas(table)
    assert (frame["a"].tolist()[0], frame["a"].isna().tolist()) == (1, [False, True])
    assert (str(frame["a"].dtype), str(frame["b"].dtype)) == ("Int64", "int64")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'dxt-replay\[pandas\]'"):
        to_pandas(table)


def test_csv_reads_back_whatever_a_path_holds() -> None:
    rows = [{"path": 'a,"b"\nc', "n": 1}, {"path": "plain", "n": None}]
    out = io.BytesIO()
    write_csv(table_of(rows, pa.schema([("path", pa.string()), ("n", pa.int64())])), out)
    found = list(csv.reader(io.StringIO(out.getvalue().decode(), newline="")))
    assert found == [["path", "n"], ['a,"b"\nc', "1"], ["plain", ""]]


def test_nested_values_become_rows() -> None:
    table = flat_table({"a": {"b": 1, "c": None}, "d": ("x", "y")})
    assert table.to_pydict() == {"name": ["a.b", "a.c", "d.0", "d.1"], "value": ["1", None, "x", "y"]}
