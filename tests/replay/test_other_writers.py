"""What docs/capture-format.md promises to other writers: `verify` accepts their captures, and `run` replays them."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import dxt_replay
from dxt_replay.traces.files import record_id
from dxt_replay.traces.store.reader import open_capture
from tests.places import ROOT

PROGRAMS = re.findall(
    r"```python\n(.*?)```",
    (ROOT / "docs" / "capture-format.md").read_text(encoding="utf-8").partition("## Writing a capture")[2],
    re.DOTALL,
)
DUCKDB = """
import json, os
import duckdb

os.makedirs("job.capture/ops")
duckdb.sql('''
    copy (select 0 as rank, n % 2 as lane, 'read' as op, 'POSIX' as api, n % 3 as file_id, 4096 * n as "offset",
                 4096 as length, 1000000 * n as start_ns, 1000000 * n + 200000 as end_ns
          from range(100) as t(n) order by rank, start_ns)
    to 'job.capture/ops/part-0000000.parquet'
''')
duckdb.sql(
    "copy (select n as file_id, '/data/' || n as path, 409600 as size from range(3) as t(n)) "
    "to 'job.capture/files.parquet'"
)
with open("job.capture/capture.json", "w") as file:
    json.dump({"schema_version": 5, "ranks": [0], "job": {"nprocs": 1, "run_time_s": 0.1}}, file)
"""
WRITERS = ("duckdb", "polars")


def ops_frame() -> pd.DataFrame:
    """100 reads of two ranks, as a program without any other knowledge has them."""
    number = pd.Series(range(100))
    columns = {
        "rank": number // 50, "lane": 0, "op": "read", "api": "POSIX", "file_id": number % 3, "offset": 4096 * number,
        "length": 4096, "start_ns": 1_000_000 * number, "end_ns": 1_000_000 * number + 200_000,
    }  # fmt: skip
    return pd.DataFrame(columns)


def with_pandas(folder: Path, ops: pd.DataFrame) -> Path:
    path = folder / "job.capture"
    (path / "ops").mkdir(parents=True)
    ops.to_parquet(path / "ops" / "part-0000000.parquet")
    files = {"file_id": range(3), "path": [f"/data/{number}" for number in range(3)], "size": 409_600}
    pd.DataFrame(files).to_parquet(path / "files.parquet")
    document = {"schema_version": 5, "ranks": [0, 1], "job": {"nprocs": 2, "run_time_s": 0.1}}
    (path / "capture.json").write_text(json.dumps(document))
    return path


@pytest.fixture(params=["pandas", *WRITERS])
def capture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "pandas":
        return with_pandas(tmp_path, ops_frame())
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    (program,) = [text for text in (*PROGRAMS, DUCKDB) if f"import {request.param}" in text]
    # In a process of its own: Polars 2 takes over SIGINT, and Ctrl-C then ends no wait for a lock any more.
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    return tmp_path / "job.capture"


def test_it_is_verified_and_replayed(capture: Path, tmp_path: Path) -> None:
    found = dxt_replay.verify(capture)
    assert found.passed, [part.differences for part in found.places[0].parts]
    assert {part.part: part.checked for part in found.places[0].parts}["operations"] == 100
    assert "another program wrote it" in found.places[0].parts[1].note
    (tmp_path / "target").mkdir(exist_ok=True)
    dxt_replay.stage(capture, tmp_path / "target")
    dxt_replay.run(capture, tmp_path / "target", tmp_path / "replay.capture", pace="none")
    replay = open_capture(tmp_path / "replay.capture")
    results = [row["result"] for batch in replay.operations() for row in batch.to_pylist()]
    assert results == [4096] * 100
    assert dxt_replay.verify(replay.path).passed


def test_what_is_left_out_is_not_guessed(tmp_path: Path) -> None:
    capture = open_capture(with_pandas(tmp_path, ops_frame()))
    row = next(capture.operations()).to_pylist()[1]
    assert (row["step"], row["origin"], row["due_ns"], row["feeds"]) == (-1, "traced", None, None)
    assert [batch.num_rows for batch in capture.operations(columns=["step"])] == [50, 50]
    assert capture.files["record_id"].to_pylist() == [record_id(f"/data/{number}") for number in range(3)]
    assert set(capture.files["format"].to_pylist()) == {"other"}
    assert capture.files["posix_reads"].null_count == 3
    assert capture.spans.num_rows == capture.hdf5.num_rows == 0
    assert capture.info.coverage.bytes is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda ops: ops.sort_values("start_ns", ascending=False), "sort the operations by rank and start_ns"),
        (lambda ops: ops.sort_values(["rank", "offset"], ascending=[True, False]), "not in the order of their times"),
        (lambda ops: ops.drop(columns="lane"), "lacks the column lane"),
        (lambda ops: ops.assign(op="pread"), "'pread'"),
        (lambda ops: ops.assign(rank=ops["rank"] + 1), "rank 2, which capture.json does not list"),
        (lambda ops: ops.assign(file_id=3), "names a file that files.parquet lacks"),
    ],
    ids=["ranks", "times", "column", "name", "rank", "file"],
)
def test_verify_says_what_is_wrong(tmp_path: Path, change: object, expected: str) -> None:
    assert callable(change)
    found = dxt_replay.verify(with_pandas(tmp_path, change(ops_frame())))
    assert not found.passed
    assert any(expected in each.found for part in found.places[0].parts for each in part.differences)


def test_a_capture_of_dxt_replay_needs_its_spans(tmp_path: Path) -> None:
    path = with_pandas(tmp_path, ops_frame())
    document = json.loads((path / "capture.json").read_text())
    (path / "capture.json").write_text(json.dumps({**document, "made_by": {"program": "dxt-replay"}}))
    with pytest.raises(dxt_replay.CaptureError, match=r"lacks spans\.parquet"):
        dxt_replay.open_capture(path)
