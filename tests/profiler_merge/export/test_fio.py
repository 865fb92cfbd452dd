from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.export import fio
from dxt_replay.profiler_merge.export.fio import write_fio
from dxt_replay.traces.errors import CaptureError, TargetError
from dxt_replay.traces.schema import READ, WRITE, codes
from tests.capture_builder import Op, build_capture, read, write

FIO = shutil.which("fio")
needs_fio = pytest.mark.skipif(FIO is None, reason="fio is not installed")


def reads_and_writes(batch: pa.RecordBatch) -> np.ndarray:
    return np.isin(codes(batch, "op"), (READ, WRITE))


def lines_of(path: Path | str) -> list[str]:
    return Path(path).read_text(encoding="ascii").splitlines()


def run_fio(folder: Path) -> dict[str, dict]:
    """Result of each job by name."""
    done = subprocess.run([folder / fio.SCRIPT, "--output-format=json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {job["jobname"]: job for job in json.loads(done.stdout[done.stdout.index("{") :])["jobs"]}


def test_what_fio_cannot_do_is_left_out_and_counted(tmp_path: Path) -> None:
    ops = [
        read(0, length=0), read(0, offset=-1, length=5, start_ns=1), Op("stat", 0, start_ns=2),
        Op("open", 0, start_ns=3), read(0, length=8, start_ns=4), write(0, length=0, start_ns=5, lane=7),
        Op("sync", 0, start_ns=6),
    ]  # fmt: skip
    capture = build_capture(tmp_path, files=["/a"], ops=ops)
    result = write_fio(capture, tmp_path / "out", paths=[b"/a"], replayed=reads_and_writes)
    assert result.left_out == {fio.ZERO_LENGTH: 2, fio.OFFSET_NOT_KNOWN: 1, fio.NOT_REPLAYED: 3}
    assert result.operations == 1
    assert [Path(file.path).name for file in result.files] == ["rank-0-lane-0.iolog"]
    assert "2 operations that moved no byte are left out" in result.notes[1]


def test_a_long_call_is_several_actions(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, offset=5, length=(5 << 30) + 7)])
    write_fio(capture, tmp_path / "out", paths=[b"/a"], replayed=reads_and_writes)
    actions = [line.split() for line in lines_of(tmp_path / "out" / "rank-0-lane-0.iolog") if " read " in line]
    assert [int(offset) for _, _, _, offset, _ in actions] == [5 + (i << 30) for i in range(6)]
    assert [int(length) for *_, length in actions] == [1 << 30] * 5 + [7]


def test_names_that_fio_cannot_read_are_links(tmp_path: Path) -> None:
    paths = [b"/t/with space", b"/t/" + b"x" * 253, b"/t/new\nline", "/t/ümläut".encode(), b"/t/" + b"x" * 252]
    capture = build_capture(
        tmp_path, files=[f"/{i}" for i in range(5)], ops=[read(i, length=1, start_ns=i) for i in range(5)]
    )
    write_fio(capture, tmp_path / "out", paths=paths, replayed=reads_and_writes)
    added = [line.split()[1] for line in lines_of(tmp_path / "out" / "rank-0-lane-0.iolog") if line.endswith(" add")]
    assert added == ["names/0", "names/1", "names/2", "names/3", paths[4].decode()]
    assert [os.readlink(os.fsencode(tmp_path / "out" / name)) for name in added[:4]] == paths[:4]


def test_a_renamed_file_has_its_last_name_from_the_start(tmp_path: Path) -> None:
    ops = [
        write(0, length=10, start_ns=0),
        Op("rename", 0, other_file_id=1, start_ns=1),
        Op("rename", 1, other_file_id=2, start_ns=2),
        read(2, length=10, start_ns=3),
        Op("rename", 3, other_file_id=4, start_ns=4, lane=1),
        Op("rename", 4, other_file_id=3, start_ns=5, lane=1),
        write(3, length=1, start_ns=6, lane=1),
    ]
    capture = build_capture(tmp_path, files=[f"/{i}" for i in range(5)], ops=ops)
    paths = [b"/t/%d" % i for i in range(5)]
    result = write_fio(capture, tmp_path / "out", paths=paths, replayed=lambda batch: np.ones(batch.num_rows, bool))
    assert lines_of(tmp_path / "out" / "rank-0-lane-0.iolog")[1:] == [
        "1 /t/2 add", "1 /t/2 open", "1 /t/2 write 0 10", "1 /t/2 read 0 10", "1 /t/2 close",
    ]  # fmt: skip
    assert lines_of(tmp_path / "out" / "rank-0-lane-1.iolog")[1] in ("1 /t/3 add", "1 /t/4 add")
    assert result.left_out == {fio.ZERO_LENGTH: 4}


def test_an_export_with_other_files_in_it_is_left_alone(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=1)])
    out = tmp_path / "out"
    write_fio(capture, out, paths=[b"/a"], replayed=reads_and_writes)
    (out / "mine.txt").write_text("kept")
    with pytest.raises(TargetError, match=r"mine\.txt"):
        write_fio(capture, out, paths=[b"/a"], replayed=reads_and_writes, force=True)
    assert (out / "mine.txt").read_text() == "kept"


