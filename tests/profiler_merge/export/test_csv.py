from __future__ import annotations

import csv
import io
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.export import exported as module
from dxt_replay.profiler_merge.export.exported import stream_csv, write_csv
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, build_capture, read, write
from tests.examples import examples

AWKWARD = ["/plain", '/quo"te', "/com,ma", "/new\nline", "/cr\rhere", b"/odd\xff\xfe", "/ümläut \u2028", "/ space "]


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def awkward_capture(directory: Path) -> Capture:
    return build_capture(
        directory,
        files=AWKWARD,
        ops=[read(file, offset=file, length=7, start_ns=file * 1_000_000_007) for file in range(len(AWKWARD))],
    )


def test_a_replayed_row_has_every_column(tmp_path: Path) -> None:
    op = read(
        0, offset=4096, length=10, start_ns=1_234_567_891, end_ns=1_234_567_892, rank=1, lane=3,
        api="STDIO", step=5, origin="reconstructed", due_ns=-1, result=-5,
    )  # fmt: skip
    capture = build_capture(tmp_path, files=["/a"], ops=[op])
    write_csv(capture, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == (
        b"rank,lane,op,api,path,offset,length,start_s,end_s,step,origin,due_s,result,new_path\r\n"
        b"1,3,read,STDIO,/a,4096,10,1.234567891,1.234567892,5,reconstructed,-0.000000001,-5,\r\n"
    )


def test_paths_survive_quoting(tmp_path: Path) -> None:
    capture = awkward_capture(tmp_path)
    write_csv(capture, tmp_path / "out.csv")
    found = rows_of(tmp_path / "out.csv")
    assert [row["path"] for row in found] == capture.paths()
    assert capture.paths()[5] == "/odd\\xff\\xfe"


def test_slices_and_row_groups_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_ROWS", 3)
    ops = [write(0, offset=i, length=1, start_ns=i, rank=i % 2) for i in range(20)]
    exported = write_csv(build_capture(tmp_path, files=["/a"], ops=ops), tmp_path / "out.csv")
    found = rows_of(tmp_path / "out.csv")
    assert [(int(row["rank"]), int(row["offset"])) for row in found] == sorted((op.rank, op.offset) for op in ops)
    assert exported.operations == exported.files[0].entries == 20
    assert exported.files[0].bytes == (tmp_path / "out.csv").stat().st_size


@settings(max_examples=examples(25))
@given(times=st.lists(st.integers(-(1 << 60), 1 << 60), min_size=1, max_size=20))
def test_times_are_exact(tmp_path_factory: pytest.TempPathFactory, times: list[int]) -> None:
    ops = [Op("stat", 0, start_ns=time, end_ns=time) for time in times]
    text = io.BytesIO()
    stream_csv(build_capture(tmp_path_factory.mktemp("exact"), files=["/a"], ops=ops), text)
    found = list(csv.DictReader(io.StringIO(text.getvalue().decode(), newline="")))
    assert [Decimal(row["start_s"]).scaleb(9) for row in found] == sorted(times)
    assert all(row["start_s"] == row["end_s"] for row in found)
