"""`merge --each` and `summary` of several jobs, as commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.samples import sample


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The logs of two jobs, in folders of their own."""
    for name in ("imagenet", "cosmictagger"):
        (tmp_path / "archive" / name).mkdir(parents=True)
        shutil.copy(sample(name).log, tmp_path / "archive" / name / "job.darshan")
    return tmp_path / "archive"


def test_from_an_archive_of_logs_to_a_table_of_jobs(archive: Path, tmp_path: Path, capsys) -> None:
    output = tmp_path / "captures"
    assert main(["merge", "--each", str(archive), "-o", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "captures written                    2" in printed
    assert f"next: dxt-replay summary {output}" in printed
    assert main(["summary", str(output), "--sort", "bytes_read", "--json"]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert {job["name"] for job in jobs} == {"imagenet/job", "cosmictagger/job"}
    assert jobs[0]["bytes_read"] > jobs[1]["bytes_read"] > 0
    assert main(["summary", str(output)]) == 0
    assert "2 jobs read" in capsys.readouterr().out


def test_the_table_as_csv(archive: Path, tmp_path: Path, capsys) -> None:
    assert main(["summary", str(archive), "-o", "-"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("name,job_id,start,program,ranks")
    assert len(lines) == 2
    file = tmp_path / "jobs.csv"
    file.touch()
    assert main(["summary", str(archive), "-o", str(file)]) == 2
    assert "exists" in capsys.readouterr().err


def test_a_job_that_cannot_be_read_is_named_and_the_others_are_done(archive: Path, tmp_path: Path, capsys) -> None:
    (archive / "bad.darshan").write_bytes(b"no log")
    assert main(["merge", "--each", str(archive), "-o", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().out
    assert "bad.darshan" in printed
    assert "captures written                    2" in printed
    assert main(["summary", str(archive)]) == 1
    assert "1 job could not be read" in capsys.readouterr().out


def test_a_table_of_one_capture_as_parquet(tmp_path: Path) -> None:
    log = str(sample("imagenet").log)
    assert main(["summary", log, "--show", "sizes", "-o", str(tmp_path / "sizes.parquet")]) == 0
    assert pq.read_table(tmp_path / "sizes.parquet").num_rows > 0
    assert main(["summary", log, "--show", "rank-files", "-o", str(tmp_path / "all.parquet")]) == 0
    assert "path" in pq.read_schema(tmp_path / "all.parquet").names
