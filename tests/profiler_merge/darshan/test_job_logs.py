"""Which log is which process, on logs of the test writer and on the public ones where they are."""

import pytest

from dxt_replay.profiler_merge.darshan.jobs import find_logs, open_job
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.profiler_merge.recording import HEADER, HEADER_BYTES, MAGIC, RECORD
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, write_dxt_log, write_log
from tests.places import CAPTURES, SHARED

PUBLIC = SHARED / "darshan-logs"
WORKFLOW = sorted((PUBLIC / "nonmpi_workflow").glob("*.darshan"))
TORCH = sorted(PUBLIC.glob("snyder_python3*.darshan"))


def process_log(
    folder, pid, *, start_s=1000, run_s=60, exe=b"python train.py", parent=None, jobid=7, nprocs=1, host=b"n"
):
    """The log of one process without MPI, with one read of its own."""
    metadata = b"lib_ver=3.5.0\n" + (b"fork_parent=%d\n" % parent if parent else b"")
    job = JobSpec(nprocs=nprocs, jobid=jobid, start_s=start_s, end_s=start_s + run_s, exe=exe, metadata=metadata)
    path = folder / f"user_python_id{jobid}-{pid}_1-1-1-1_1.darshan"
    write_dxt_log(
        path,
        [DxtRecord(record_id=pid, reads=[(0, 100, 1.0, 1.5)], hostname=host)],
        names={pid: b"/data/%d" % pid},
        job=job,
    )
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


@pytest.mark.parametrize("first", [10, 4_194_302])
def test_workers_are_numbered_as_they_were_forked(tmp_path, first):
    """Darshan starts in a worker at its first operation; process ids begin anew at 300 after the largest one."""
    pids = [pid if pid < 4_194_304 else pid - 4_194_304 + 300 for pid in range(first, first + 4)]
    starts = zip(pids, (1000, 1005, 1003, 1004), (None, first, first, first), strict=True)
    job = open_job([process_log(tmp_path, pid, start_s=start, parent=parent) for pid, start, parent in starts])
    assert roles(job) == {(str(pid), 0, worker) for worker, pid in enumerate(pids)}


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
    with pytest.raises(LogError, match="of 2 jobs"):
        open_job(logs)


SPAWNED = b"python -c from multiprocessing.spawn import spawn_main; spawn_main() --multiprocessing-fork"


def test_workers_spawned_anew_each_epoch_are_of_the_process_that_ran_then(tmp_path):
    """Each has its own pid as job id, and no two epochs overlap."""
    logs = [process_log(tmp_path, 10, jobid=10, run_s=100)]
    logs += [
        process_log(tmp_path, 30 + epoch, jobid=30 + epoch, start_s=1010 + 20 * epoch, run_s=10, exe=SPAWNED)
        for epoch in range(3)
    ]
    assert roles(open_job(logs)) == {("10", 0, 0), ("30", 0, 1), ("31", 0, 2), ("32", 0, 3)}


def test_spawned_workers_find_their_rank_by_host(tmp_path):
    logs = [process_log(tmp_path, pid, host=host) for pid, host in ((10, b"node1"), (20, b"node2"))]
    logs += [
        process_log(tmp_path, pid, jobid=pid, start_s=1010, run_s=5, exe=SPAWNED, host=host)
        for pid, host in ((31, b"node2"), (32, b"node1"))
    ]
    assert roles(open_job(logs)) == {("10", 0, 0), ("20", 1, 0), ("31", 1, 1), ("32", 0, 1)}


def test_unrelated_jobs_that_overlap_are_refused_and_listed(tmp_path):
    logs = [process_log(tmp_path, 50, jobid=50), process_log(tmp_path, 60, jobid=60, start_s=1005, exe=b"./other -a b")]
    with pytest.raises(LogError, match="of 2 jobs") as caught:
        open_job(logs)
    text = str(caught.value)
    assert "python train.py" in text
    assert "./other -a b" in text
    assert f"dxt-replay merge {logs[0]} -o train-50.capture" in text
    assert f"dxt-replay merge {logs[1]} -o other-60.capture" in text


