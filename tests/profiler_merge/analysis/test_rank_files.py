"""The tables of ranks and files against a plain count of the operations, however they come in parts."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis import patterns as module
from dxt_replay.profiler_merge.analysis.patterns import patterns
from dxt_replay.profiler_merge.analysis.tables import COUNTS, SUMMED, TABLES
from dxt_replay.traces.measures import operation_rows
from dxt_replay.traces.measures.intervals import BoundedUnion
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import OPS_SCHEMA, READ, CaptureInfo, Job, table_from_columns
from dxt_replay.traces.store import reader, writer
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.store.writer import (
    ROW_GROUP_ROWS,
    OpsWriter,
    create_capture,
    write_capture_info,
    write_files,
    write_spans,
)
from tests.capture_builder import File, Op, build_capture, files_table, spans_table
from tests.examples import examples

RANKS, FILES = 4, 5
SIZE, STRIPE = 400, 30

OPS = st.lists(
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


def random_capture(folder: Path, ops: Iterable[Op], row_group_rows: int = ROW_GROUP_ROWS) -> tuple[Capture, list[Op]]:
    """The capture, and its operations with times and without bytes where they move none."""
    timed = [
        Op(
            op.op,
            op.file_id,
            offset=op.offset if op.op in ("read", "write") else -1,
            length=op.length if op.op in ("read", "write") else 0,
            rank=op.rank,
            api=op.api,
            origin=op.origin,
            start_ns=10 * number,
            end_ns=10 * number + 1 + number % 7,
        )
        for number, op in enumerate(ops)
    ]
    files = [File(f"/data/{number}", size=SIZE, stripe_size=STRIPE) for number in range(FILES)]
    made = build_capture(folder, files=files, ops=timed, ranks=range(RANKS), row_group_rows=row_group_rows)
    return made, timed


def one_layer(ops: list[Op]) -> list[Op]:
    """Each file's rows at the lower of the layers that moved most surely data of it: traced, else at all, else used."""

    def sure(op: Op) -> int:
        data = op.op in ("read", "write")
        return 2 if data and op.origin == "traced" else 1 if data else 0

    best: dict[int, tuple[int, bool]] = {}
    for op in ops:
        best[op.file_id] = max(best.get(op.file_id, (0, False)), (sure(op), op.api == "POSIX"))
    return [op for op in ops if (op.api == "POSIX") == best[op.file_id][1]]


def plain_row(ops: list[Op]) -> dict[str, Any]:
    """Columns of SUMMED and the pattern, of what one rank did to one file."""
    row: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
    seen = np.zeros(2 * SIZE, dtype=np.int64)
    for op in ops:
        took = (op.end_ns or 0) - op.start_ns
        data = op.op in ("read", "write")
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
    for name in ("read", "write"):
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


def plain_pattern(row: dict[str, Any]) -> str | None:
    forward = max(row["sequential"] - row["consecutive"] - row["strided"], 0)
    kinds = {name: row[name] for name in ("consecutive", "strided", "random")} | {"sequential": forward}
    return max(kinds, key=lambda name: kinds[name]) if any(kinds.values()) else None


def accessed(row: dict[str, Any]) -> bool:
    return row["reads"] + row["writes"] + row["reconstructed_bytes"] > 0


def plain_rows(ops: list[Op]) -> dict[tuple[int, int], dict[str, Any]]:
    """By rank and file, those that were used."""
    pairs = sorted({(op.rank, op.file_id) for op in ops})
    return {pair: plain_row([op for op in ops if (op.rank, op.file_id) == pair]) for pair in pairs}


