from __future__ import annotations

import csv
import gzip
import io
import json
import os
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.target.stage import check_staged
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Span, build_capture, read, write


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return build_capture(
        tmp_path,
        files=["/data/a", "/data/b c", "/out/w"],
        ops=[
            read(0, length=4096, start_ns=10_000),
            read(1, length=0, start_ns=50_000),
            read(1, length=100, start_ns=60_000),
            write(2, length=10, start_ns=1_000_000, rank=1),
            read(0, length=4096, start_ns=10_000, api="MPIIO"),
        ],
        spans=[Span("step", 0, 2_000_000, step=0)],
    )


def export(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = main(["export", *(str(argument) for argument in argv)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_chrome(capture: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "t.json.gz"
    status, out, err = export(capsys, capture.path, "--to", "chrome", "-o", output, "--json")
    assert (status, err) == (0, "")
    with gzip.open(output) as file:
        events = json.load(file)["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 6
    assert json.loads(out) == {
        "schema_version": 1, "format": "chrome", "output": str(output), "operations": 5, "left_out": {}, "notes": [],
        "files": [{"path": str(output), "entries": 6, "bytes": output.stat().st_size}],
    }  # fmt: skip


def test_csv_to_a_file_and_to_standard_output_are_the_same(
    capture: Capture, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["export", str(capture.path), "--to", "csv", "-o", str(tmp_path / "t.csv")]) == 0
    assert b"Wrote 5 operations as csv to " in capfdbinary.readouterr().out
    assert main(["export", str(capture.path), "--to", "csv", "-o", "-"]) == 0
    captured = capfdbinary.readouterr()
    assert captured.err == b""
    assert captured.out == (tmp_path / "t.csv").read_bytes()
    rows = list(csv.DictReader(io.StringIO(captured.out.decode(), newline="")))
    assert [row["path"] for row in rows] == ["/data/a", "/data/a", "/data/b c", "/data/b c", "/out/w"]


def test_fio_finds_the_files_where_stage_puts_them(
    capture: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, output = tmp_path / "target", tmp_path / "out"
    target.mkdir(exist_ok=True)
    assert main(["stage", str(capture.path), "--target", str(target)]) == 0
    capsys.readouterr()
    status, out, _ = export(capsys, capture.path, "--to", "fio", "-o", output, "--target", target, "--json")
    assert status == 0
    result = json.loads(out)
    assert (result["operations"], result["left_out"]) == (3, {"not_replayed": 1, "zero_length": 1})
    lines = (output / "rank-0-lane-0.iolog").read_text().splitlines()
    added = [output / line.split()[1] for line in lines if line.endswith(" add")]
    placed = {placement.file_id: Path(os.fsdecode(placement.path)) for placement in check_staged(capture, target)}
    assert [path.resolve() for path in added] == [placed[0], placed[1]]
    assert all(path.is_file() for path in added)
    assert str(placed[2]) in (output / "rank-1-lane-0.iolog").read_text()


def test_darshan(capture: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "x.darshan"
    status, out, err = export(capsys, capture.path, "--to", "darshan", "-o", output, "--json")
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert (result["format"], result["operations"], result["files"][0]["entries"]) == ("darshan", 5, 5)
    modules = open_log(output).modules
    assert (modules["DXT_POSIX"].version, modules["DXT_MPIIO"].version) == (1, 2)
    assert any("lanes are not kept" in note for note in result["notes"])
    status, out, _ = export(capsys, output, "--to", "csv", "-o", "-")
    traced = [row for row in csv.DictReader(io.StringIO(out, newline="")) if row["origin"] == "traced"]
    assert (status, len(traced)) == (0, 5)
