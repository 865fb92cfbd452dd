from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.measures import operation_rows as operation_rows_home
from dxt_replay.traces.measures.operation_rows import ROW_COLUMNS, operation_rows, read_ahead, rows_together
from dxt_replay.traces.store.checks import read_info
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import OpsWriter, write_capture_info
from tests.capture_builder import build_capture, ops_table, read


def test_rows_of_several_ranks_are_those_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [
        read(number % 2, rank=number % 6, start_ns=number, length=number, api="POSIX" if number % 5 else "STDIO")
        for number in range(100)
    ]
    ops += [read(0, rank=6, start_ns=number) for number in range(30)]
    path = build_capture(tmp_path, files=["/a", "/b"], ranks=range(7)).path
    with OpsWriter(path, row_group_rows=20) as writer:
        for rank in range(7):
            writer.write(ops_table([op for op in ops if op.rank == rank]))
    write_capture_info(path, read_info(path))
    capture = open_capture(path)
    assert len(capture.index.of(6)) == 2
    monkeypatch.setattr(operation_rows_home, "FEW_ROWS", 40)
    found = list(rows_together(capture, without=("step",)))
    assert [sorted(set(rows.ranks.tolist())) for rows in found] == [[0, 1], [2, 3], [4, 5], [], []]
    each = [one for rows in found for one in rows.each_rank()]
    expected = list(operation_rows(capture, without=("step",)))
    assert [rows.rank for rows in each] == [rows.rank for rows in expected] == [0, 1, 2, 3, 4, 5, 6, 6]
    for one, other in zip(each, expected, strict=True):
        for name in ROW_COLUMNS:
            assert getattr(one, name).tolist() == getattr(other, name).tolist()


def test_read_ahead_gives_the_same_items_and_its_errors_in_their_place() -> None:
    def items() -> Iterator[str]:
        yield "first"
        yield "second"
        raise CaptureError("the third is damaged")

    ahead = read_ahead(items())
    assert [next(ahead), next(ahead)] == ["first", "second"]
    with pytest.raises(CaptureError, match="the third is damaged"):
        next(ahead)