def totals(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    rows = list(rows)
    return {name: sum(row[name] for row in rows) for name in SUMMED}


def plain_files(rows: dict[tuple[int, int], dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for file in sorted({file for _, file in rows}):
        mine = [row for (_, number), row in rows.items() if number == file]
        summed = totals(mine)
        unique = int(np.any([row["seen"] for row in mine], axis=0).sum())
        found.append(
            {
                **summed,
                "file_id": file,
                "path": f"/data/{file}",
                "format": "other",
                "size_bytes": SIZE,
                "ranks": sum(accessed(row) for row in mine),
                "unique_bytes_read": unique,
                "read_by_several_bytes": summed["unique_bytes_read"] - unique,
                "pattern": plain_pattern(summed),
            }
        )
    return found


def plain_ranks(rows: dict[tuple[int, int], dict[str, Any]], ranks: Iterable[int]) -> list[dict[str, Any]]:
    users = Counter(file for (_, file), row in rows.items() if accessed(row))
    found = []
    for rank in ranks:
        mine = {file: row for (number, file), row in rows.items() if number == rank}
        used = [file for file, row in mine.items() if accessed(row)]
        shared = sum(users[file] > 1 for file in used)
        found.append({**totals(mine.values()), "rank": rank, "files": len(used), "shared_files": shared})
    return found


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPS, st.integers(1, 9), st.sampled_from([(), (1,), (0, 3)]))
def test_all_three_tables_against_a_plain_count(
    tmp_path: Path, ops: list[Op], group: int, ranks: tuple[int, ...]
) -> None:
    capture, ops = random_capture(tmp_path, ops, row_group_rows=group)
    assume(not ranks or any(op.rank in ranks for op in ops))
    found = patterns(part_of(capture, Part(ranks=ranks or None)))
    # The layer of a file is that of all ranks.
    rows = plain_rows([op for op in one_layer(ops) if not ranks or op.rank in ranks])
    expected = [
        {**row, "rank": rank, "file_id": file, "path": f"/data/{file}", "format": "other"}
        for (rank, file), row in rows.items()
    ]
    batches = list(found.rank_files.batches())
    assert pa.Table.from_batches(batches, schema=TABLES["rank-files"].schema).to_pylist() == [
        {name: plain_pattern(row) if name == "pattern" else row[name] for name in TABLES["rank-files"].columns}
        for row in expected
    ]
    assert found.rank_files.num_rows == len(expected)
    assert found.rank_files.table().num_rows == len(expected)
    assert found.files.to_pylist() == [
        {name: row[name] for name in TABLES["files"].columns} for row in plain_files(rows)
    ]
    assert found.ranks.to_pylist() == [
        {name: row[name] for name in TABLES["ranks"].columns} for row in plain_ranks(rows, ranks or range(RANKS))
    ]


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPS, st.integers(0, 30))
def test_the_largest_are_those_of_the_whole_table(tmp_path: Path, ops: list[Op], count: int) -> None:
    found = patterns(random_capture(tmp_path, ops)[0]).rank_files
    rows = sorted(found.table().to_pylist(), key=lambda row: -(row["bytes_read"] + row["bytes_written"]))
    assert found.largest(count).to_pylist() == rows[:count]


def wide_capture(folder: Path, ranks: int, files: int) -> Capture:
    """Every rank reads every file twice, at two places."""
    path = folder / f"wide-{ranks}.capture"
    create_capture(path)
    number = np.repeat(np.arange(files, dtype=np.int32), 2)
    zeros = np.zeros(2 * files, dtype=np.int8)
    with OpsWriter(path) as writer:
        for rank in range(ranks):
            columns = {
                "rank": np.full(2 * files, rank, dtype=np.int32),
                "lane": zeros.astype(np.int32),
                "op": np.full(2 * files, READ, dtype=np.int8),
                "api": zeros,
                "file_id": number,
                "offset": np.tile([0, 500], files),
                "length": np.full(2 * files, 100),
                "start_ns": np.arange(2 * files) * 100,
                "end_ns": np.arange(2 * files) * 100 + 50,
                "step": zeros.astype(np.int32),
                "origin": zeros,
            }
            writer.write(table_from_columns(columns, OPS_SCHEMA))
    write_files(path, files_table([File(f"/data/{place}", size=1000) for place in range(files)], []))
    write_spans(path, spans_table([]))
    write_capture_info(path, CaptureInfo(job=Job(nprocs=ranks, run_time_s=1.0), ranks=tuple(range(ranks))))
    return open_capture(path)


def peak_bytes(capture: Capture) -> int:
    """The most memory that the tables and a pass over the rows of all ranks and files take."""
    tracemalloc.start()
    try:
        found = patterns(capture)
        assert sum(part.num_rows for part in found.rank_files.batches()) == found.rank_files.num_rows
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_pairs_of_rank_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the pieces of the unions and the rows that are read at once, which are bounded, and here by less than
    a test can make."""
    files, few, many = 2_000, 2, 42
    monkeypatch.setattr(module, "BoundedUnion", partial(BoundedUnion, limit=2 * files))
    monkeypatch.setattr(writer, "SHARED_ROWS", 1)
    monkeypatch.setattr(operation_rows, "FEW_ROWS", files)
    monkeypatch.setattr(reader, "COUNTED_TOGETHER", files)
    peak_bytes(wide_capture(tmp_path, 1, 10))
    growth = peak_bytes(wide_capture(tmp_path, many, files)) - peak_bytes(wide_capture(tmp_path, few, files))
    assert growth < 8 * files * (many - few), "more than one number is kept for each rank and file"
