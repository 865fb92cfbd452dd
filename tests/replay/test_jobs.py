"""Many jobs at once: which logs are one job, a capture of each, and a line for each."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import dxt_replay
from dxt_replay.replay import jobs as jobs_module
from dxt_replay.traces import output as output_module
from dxt_replay.traces.errors import LogError, UsageError
from dxt_replay.traces.store import writer
from dxt_replay.traces.workers import Workers
from tests.capture_builder import Span, build_capture, read, write
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log

MIB = 1 << 20


def a_log(path: Path, *, reads: int = 1, ranks: int = 2, **job: object) -> Path:
    """A log of a job in which each rank reads `reads` times 1 MiB, a second each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [
        DxtRecord(record_id=7, rank=rank, reads=[(i * MIB, MIB, float(i), i + 1.0) for i in range(reads)])
        for rank in range(ranks)
    ]
    return write_dxt_log(path, records, names={7: b"/data/a.bin"}, job=JobSpec(nprocs=ranks, **job))  # type: ignore[arg-type]


def rows(paths: Path | Sequence[Path], **options: object) -> list[dict[str, object]]:
    return dxt_replay.summarise_each(paths, **options).as_json()["jobs"]  # type: ignore[arg-type]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two jobs of two ranks, a job of two processes without MPI, a damaged log, and a log of uname."""
    folder = tmp_path / "archive"
    a_log(folder / "2026" / "1" / "small.darshan", reads=1, jobid=1)
    a_log(folder / "2026" / "2" / "large.darshan", reads=5, jobid=2)
    for process in range(2):
        a_log(folder / "2026" / "2" / f"pair_id3-{process}.darshan", ranks=1, jobid=3)
    (folder / "2026" / "damaged.darshan").write_bytes(b"\0" * 100)
    a_log(folder / "uname_id9-9.darshan", ranks=1, jobid=9, exe=b"/usr/bin/uname -p")
    return folder


def test_a_line_for_each_job_with_what_it_moved(archive: Path) -> None:
    found = {row["name"]: row for row in rows(archive)}
    assert set(found) == {
        "2026/1/small",
        "2026/2/large",
        "2026/2/pair_id3-0",
        "2026/damaged",
    }
    large = found["2026/2/large"]
    assert (large["job_id"], large["ranks"], large["reads"], large["bytes_read"]) == (2, 2, 10, 10 * MIB)
    assert large["program"] == "train.py"
    assert large["io_s"] == pytest.approx(5.0)
    assert large["error"] is None
    assert found["2026/2/pair_id3-0"]["ranks"] == 2
    damaged = found["2026/damaged"]
    assert "damaged.darshan" in str(damaged["error"])
    assert damaged["bytes_read"] is None


def test_captures_and_logs_stand_in_one_table(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    spans = [Span("step", start_ns=i * 1000, end_ns=i * 1000 + 900, step=i) for i in range(4)]
    build_capture(tmp_path / "mixed", name="run", files=["/a"], ops=[read(0, length=10)], spans=spans)
    shutil.copy(archive / "2026" / "1" / "small.darshan", tmp_path / "mixed")
    found = {row["name"]: row for row in rows(tmp_path / "mixed")}
    assert set(found) == {"run", "small"}
    assert (found["run"]["steps"], found["run"]["bytes_read"]) == (4, 10)
    assert found["small"]["steps"] == 0


def test_bytes_that_only_counters_hold_are_counted(tmp_path: Path) -> None:
    rebuilt = write(0, length=30, start_ns=5_000, origin="reconstructed")
    build_capture(tmp_path, files=["/a"], ops=[read(0, length=10), rebuilt])
    (row,) = rows(tmp_path)
    assert (row["reads"], row["bytes_read"], row["writes"], row["bytes_written"]) == (1, 10, 1, 30)


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("name", ["1/small", "2/large", "2/pair_id3-0"]),
        ("bytes_read", ["2/large", "1/small", "2/pair_id3-0"]),
    ],
)
def test_the_order_of_the_lines(archive: Path, order: str, names: list[str]) -> None:
    (archive / "2026" / "damaged.darshan").unlink()
    assert [row["name"] for row in rows(archive / "2026", sort=order)] == names