def test_jobs_of_one_program_with_other_arguments_are_refused(tmp_path):
    logs = [process_log(tmp_path, pid, jobid=pid, exe=b"./app_write " + name) for pid, name in ((5, b"A"), (6, b"B"))]
    with pytest.raises(LogError, match="of 2 jobs"):
        open_job(logs)


def test_logs_in_folders_of_ranks_are_of_these_ranks(tmp_path):
    """As `record` lays them: also in dated folders, and workers whose logs do not say who started them."""
    places = {pid: tmp_path / f"rank{rank}" for pid, rank in ((10, 2), (11, 2), (20, 0), (21, 0), (30, 1))}
    places[21] = tmp_path / "rank0" / "2026" / "1" / "31"
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    spawned = b"python -c from multiprocessing.spawn import spawn_main"
    logs = [
        process_log(places[10], 10, start_s=1000),
        process_log(places[11], 11, start_s=1001, exe=spawned),
        process_log(places[20], 20, start_s=1002),
        process_log(places[21], 21, start_s=1003, parent=20),
        process_log(places[30], 30, start_s=1004),
    ]
    job = open_job(logs)
    assert roles(job) == {("20", 0, 0), ("21", 0, 1), ("30", 1, 0), ("10", 2, 0), ("11", 2, 1)}
    assert job.warnings == ()
    without = open_job(logs[:4])
    assert roles(without) == roles(job) - {("30", 1, 0)}
    assert without.warnings == ("these ranks have no log, so their I/O is not in the capture: 1",)


def test_a_folder_with_several_ranks_is_not_a_ranks_own(tmp_path):
    """torchrun under srun: the folder is that of a node."""
    logs = []
    for node, pids in ((0, (10, 11)), (1, (20, 21))):
        place = tmp_path / f"rank{node}"
        place.mkdir()
        logs += [process_log(place, pid, start_s=1000 + pid) for pid in pids]
    assert roles(open_job(logs)) == {("10", 0, 0), ("11", 1, 0), ("20", 2, 0), ("21", 3, 0)}


def test_two_runs_under_one_job_id_are_refused(tmp_path):
    """A job script that runs the training twice: these are no two ranks."""
    with pytest.raises(LogError, match="of 2 jobs"):
        open_job([process_log(tmp_path, 10), process_log(tmp_path, 20, start_s=1100)])


def test_ranks_without_a_job_id_are_joined_by_their_command(tmp_path):
    logs = [
        process_log(tmp_path, pid, jobid=pid, start_s=1000 + rank, exe=b"python train.py --local_rank=%d" % rank)
        for rank, pid in enumerate((10, 20))
    ]
    assert roles(open_job(logs)) == {("10", 0, 0), ("20", 1, 0)}


def test_a_folder_with_an_mpi_job_among_others_lists_them_all(tmp_path):
    folder = tmp_path / "my logs"
    folder.mkdir()
    process_log(folder, 9, jobid=9, nprocs=4, exe=b"./solver")
    for pid in (10, 11, 12, 13, 14):
        process_log(folder, pid, parent=10 if pid > 10 else None)
    with pytest.raises(LogError, match="6 logs are of 2 jobs") as caught:
        open_job(find_logs(folder))
    assert "4 processes: ./solver" in str(caught.value)
    assert f"dxt-replay merge '{folder}'/*_id7-*.darshan -o train-7.capture" in str(caught.value)


def test_the_launcher_of_the_ranks_is_not_a_rank(tmp_path):
    """torchrun starts first and ends last; its command line names the program of the ranks."""
    torchrun = b"python -m torch.distributed.run --nproc-per-node 2 train.py --epochs 3"
    logs = [process_log(tmp_path, 5, start_s=990, run_s=100, exe=torchrun)]
    logs += [process_log(tmp_path, pid, exe=b"python -u train.py --epochs 3") for pid in (10, 20)]
    logs.append(process_log(tmp_path, 21, start_s=1005, run_s=9, parent=20))
    job = open_job(logs)
    assert roles(job) == {("10", 0, 0), ("20", 1, 0), ("21", 1, 1)}
    assert any("launcher" in warning and "-5_" in warning for warning in job.warnings)