def test_nothing_to_replay_is_an_error(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=0)])
    with pytest.raises(CaptureError, match="fio has nothing to replay"):
        write_fio(capture, tmp_path / "out", paths=[b"/a"], replayed=reads_and_writes)


@needs_fio
def test_fio_accepts_the_job_file(tmp_path: Path) -> None:
    ops = [read(0, length=10, rank=rank, lane=lane) for rank in range(2) for lane in range(3)]
    capture = build_capture(tmp_path, files=["/a"], ops=ops)
    write_fio(capture, tmp_path / "out", paths=[b"/a"], replayed=reads_and_writes)
    command = [str(FIO), "--parse-only", fio.JOB_FILE]
    done = subprocess.run(command, cwd=tmp_path / "out", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with open(tmp_path / "out" / fio.JOB_FILE, "a") as job_file:
        job_file.write("no_such_option=1\n")
    assert subprocess.run(command, cwd=tmp_path / "out", capture_output=True, check=False).returncode != 0


@needs_fio
def test_fio_replays_the_bytes_at_their_times(tmp_path: Path) -> None:
    """What it reads is seen in its counts and, by what it then may not read, in its errors; gaps in its run time."""
    data = tmp_path / "data dir"
    data.mkdir()
    (data / "in").write_bytes(bytes(20_000))
    ops = [
        read(0, offset=0, length=4_096, start_ns=1_000_000_000),
        read(0, offset=15_904, length=4_096, start_ns=1_020_000_000),
        write(1, offset=500, length=1_000, start_ns=1_030_000_000),
        read(0, offset=1, length=20, start_ns=1_010_000_000, lane=1),
        read(0, offset=2, length=10_000, start_ns=1_040_000_000, rank=1),
    ]
    capture = build_capture(tmp_path, files=["/in", "/new"], ops=ops)
    paths = [os.fsencode(data / "in"), os.fsencode(tmp_path / "made" / "new")]
    write_fio(capture, tmp_path / "out put", paths=paths, replayed=reads_and_writes)
    jobs = run_fio(tmp_path / "out put")
    done = {
        name: [jobs[name][way][count] for way in ("read", "write") for count in ("total_ios", "io_bytes")]
        for name in jobs
    }
    assert done == {
        "rank-0-lane-0": [2, 8_192, 1, 1_000], "rank-0-lane-1": [1, 20, 0, 0], "rank-1-lane-0": [1, 10_000, 0, 0],
    }  # fmt: skip
    assert all(job["error"] == 0 and job["read"]["short_ios"] == 0 for job in jobs.values())
    assert (tmp_path / "made" / "new").stat().st_size == 1_500
    assert (data / "in").read_bytes() == bytes(20_000)
    # it waits for the times in the iolog: no job can end before its last operation is due
    assert jobs["rank-0-lane-0"]["job_runtime"] >= 29
    assert jobs["rank-1-lane-0"]["job_runtime"] >= 39
