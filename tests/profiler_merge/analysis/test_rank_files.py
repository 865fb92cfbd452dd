"""The tables of ranks and files against a plain count of the operations, however they come in parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.patterns import patterns, rank_files
from dxt_replay.profiler_merge.analysis.tables import COUNTS, SUMMED, TABLES
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import File, Op, build_capture
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


def random_capture(folder: Path, ops: Iterable[Op], row_group_rows: int) -> tuple[Capture, list[Op]]:
    """The capture, and its operations with times and without bytes where they move none."""
    timed = []
    for number, op in enumerate(ops):
        moved = {} if op.op in ("read", "write") else {"offset": -1, "length": 0}
        timed.append(replace(op, start_ns=10 * number, end_ns=10 * number + 1 + number % 7, **moved))
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


def totals(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    rows = list(rows)
    return {name: sum(row[name] for row in rows) for name in SUMMED}


def plain_file(mine: list[dict[str, Any]]) -> dict[str, Any]:
    summed = totals(mine)
    unique = int(np.any([row["seen"] for row in mine], axis=0).sum())
    several = {"unique_bytes_read": unique, "read_by_several_bytes": summed["unique_bytes_read"] - unique}
    used = sum(accessed(row) for row in mine)
    return {**summed, **several, "size_bytes": SIZE, "ranks": used, "pattern": plain_pattern(summed)}


def plain_rank(rank: int, rows: dict[tuple[int, int], dict[str, Any]]) -> dict[str, Any]:
    users = Counter(file for (_, file), row in rows.items() if accessed(row))
    used = [file for (number, file), row in rows.items() if number == rank and accessed(row)]
    shared = sum(users[file] > 1 for file in used)
    return {
        **totals(row for (number, _), row in rows.items() if number == rank),
        **{"rank": rank, "files": len(used), "shared_files": shared},
    }


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([Op("read", 0, offset=at, length=10) for at in (50, 0, 10, 20, 10)], 9, ())
@given(OPS, st.integers(1, 9), st.sampled_from([(), (1,), (0, 3)]))
def test_all_three_tables_against_a_plain_count(
    tmp_path: Path, ops: list[Op], group: int, ranks: tuple[int, ...]
) -> None:
    capture, ops = random_capture(tmp_path, ops, group)
    assume(not ranks or any(op.rank in ranks for op in ops))
    part = part_of(capture, Part(ranks=ranks or None))
    # The layer of a file is that of all ranks.
    mine = [op for op in one_layer(ops) if not ranks or op.rank in ranks]
    rows = {
        pair: plain_row([op for op in mine if (op.rank, op.file_id) == pair])
        for pair in sorted({(op.rank, op.file_id) for op in mine})
    }
    names = {file: {"file_id": file, "path": f"/data/{file}", "format": "other"} for file in range(FILES)}
    by_file = {file: [row for (_, number), row in rows.items() if number == file] for file in range(FILES)}
    found = patterns(part)
    for name, table, expected in (
        (
            "rank-files", rank_files(part),
            [{**row, **names[file], "rank": rank, "pattern": plain_pattern(row)} for (rank, file), row in rows.items()],
        ),
        ("files", found.files, [{**plain_file(of), **names[file]} for file, of in by_file.items() if of]),
        ("ranks", found.ranks, [plain_rank(rank, rows) for rank in ranks or range(RANKS)]),
    ):  # fmt: skip
        assert table.to_pylist() == [{column: row[column] for column in TABLES[name].columns} for row in expected]
