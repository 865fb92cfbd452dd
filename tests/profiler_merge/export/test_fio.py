from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.export import fio
from dxt_replay.profiler_merge.export.exported import Exported
from dxt_replay.profiler_merge.export.fio import write_fio
from dxt_replay.traces.errors import CaptureError, TargetError
from dxt_replay.traces.schema import READ, WRITE, codes
from tests.capture_builder import Op, build_capture, read, write

FIO = shutil.which("fio")
needs_fio = pytest.mark.skipif(FIO is None, reason="fio is not installed")


def reads_and_writes(batch: pa.RecordBatch) -> np.ndarray:
    return np.isin(codes(batch, "op"), (READ, WRITE))


def written(folder: Path, ops: Sequence[Op], paths: Sequence[bytes] = (b"/a",), out: str = "out") -> Exported:
    capture = build_capture(folder, files=[f"/{number}" for number in range(len(paths))], ops=ops)
    every = any(op.op == "rename" for op in ops)
    replayed = (lambda batch: np.ones(batch.num_rows, bool)) if every else reads_and_writes
    return write_fio(capture, folder / out, paths=paths, replayed=replayed, force=True)


def actions(result: Exported, lane: int = 0) -> list[str]:
    return Path(result.files[lane].path).read_text(encoding="ascii").splitlines()[1:]


def test_what_fio_cannot_do_is_left_out_and_counted(tmp_path: Path) -> None:
    ops = [
        read(0, length=0), read(0, offset=-1, length=5, start_ns=1), Op("stat", 0, start_ns=2),
        Op("open", 0, start_ns=3), read(0, length=8, start_ns=4), write(0, length=0, start_ns=5, lane=7),
        Op("sync", 0, start_ns=6),
    ]  # fmt: skip
    result = written(tmp_path, ops)
    assert result.left_out == {fio.ZERO_LENGTH: 2, fio.OFFSET_NOT_KNOWN: 1, fio.NOT_REPLAYED: 3}
    assert (result.operations, len(result.files)) == (1, 1)
    assert "2 operations that moved no byte are left out" in result.notes[1]
    with pytest.raises(CaptureError, match="fio has nothing to replay"):
        written(tmp_path / "nothing", [read(0, length=0)])


def test_a_long_call_is_several_actions(tmp_path: Path) -> None:
    found = [
        line.split()[3:]
        for line in actions(written(tmp_path, [read(0, offset=5, length=(5 << 30) + 7)]))
        if " read " in line
    ]
    assert found == [[str(5 + (i << 30)), str(1 << 30 if i < 5 else 7)] for i in range(6)]


def test_names_that_fio_cannot_read_are_links(tmp_path: Path) -> None:
    paths = [b"/t/with space", b"/t/" + b"x" * 253, b"/t/new\nline", "/t/ümläut".encode(), b"/t/" + b"x" * 252]
    result = written(tmp_path, [read(i, length=1, start_ns=i) for i in range(5)], paths)
    added = [line.split()[1] for line in actions(result) if line.endswith(" add")]
    assert added == [*(f"names/{i}" for i in range(4)), paths[4].decode()]
    assert [os.readlink(os.fsencode(tmp_path / "out" / name)) for name in added[:4]] == paths[:4]


def test_a_renamed_file_has_its_last_name_from_the_start(tmp_path: Path) -> None:
    """Files 3 and 4 change places: either name will do."""
    renames = [(0, 1, 0), (1, 2, 0), (3, 4, 1), (4, 3, 1)]
    ops = [
        Op("rename", old, other_file_id=new, start_ns=at, lane=lane) for at, (old, new, lane) in enumerate(renames, 1)
    ]
    ops += [write(0, length=10), read(2, length=10, start_ns=5), write(3, length=1, start_ns=6, lane=1)]
    result = written(tmp_path, ops, [b"/t/%d" % i for i in range(5)])
    assert actions(result) == [
        "1 /t/2 add", "1 /t/2 open", "1 /t/2 write 0 10", "1 /t/2 read 0 10", "1 /t/2 close",
    ]  # fmt: skip
    assert actions(result, 1)[0] in ("1 /t/3 add", "1 /t/4 add")
    assert result.left_out == {fio.ZERO_LENGTH: 4}


def test_an_export_with_other_files_in_it_is_left_alone(tmp_path: Path) -> None:
    for _ in range(2):  # --force replaces what the export wrote, links too
        written(tmp_path, [read(0, length=1)], [b"/a b"])
    (tmp_path / "out" / "mine.txt").write_text("kept")
    with pytest.raises(TargetError, match=r"mine\.txt"):
        written(tmp_path, [read(0, length=1)])
    assert (tmp_path / "out" / "mine.txt").read_text() == "kept"


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
    written(tmp_path, ops, [os.fsencode(data / "in"), os.fsencode(tmp_path / "made" / "new")], "out put")
    command = [tmp_path / "out put" / fio.SCRIPT, "--output-format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = {job["jobname"]: job for job in json.loads(done.stdout[done.stdout.index("{") :])["jobs"]}
    assert {
        name: [job[way][count] for way in ("read", "write") for count in ("total_ios", "io_bytes")]
        for name, job in jobs.items()
    } == {
        "rank-0-lane-0": [2, 8_192, 1, 1_000], "rank-0-lane-1": [1, 20, 0, 0], "rank-1-lane-0": [1, 10_000, 0, 0],
    }  # fmt: skip
    assert all(job["error"] == 0 and job["read"]["short_ios"] == 0 for job in jobs.values())
    assert (tmp_path / "made" / "new").stat().st_size == 1_500
    assert (data / "in").read_bytes() == bytes(20_000)
    # it waits for the times in the iolog: no job can end before its last operation is due
    assert jobs["rank-0-lane-0"]["job_runtime"] >= 29
    assert jobs["rank-1-lane-0"]["job_runtime"] >= 39
