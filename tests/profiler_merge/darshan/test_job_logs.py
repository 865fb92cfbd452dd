"""Which log is which process, on logs of the test writer and on the public ones where they are."""

import pytest

from profiler_merge.darshan.job_logs import find_logs, open_job
from profiler_merge.merge import merge
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log
from tests.places import SHARED
from traces.errors import LogError
from traces.store.reader import open_capture

PUBLIC = SHARED / "darshan-logs"
WORKFLOW = sorted((PUBLIC / "nonmpi_workflow").glob("*.darshan"))
TORCH = sorted(PUBLIC.glob("snyder_python3*.darshan"))


def process_log(folder, pid, *, start_s=1000, exe=b"python train.py", parent=None, jobid=7, nprocs=1):
    """The log of one process without MPI, with one read of its own."""
    metadata = b"lib_ver=3.5.0\n" + (b"fork_parent=%d\n" % parent if parent else b"")
    job = JobSpec(nprocs=nprocs, jobid=jobid, start_s=start_s, end_s=start_s + 60, exe=exe, metadata=metadata)
    path = folder / f"user_python_id{jobid}-{pid}_1-1-1-1_1.darshan"
    write_dxt_log(path, [DxtRecord(record_id=pid, reads=[(0, 100, 1.0, 1.5)])], names={pid: b"/data/%d" % pid}, job=job)
    return path


def roles(job):
    return {
        (process.log.path.name.split("-")[1].split("_")[0], process.rank, process.worker) for process in job.processes
    }


def test_workers_belong_to_the_rank_that_forked_them_and_junk_is_left_out(tmp_path):
    logs = [
        process_log(tmp_path, 20, start_s=1001),
        process_log(tmp_path, 10, start_s=1000),
        process_log(tmp_path, 12, start_s=1005, parent=10),
        process_log(tmp_path, 21, start_s=1006, parent=20),
        process_log(tmp_path, 11, start_s=1004, parent=10),
        process_log(tmp_path, 99, exe=b"/usr/bin/uname -p"),
        process_log(tmp_path, 98, exe=b"python -c from multiprocessing.resource_tracker import main;main(3)"),
    ]
    job = open_job(logs)
    assert roles(job) == {("10", 0, 0), ("20", 1, 0), ("11", 0, 1), ("12", 0, 2), ("21", 1, 1)}
    assert job.nprocs == 2
    assert "-99_" in job.warnings[0]
    assert "-98_" in job.warnings[0]


def test_workers_have_lanes_of_their_own_on_the_clock_of_the_job(tmp_path):
    logs = [process_log(tmp_path, 10), process_log(tmp_path, 11, start_s=1003, parent=10)]
    merge(logs, [], tmp_path / "c.capture")
    capture = open_capture(tmp_path / "c.capture")
    rows = [row for batch in capture.operations() for row in batch.to_pylist()]
    reads = [row for row in rows if row["origin"] == "traced"]
    assert [(row["rank"], row["lane"], row["start_ns"]) for row in reads] == [(0, 0, 10**9), (0, 1, 4 * 10**9)]
    assert [capture.paths()[row["file_id"]] for row in reads] == ["/data/10", "/data/11"]
    # The opens and closes around them, on the lane of their process.
    assert [(row["lane"], row["op"]) for row in rows] == [(i, op) for i in (0, 1) for op in ("open", "read", "close")]


def test_a_spawned_worker_of_one_rank_is_its_own(tmp_path):
    spawned = b"python -c from multiprocessing.spawn import spawn_main; spawn_main() --multiprocessing-fork"
    job = open_job([process_log(tmp_path, 10), process_log(tmp_path, 31, start_s=1009, exe=spawned, jobid=31)])
    assert roles(job) == {("10", 0, 0), ("31", 0, 1)}


def test_logs_of_jobs_that_followed_each_other_are_refused(tmp_path):
    logs = [process_log(tmp_path, 10, jobid=1), process_log(tmp_path, 20, jobid=2, start_s=5000)]
    with pytest.raises(LogError, match="different jobs"):
        open_job(logs)


def test_a_log_given_twice_is_refused(tmp_path):
    log = process_log(tmp_path, 10)
    with pytest.raises(LogError, match="twice"):
        open_job([log, tmp_path / "." / log.name])


def test_junk_alone_is_refused(tmp_path):
    with pytest.raises(LogError, match="helper processes"):
        open_job([process_log(tmp_path, pid, exe=b"uname -p") for pid in (1, 2)])


def test_the_log_of_a_helper_alone_is_said_to_be_one(tmp_path):
    (text,) = open_job([process_log(tmp_path, 1, exe=b"uname -p ")]).warnings
    assert "(uname -p)" in text
    assert "DARSHAN_LOGFILE" in text
    assert open_job([process_log(tmp_path, 2)]).warnings == ()


def test_a_folder_stands_for_the_logs_below_it(tmp_path):
    day = tmp_path / "2026" / "11" / "21"
    day.mkdir(parents=True)
    logs = [process_log(day, 12), process_log(day, 10), process_log(tmp_path, 11)]
    (tmp_path / "notes.txt").touch()
    assert find_logs(tmp_path) == sorted(logs)
    assert find_logs(logs[0]) == [logs[0]]
    assert find_logs(tmp_path / "missing.darshan") == [tmp_path / "missing.darshan"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogError, match="holds no"):
        find_logs(tmp_path / "empty")


def test_a_worker_without_its_parent_is_told(tmp_path):
    with pytest.raises(LogError, match="missing"):
        open_job([process_log(tmp_path, pid, parent=5) for pid in (6, 7)])


@pytest.mark.skipif(not WORKFLOW, reason="the public logs are not beside the checkout")
def test_a_real_workflow_of_forked_workers(tmp_path):
    merged = merge(WORKFLOW, [], tmp_path / "c.capture")
    capture = open_capture(tmp_path / "c.capture")
    assert capture.ranks == (0,)
    assert capture.operation_count() == merged.operations + merged.reconstructed
    assert merged.operations > 100_000
    assert sum("incomplete" in warning for warning in capture.info.warnings) == 3
    assert capture.info.coverage.operations < 1
    assert any("partial" in warning for warning in capture.info.warnings)


@pytest.mark.skipif(not TORCH, reason="the public logs are not beside the checkout")
def test_a_real_torch_job_with_spawned_workers():
    job = open_job(TORCH)
    assert [(process.rank, process.worker) for process in job.processes[:3]] == [(0, 0), (1, 0), (2, 0)]
    assert any("13 worker processes became ranks 3 to 15" in warning for warning in job.warnings)