def test_a_child_of_a_worker_is_under_the_rank_of_the_worker(tmp_path):
    logs = [process_log(tmp_path, 10), process_log(tmp_path, 20)]
    logs += [process_log(tmp_path, 21, start_s=1001, parent=20), process_log(tmp_path, 22, start_s=1002, parent=21)]
    assert roles(open_job(logs)) == {("10", 0, 0), ("20", 1, 0), ("21", 1, 1), ("22", 1, 2)}


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
    with pytest.raises(LogError, match="give the log of the process that forked them"):
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
    assert job.nprocs == 3
    assert any("which rank started which of 13 worker processes is not known" in warning for warning in job.warnings)


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not beside the checkout")
def test_the_real_torchrun_job_has_two_ranks_with_two_workers_each():
    job = open_job(find_logs(CAPTURES / "torch_shards" / "logs"))
    assert [(process.rank, process.worker) for process in job.processes] == [
        (0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (1, 2),
    ]  # fmt: skip


@pytest.mark.skipif(not TORCH, reason="the public logs are not beside the checkout")
def test_the_public_logs_together_are_listed_job_by_job():
    logs = sorted(PUBLIC.glob("pq_app*.darshan")) + TORCH
    with pytest.raises(LogError, match="21 logs are of 6 jobs") as caught:
        open_job(logs)
    assert f"dxt-replay merge {PUBLIC}/*_id3116902-*.darshan" in str(caught.value)


def stream_log(folder, pid, *, exe, start_s=1000, jobid=7, moved=0):
    """The log of a program that wrote its standard output, and `moved` bytes of a file through a C stream."""
    rows = [{"record_id": 1, "STDIO_WRITES": 3, "STDIO_BYTES_WRITTEN": 30}, {"record_id": 2, "STDIO_OPENS": 1}]
    rows[1] |= {"STDIO_READS": 1, "STDIO_BYTES_READ": moved} if moved else {}
    path = folder / f"user_{pid}_id{jobid}-{pid}_1-1-1-1_1.darshan"
    return write_log(
        path,
        job=JobSpec(nprocs=1, jobid=jobid, start_s=start_s, end_s=start_s + 1, exe=exe),
        names={1: b"<STDOUT>", 2: b"/data/list"},
        modules={"STDIO": ModuleSpec(version=2, streams=[encode_counters("STDIO", rows, 2)])},
    )


def recording(tmp_path):
    """The folder for logs of a recording."""
    folder = tmp_path / "run.recording" / "logs"
    folder.mkdir(parents=True)
    (folder.parent / "recording.txt").write_text("bash\nrun.sh\n", encoding="utf-8")
    return folder


def test_programs_that_touch_no_file_are_no_ranks(tmp_path):
    helpers = [b"readlink -f run.sh", b"dirname /a/run.sh", b"sleep 1"]
    logs = [stream_log(tmp_path, 2 + place, exe=exe) for place, exe in enumerate(helpers)]
    job = open_job([*logs, process_log(tmp_path, 20)])
    assert roles(job) == {("20", 0, 0)}
    assert "logs of 3 processes without I/O" in job.warnings[0]
    assert "readlink, dirname, sleep" in job.warnings[0]


def test_a_program_that_only_opens_files_is_part_of_a_recording(tmp_path):
    """It may have read them by io_uring."""
    folder = recording(tmp_path)
    opens = [{"record_id": 2, "POSIX_OPENS": 1}]
    write_log(
        folder / "user_uring_id7-20_1-1-1-1_1.darshan",
        job=JobSpec(nprocs=1, jobid=7, start_s=1000, end_s=1001, exe=b"uring"),
        names={2: b"/data/list"},
        modules={"POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", opens, 4)])},
    )
    for pid, moved in ((30, 0), (40, 500)):
        stream_log(folder, pid, exe=b"dd", moved=moved)
    found = open_job(find_logs(folder))
    assert any(each.log.job.exe.startswith("uring") for each in found.processes)