def test_each_job_gets_a_capture_where_its_log_lies(archive: Path, tmp_path: Path) -> None:
    made = dxt_replay.merge_each(archive, tmp_path / "out")
    assert {job.name: job.status for job in made.jobs} == {
        "2026/damaged": "failed",
        "2026/1/small": "merged",
        "2026/2/large": "merged",
        "2026/2/pair_id3-0": "merged",
    }
    assert made.helpers == 1
    assert dxt_replay.open_capture(tmp_path / "out" / "2026" / "2" / "pair_id3-0.capture").ranks == (0, 1)
    assert rows(tmp_path / "out") == [row for row in rows(archive) if row["error"] is None]


def test_what_is_there_already_is_left_and_what_is_not_is_made(archive: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    dxt_replay.merge_each(archive, output)
    shutil.rmtree(output / "2026" / "2" / "large.capture")
    document = output / "2026" / "1" / "small.capture" / "capture.json"
    before = document.stat().st_mtime_ns
    again = dxt_replay.merge_each(archive, output)
    assert sorted(again.counts.items()) == [("failed", 1), ("merged", 1), ("present", 2)]
    assert document.stat().st_mtime_ns == before
    forced = dxt_replay.merge_each(archive, output, force=True)
    assert forced.counts == {"merged": 3, "failed": 1}
    assert document.stat().st_mtime_ns > before


def test_a_capture_of_another_log_is_not_replaced(archive: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    dxt_replay.merge_each(archive, output)
    a_log(archive / "2026" / "1" / "small.darshan", reads=3, jobid=1)
    again = dxt_replay.merge_each(archive, output)
    failed, _ = [job for job in again.jobs if job.status == "failed"]
    assert failed.name == "2026/1/small"
    assert "--force" in str(failed.error)


def test_copies_of_a_log_in_other_folders_are_other_jobs(tmp_path: Path) -> None:
    for copy in range(3):
        a_log(tmp_path / str(copy) / "job_id5-1.darshan", ranks=1, jobid=5)
    assert [row["ranks"] for row in rows(tmp_path)] == [1, 1, 1]


def test_the_folders_of_the_ranks_are_one_job(tmp_path: Path) -> None:
    for rank in range(2):
        a_log(tmp_path / f"rank{rank}" / f"job_id5-{rank + 1}.darshan", ranks=1, jobid=5)
    (row,) = rows(tmp_path)
    assert row["ranks"] == 2


def test_two_jobs_of_one_name_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        a_log(tmp_path / folder / "job.darshan")
    with pytest.raises(UsageError, match="give the folder above them"):
        dxt_replay.merge_each([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("make", [dxt_replay.summarise_each, lambda path: dxt_replay.merge_each(path, path / "out")])
def test_a_folder_without_any(tmp_path: Path, make: object) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(LogError, match=r"holds no .*\.darshan log"):
        make(tmp_path)  # type: ignore[operator]


def test_workers_make_the_same(archive: Path, tmp_path: Path) -> None:
    with Workers(2) as workers:
        shared = dxt_replay.summarise_each(archive, executor=workers)
        made = dxt_replay.merge_each(archive, tmp_path / "out", executor=workers)
    assert shared == dxt_replay.summarise_each(archive)
    assert made.counts == {"merged": 3, "failed": 1}


def test_a_link_below_the_output_is_not_followed(archive: Path, tmp_path: Path) -> None:
    """The output itself may be a link: it was given."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "real" / "2026").mkdir(parents=True)
    (tmp_path / "real" / "2026" / "1").symlink_to(tmp_path / "outside")
    (tmp_path / "out").symlink_to(tmp_path / "real")
    made = dxt_replay.merge_each(archive, tmp_path / "out")
    failed, _ = [job for job in made.jobs if job.status == "failed"]
    assert "is a symbolic link, which is not followed" in str(failed.error)
    assert failed.name == "2026/1/small"
    assert not list((tmp_path / "outside").iterdir())


def test_a_capture_that_another_command_made_meanwhile_is_present(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands on one archive: the slower one finds each capture in its place only when its own is whole."""
    output = tmp_path / "out"

    def slower(*given: Any) -> Any:
        monkeypatch.undo()
        place = output_module.place_directory

        def late(working: Path, path: Path, *rest: Any, **options: Any) -> None:
            monkeypatch.undo()
            jobs_module.merge(*given)
            place(working, path, *rest, **options)

        monkeypatch.setattr(writer, "place_directory", late)
        return jobs_module.merge(*given)

    monkeypatch.setattr(jobs_module, "merge", slower)
    made = dxt_replay.merge_each(archive, output)
    assert {job.status for job in made.jobs} == {"merged", "present", "failed"}
    assert len(list(output.rglob("*.capture"))) == len(made.jobs) - 1, "a second copy was left"
