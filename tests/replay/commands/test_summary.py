from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiler_merge.analysis.durations import VANIDL_EXCLUDES, vanidl_durations
from profiler_merge.analysis.summary import summarise
from replay.commands.main import main
from tests.capture_builder import Op, build_capture, read, write
from traces.store import Capture

SHARED = Path(__file__).resolve().parents[3].parent / "shared"


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


def test_json_is_what_the_function_returns(capture: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, str(capture.path))
    assert next(iter(found)) == "schema_version"
    assert found.pop("schema_version") == 1
    assert found == json.loads(json.dumps(summarise(capture).as_json()))


def test_options_are_those_of_the_function(capture: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, str(capture.path), "--by", "rank", "--exclude", "*.py", "--exclude", "/none")
    del found["schema_version"]
    assert found == json.loads(json.dumps(summarise(capture, by="rank", exclude=["*.py"]).as_json()))
    assert [group["group"] for group in found["groups"]] == [0, 1]


def test_vanidl_numbers_by_one_option(capture: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, str(capture.path), "--compat-vanidl")
    expected = summarise(capture, exclude=VANIDL_EXCLUDES, durations=vanidl_durations(capture.info))
    assert found["files"] == 1
    assert found["io_time_s"]["sum_per_rank_mean"] == expected.io_time_s.sum_per_rank_mean == pytest.approx(0.00075)


def test_the_keys_of_the_design_are_there(capture: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, str(capture.path))
    assert found["job"].keys() >= {"nprocs", "run_time_s"}
    assert found["operations"] == {"read": 2, "write": 1, "other": 1}
    assert found["bytes"].keys() >= {"read", "written"}
    assert found["io_time_s"].keys() >= {"union_per_rank_mean", "sum_per_rank_mean"}
    for spread in ("transfer_size_bytes", "bandwidth_per_op_mib_s"):
        assert found[spread].keys() == {"min", "median", "mean", "max"}
    assert found.keys() >= {"files", "aggregate_bandwidth_mib_s", "sequential_pct", "consecutive_pct"}
    assert found["coverage"].keys() == {"bytes", "operations"}
    assert found["steps"].keys() == {"count", "mean_s"}
    assert found["compute"].keys() >= {"busy_s_per_rank_mean", "io_hidden_pct", "input_wait_s_per_rank_mean"}
    assert found["interfaces"]["POSIX"].keys() >= {"operations", "bytes"}


def test_tables_go_to_standard_output(capture: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(capture.path), "--by", "size"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "2 of 4.10 KiB" in captured.out
    assert "64 B to < 128 B" in captured.out


def test_a_darshan_log_is_a_capture_too(capsys: pytest.CaptureFixture[str]) -> None:
    log = SHARED / "captures" / "ffn" / "job.darshan"
    if not log.is_file():
        pytest.skip(f"{log} is not on this machine")
    found = printed_json(capsys, str(log))
    assert found["job"]["nprocs"] == 2
    assert found["operations"]["read"] > 400
    assert found["interfaces"]["POSIX"]["source"] == "counters"


def test_a_damaged_log_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "x.darshan"
    log.write_bytes(b"no log")
    assert main(["summary", str(log)]) == 2
    assert "dxt-replay: error:" in capsys.readouterr().err