def test_a_rank_without_data_beside_others_is_a_rank(tmp_path):
    logs = [process_log(tmp_path, 10), stream_log(tmp_path, 20, exe=b"python train.py", start_s=1001)]
    assert roles(open_job(logs)) == {("10", 0, 0), ("20", 1, 0)}


def test_the_logs_of_one_recording_are_one_job_of_one_rank(tmp_path):
    """A script that copies the data, prepares them for a minute, waits, and trains."""
    folder = recording(tmp_path)
    logs = [
        stream_log(folder, 2, exe=b"rsync -a /far/data /data", start_s=900, moved=1 << 20),
        process_log(folder, 10, exe=b"python prepare.py", start_s=910, run_s=60),
        stream_log(folder, 3, exe=b"sleep 30", start_s=970),
        process_log(folder, 20, start_s=1000),
        process_log(folder, 21, start_s=1003, parent=20),
    ]
    job = open_job(logs)
    found = {(process.log.path.name.split("-")[1].split("_")[0], process.rank) for process in job.processes}
    assert found == {("2", 0), ("10", 0), ("20", 0), ("21", 0)}
    assert job.nprocs == 1
    (folder.parent / "recording.txt").unlink()
    with pytest.raises(LogError, match="of 3 jobs"):
        open_job(logs)


def test_ranks_of_one_recording_that_run_beside_each_other_stay_ranks(tmp_path):
    folder = recording(tmp_path)
    logs = [process_log(folder, pid, start_s=1000 + pid % 2) for pid in (10, 11)]
    assert roles(open_job(logs)) == {("10", 0, 0), ("11", 1, 0)}


def test_a_helper_of_a_recording_with_data_is_kept(tmp_path):
    (tmp_path / "recording.txt").touch()
    job = open_job([process_log(tmp_path, 10), process_log(tmp_path, 99, exe=b"uname -p", start_s=1001)])
    assert len(job.processes) == 2


def marks(recording, pid, parent):
    """A file of marks without a record."""
    folder = recording / "profile"
    folder.mkdir(exist_ok=True)
    head = HEADER.pack(MAGIC, pid, parent, -1, RECORD.size, 0, 0, 0)
    path = folder / f"host.{pid}.1.marks"
    path.write_bytes(head.ljust(HEADER_BYTES, b"\0"))
    return path


def killed(recording, number, *, marks_of=None):
    """What Darshan leaves of a killed process: no end, no parent, and no process id in the name."""
    path = recording / "logs" / f"user_python_id7_mmap-log-{number}-0.darshan"
    job = JobSpec(
        nprocs=1, jobid=7, start_s=1000 + number, end_s=0, exe=b"python train.py", metadata=b"lib_ver=3.5.0\n"
    )
    names = {number: b"/data/%d" % number, 99: str(marks_of).encode() if marks_of else b"/data/x"}
    write_dxt_log(path, [DxtRecord(record_id=number, reads=[(0, 100, 1.0, 1.5)])], names=names, job=job)
    return path


def test_the_killed_processes_of_a_recording_are_placed_by_their_marks(tmp_path):
    """The first of them ran the loop and forked the second; nothing is known of the third."""
    (tmp_path / "recording.txt").touch()
    (tmp_path / "logs").mkdir()
    loop, worker = marks(tmp_path, 10, parent=1), marks(tmp_path, 11, parent=10)
    logs = [killed(tmp_path, 1, marks_of=loop), killed(tmp_path, 2, marks_of=worker), killed(tmp_path, 3)]
    job = open_job([*logs, process_log(tmp_path / "logs", 12, parent=10, start_s=1002)])
    assert job.nprocs == 1
    assert job.processes[0].log.path == logs[0]
    assert sorted(process.worker for process in job.processes) == [0, 1, 2, 3]
