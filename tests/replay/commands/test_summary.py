from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.analysis.named_tables import views
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.show.section import MAX_GROUPS
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import File, Op, Span, build_capture, read, write


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return build_capture(
        tmp_path,
        files=["/data/a", "/lib/b.py"],
        ops=[
            read(0, length=4096, start_ns=10_000, end_ns=40_000),
            read(1, length=100, start_ns=50_000, end_ns=900_000),
            write(0, offset=4096, length=10, start_ns=1_000_000, end_ns=1_500_000, rank=1),
            Op("close", 0, start_ns=2_000_000, rank=1),
        ],
    )


def printed_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert main(["summary", *argv, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict = json.loads(captured.out)
    return found


def printed_csv(capsysbinary: pytest.CaptureFixture[bytes], *argv: str) -> list[dict[str, str]]:
    assert main(["summary", *argv, "-o", "-"]) == 0
    text = capsysbinary.readouterr().out.decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_breakdown_and_totals_as_csv(capture: Capture, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    rows = printed_csv(capsysbinary, str(capture.path), "--by", "file")
    assert [(row["group"], row["bytes_read"]) for row in rows] == [("/data/a", "4096"), ("/lib/b.py", "100")]
    totals = {row["name"]: row["value"] for row in printed_csv(capsysbinary, str(capture.path))}
    assert totals["operations.read"] == "2"


def test_filters_are_those_of_the_library(capture: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--part", "path=/data/*,path=/none", "--part", "ranks=0,op=read,api=posix"]
    found = printed_json(capsys, str(capture.path), *options, "--part", "from=1us,until=1ms")
    del found["schema_version"]
    part = Part(
        paths=("/data/*", "/none"),
        ranks=(0,),
        operations=("read",),
        interfaces=("POSIX",),
        from_ns=1_000,
        until_ns=1_000_000,
    )
    assert found == json.loads(json.dumps(summarise(part_of(capture, part)).as_json()))
    assert found["bytes"] == {"read": 4096, "written": 0}


def test_all_rows_of_ranks_and_files_are_in_the_json(capture: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, str(capture.path), "--show", "rank-files", "--show", "steps")
    del found["schema_version"]
    expected = views(capture, ["rank-files", "steps"])
    assert found == json.loads(json.dumps(expected.as_json()))
    assert list(found["tables"]) == ["rank-files", "steps"]
    assert len(found["tables"]["rank-files"]) == expected.tables["rank-files"].num_rows == 3


def test_a_terminal_shows_the_ranks_and_files_that_moved_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ops = [read(file, length=rank + file, rank=rank, start_ns=file) for rank in range(10) for file in range(1, 8)]
    capture = build_capture(tmp_path, files=[f"/data/{number}" for number in range(8)], ops=ops)
    assert main(["summary", str(capture.path), "--show", "rank-files"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split() for line in lines if line.strip().startswith("/data/")]
    most = sorted(ops, key=lambda op: (-op.length, op.rank, op.file_id))[:MAX_GROUPS]
    assert [(words[0], int(words[1])) for words in shown] == [(f"/data/{op.file_id}", op.rank) for op in most]
    assert f"and {len(ops) - MAX_GROUPS} more: --json, or -o FILE.csv, has all" in lines


def test_files_that_are_not_on_this_machine_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "1").write_bytes((3).to_bytes(8, "little") + bytes(11))
    files = [File(f"/recorded/{name}", format="tfrecord") for name in "12"]
    capture = build_capture(tmp_path, files=files, ops=[read(0, length=1, start_ns=0), read(1, length=1, start_ns=1)])
    assert main(["summary", str(capture.path), "--show", "tfrecords"]) == 2
    error = capsys.readouterr().err
    assert "2 files" in error
    assert error.count("/recorded/") == 1
    assert "--map PREFIX=DIR" in error
    rule = f"/recorded={tmp_path / 'here'}"
    assert main(["summary", str(capture.path), "--show", "tfrecords", "--map", rule]) == 0
    printed = capsys.readouterr().out
    assert "/recorded/1" in printed
    assert "1 file is not on this machine" in printed


def test_the_first_lines_say_what_the_run_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spans = [
        Span(kind, start_ns=number * 10**9 + begin, end_ns=number * 10**9 + end, step=number)
        for number in range(4)
        for kind, begin, end in (("step", 0, 10**9), ("input_wait", 0, 4 * 10**8), ("compute", 4 * 10**8, 10**9))
    ]
    ops = [read(0, length=1, start_ns=number * 10**9, end_ns=number * 10**9 + 3 * 10**8) for number in range(4)]
    capture = build_capture(tmp_path, files=["/a"], ops=ops, spans=spans)
    assert main(["summary", str(capture.path)]) == 0
    first = " ".join(capsys.readouterr().out.split("Job")[0].split())
    assert first.startswith("Training of 4 steps on 1 rank; the whole job took ")
    assert "waits for input 40.0 % of the steady loop." in first
    assert (
        "limits this training by 30.0 %: with infinitely fast storage it would take 2.800 s instead of 4.000 s" in first
    )
    assert "compute 85.7 % of it instead of 60.0 %." in first
    assert main(["summary", str(capture.path), "--show", "storage-limit", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["storage_limit"]["limit_pct"] == pytest.approx(30.0)
    assert found["tables"]["storage-limit"][2] == {
        "quantity": "speed",
        "multiple": 1.0,
        "elapsed_ns": 4 * 10**9,
        "above_fastest_pct": pytest.approx(42.857, abs=0.001),
        "utilisation_pct": pytest.approx(60.0),
    }
    assert main(["summary", str(capture.path), "--show", "storage-limit"]) == 0
    assert "From 21 times the recorded speed on, storage costs at most 2 %." in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_job_without_an_end_took_an_unknown_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=0.0, start_ns=10**18), ranks=(0,))
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=1)], info=info)
    assert main(["summary", str(capture.path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("A run on 1 rank; how long the job took is not known.")
    assert main(["summary", str(capture.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["run_time_s"] is None


def test_a_log_without_a_trace_shows_its_counters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counters = {"posix_reads": 3, "posix_writes": 2, "posix_bytes_read": 4096, "posix_bytes_written": 0}
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=1.0), ranks=(0,))
    capture = build_capture(tmp_path, files=[File("/a", counters=counters)], info=info)
    assert main(["summary", str(capture.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("No DXT trace")
    assert any(line.split()[:5] == ["POSIX", "3", "2", "4.00", "KiB"] for line in lines)
