"""Many jobs at once: which logs are one job, a capture of each, and a line for each."""

import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor

import pytest

import dxt_replay
from dxt_replay.replay import jobs as jobs_module
from dxt_replay.traces import output as output_module
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store import writer
from tests.capture_builder import Span, build_capture, read, write
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log

MIB = 1 << 20


def a_log(path, *, reads=1, ranks=2, **job):
    """A log of a job in which each rank reads `reads` times 1 MiB, a second each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    each = [(i * MIB, MIB, float(i), i + 1.0) for i in range(reads)]
    records = [DxtRecord(record_id=7, rank=rank, reads=each) for rank in range(ranks)]
    return write_dxt_log(path, records, names={7: b"/data/a.bin"}, job=JobSpec(nprocs=ranks, **job))


def rows(paths, **options):
    return dxt_replay.summarise_each(paths, **options).as_json()["jobs"]


@pytest.fixture
def archive(tmp_path):
    """Two jobs of two ranks, a job of two processes without MPI, a damaged log, and a log of uname."""
    folder = tmp_path / "archive"
    a_log(folder / "2026/1/small.darshan", reads=1, jobid=1)
    a_log(folder / "2026/2/large.darshan", reads=5, jobid=2)
    for process in range(2):
        a_log(folder / f"2026/2/pair_id3-{process}.darshan", ranks=1, jobid=3)
    (folder / "2026/damaged.darshan").write_bytes(b"\0" * 100)
    a_log(folder / "uname_id9-9.darshan", ranks=1, jobid=9, exe=b"/usr/bin/uname -p")
    return folder


def test_a_line_for_each_job_with_what_it_moved(archive):
    found = {row["name"]: row for row in rows(archive)}
    assert set(found) == {"2026/1/small", "2026/2/large", "2026/2/pair_id3-0", "2026/damaged"}
    expected = {"job_id": 2, "ranks": 2, "reads": 10, "bytes_read": 10 * MIB, "program": "train.py", "error": None}
    assert found["2026/2/large"].items() >= expected.items()
    assert found["2026/2/large"]["io_s"] == pytest.approx(5.0)
    assert found["2026/2/pair_id3-0"]["ranks"] == 2
    damaged = found["2026/damaged"]
    assert (damaged["bytes_read"], "damaged.darshan" in damaged["error"]) == (None, True)
    (archive / "2026/damaged.darshan").unlink()
    for order, names in (("name", "1/small 2/large 2/pair_id3-0"), ("bytes_read", "2/large 1/small 2/pair_id3-0")):
        assert " ".join(row["name"] for row in rows(archive / "2026", sort=order)) == names


def test_captures_and_logs_stand_in_one_table_with_bytes_that_only_counters_hold(archive, tmp_path):
    (tmp_path / "mixed").mkdir()
    spans = [Span("step", start_ns=i * 1000, end_ns=i * 1000 + 900, step=i) for i in range(4)]
    ops = [read(0, length=10), write(0, length=30, start_ns=5_000, origin="reconstructed")]
    build_capture(tmp_path / "mixed", name="run", files=["/a"], ops=ops, spans=spans)
    shutil.copy(archive / "2026/1/small.darshan", tmp_path / "mixed")
    run, small = rows(tmp_path / "mixed")
    assert (run["name"], small["name"], run["steps"], small["steps"]) == ("run", "small", 4, 0)
    assert (run["reads"], run["bytes_read"], run["writes"], run["bytes_written"]) == (1, 10, 1, 30)


def test_each_job_gets_a_capture_where_its_log_lies_once(archive, tmp_path):
    output = tmp_path / "out"
    made = dxt_replay.merge_each(archive, output)
    merged = dict.fromkeys(("2026/1/small", "2026/2/large", "2026/2/pair_id3-0"), "merged")
    assert {job.name: job.status for job in made.jobs} == {"2026/damaged": "failed", **merged}
    assert made.helpers == 1
    assert dxt_replay.open_capture(output / "2026/2/pair_id3-0.capture").ranks == (0, 1)
    assert rows(output) == [row for row in rows(archive) if row["error"] is None]
    shutil.rmtree(output / "2026/2/large.capture")
    document = output / "2026/1/small.capture/capture.json"
    before = document.stat().st_mtime_ns
    again = dxt_replay.merge_each(archive, output)
    assert again.counts == {"failed": 1, "merged": 1, "present": 2}
    assert document.stat().st_mtime_ns == before
    forced = dxt_replay.merge_each(archive, output, force=True)
    assert (forced.counts, document.stat().st_mtime_ns > before) == ({"merged": 3, "failed": 1}, True)
    a_log(archive / "2026/1/small.darshan", reads=3, jobid=1)  # now another log
    failed, _ = [job for job in dxt_replay.merge_each(archive, output).jobs if job.status == "failed"]
    assert (failed.name, "--force" in failed.error) == ("2026/1/small", True)


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["0/job_id5-1", "1/job_id5-1", "2/job_id5-1"], [1, 1, 1]),  # copies of a log are other jobs
        (["rank0/job_id5-1", "rank1/job_id5-2"], [2]),  # the folders of the ranks are one
    ],
)
def test_which_folders_are_a_job(tmp_path, names, ranks):
    for name in names:
        a_log(tmp_path / f"{name}.darshan", ranks=1, jobid=5)
    assert [row["ranks"] for row in rows(tmp_path)] == ranks


def test_two_jobs_of_one_name_are_refused_before_anything_is_written(tmp_path):
    for folder in ("a", "b"):
        a_log(tmp_path / folder / "job.darshan")
    with pytest.raises(UsageError, match="give the folder above them"):
        dxt_replay.merge_each([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_workers_in_another_directory_make_the_same_and_write_below_the_output(archive, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawned, initializer=os.chdir, initargs=(tmp_path.parent,)) as executor:
        made = dxt_replay.merge_each("archive", "out", executor=executor)
        told = dxt_replay.summarise_each("archive", executor=executor).as_json()
    assert made.counts == {"merged": 3, "failed": 1}
    assert len(list((tmp_path / "out").rglob("capture.json"))) == 3
    assert told == dxt_replay.summarise_each(archive).as_json()


def test_a_link_below_the_output_is_not_followed(archive, tmp_path):
    """The output itself may be a link: it was given."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "real/2026").mkdir(parents=True)
    (tmp_path / "real/2026/1").symlink_to(tmp_path / "outside")
    (tmp_path / "out").symlink_to(tmp_path / "real")
    failed, _ = [job for job in dxt_replay.merge_each(archive, tmp_path / "out").jobs if job.status == "failed"]
    assert (failed.name, "is a symbolic link, which is not followed" in failed.error) == ("2026/1/small", True)
    assert not list((tmp_path / "outside").iterdir())


def test_a_capture_that_another_command_made_meanwhile_is_present(archive, tmp_path, monkeypatch):
    """Two commands on one archive: the slower one finds each capture in its place only when its own is whole."""
    output, place, merge = tmp_path / "out", output_module.place_directory, jobs_module.merge

    def slower(*given):
        monkeypatch.setattr(jobs_module, "merge", merge)

        def late(*where, **options):
            monkeypatch.setattr(writer, "place_directory", place)
            merge(*given)
            place(*where, **options)

        monkeypatch.setattr(writer, "place_directory", late)
        return merge(*given)

    monkeypatch.setattr(jobs_module, "merge", slower)
    made = dxt_replay.merge_each(archive, output)
    assert {job.status for job in made.jobs} == {"merged", "present", "failed"}
    assert len(list(output.rglob("*.capture"))) == len(made.jobs) - 1, "a second copy was left"
