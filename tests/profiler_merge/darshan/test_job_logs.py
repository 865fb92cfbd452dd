"""Which log is which process, on logs of the test writer and on the public ones where they are."""

from contextlib import nullcontext

import pytest

from dxt_replay.profiler_merge.darshan.jobs import find_logs, open_job
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.profiler_merge.recording import HEADER, HEADER_BYTES, MAGIC, OPTIMIZER, RECORD
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, write_dxt_log, write_log

SPAWNED = b"python -c from multiprocessing.spawn import spawn_main; spawn_main() --multiprocessing-fork"
TORCHRUN = b"python -m torch.distributed.run --nproc-per-node 2 train.py --epochs 3"


@pytest.mark.parametrize(
    ("nprocs", "refused"),
    [
        (4, None),
        (4 | 1 << 19, "says 524292 processes, but POSIX counts 44 operations on /a, which all of them used"),
        (2, "says 2 processes, but POSIX has a record of rank 2"),
    ],
)
def test_a_number_of_processes_that_the_counters_contradict_is_refused(tmp_path, nprocs, refused):
    together = {"record_id": 1, "rank": -1, "POSIX_OPENS": 4, "POSIX_READS": 40, "POSIX_SLOWEST_RANK": 3}
    rows = encode_counters("POSIX", [together, {"record_id": 2, "rank": 2, "POSIX_OPENS": 1}], 4)
    posix = ModuleSpec(version=4, streams=[rows])
    log = {"names": {1: b"/a", 2: b"/b"}, "modules": {"POSIX": posix}, "job": JobSpec(nprocs=nprocs)}
    with pytest.raises(LogError, match=refused) if refused else nullcontext():
        assert open_job([write_log(tmp_path / "a.darshan", **log)]).nprocs == nprocs


def process_log(folder, pid, *, at=1000, run_s=60, exe=b"python train.py", parent=None, jobid=7, nprocs=1, host=b"n",
                reads=True, posix=(), stdio=()):  # fmt: skip
    """The log of one process without MPI, with one read of its own, or these counters."""
    metadata = b"lib_ver=3.5.0\n" + (b"fork_parent=%d\n" % parent if parent else b"")
    job = JobSpec(nprocs=nprocs, jobid=jobid, start_s=at, end_s=at + run_s, exe=exe, metadata=metadata)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"user_python_id{jobid}-{pid}_1-1-1-1_1.darshan"
    modules = {
        module: ModuleSpec(version=version, streams=[encode_counters(module, rows, version)])
        for module, version, rows in (("POSIX", 4, posix), ("STDIO", 2, stdio))
        if rows
    }
    names = {1: b"<STDOUT>", 2: b"/data/list", pid: b"/data/%d" % pid}
    if not reads:
        return write_log(path, job=job, names=names, modules=modules)
    record = DxtRecord(record_id=pid, reads=[(0, 100, 1.0, 1.5)], hostname=host)
    return write_dxt_log(path, [record], names=names, job=job, extra_modules=modules)


def program(pid, exe, *, at=1000, moved=0):
    """A program that wrote its standard output, and read `moved` bytes of a file through a C stream."""
    rows = [{"record_id": 1, "STDIO_WRITES": 3, "STDIO_BYTES_WRITTEN": 30}, {"record_id": 2, "STDIO_OPENS": 1}]
    rows[1] |= {"STDIO_READS": 1, "STDIO_BYTES_READ": moved} if moved else {}
    return {"pid": pid, "exe": exe, "at": at, "run_s": 1, "reads": False, "stdio": rows}


def roles(job):
    return {(int(each.log.path.name.split("-")[1].split("_")[0]), each.rank, each.worker) for each in job.processes}


JOBS = {
    "workers belong to the rank that forked them, and junk is left out": (
        [
            {"pid": 20, "at": 1001}, {"pid": 10}, {"pid": 12, "at": 1005, "parent": 10},
            {"pid": 21, "at": 1006, "parent": 20}, {"pid": 11, "at": 1004, "parent": 10},
            {"pid": 99, "exe": b"/usr/bin/uname -p"},
            {"pid": 98, "exe": b"python -c from multiprocessing.resource_tracker import main;main(3)"},
        ],
        {(10, 0, 0), (20, 1, 0), (11, 0, 1), (12, 0, 2), (21, 1, 1)}, ["-99_", "-98_"],
    ),
    # Darshan starts in a worker at its first operation.
    "workers are numbered as they were forked": (
        [{"pid": 10}, *({"pid": 10 + n, "at": at, "parent": 10} for n, at in ((1, 1005), (2, 1003), (3, 1004)))],
        {(10, 0, 0), (11, 0, 1), (12, 0, 2), (13, 0, 3)}, [],
    ),
    # Process ids begin anew at 300 after the largest one.
    "also where process ids begin anew": (
        [{"pid": 4_194_303}, *({"pid": 300 + n, "at": 1005 - n, "parent": 4_194_303} for n in range(3))],
        {(4_194_303, 0, 0), (300, 0, 1), (301, 0, 2), (302, 0, 3)}, [],
    ),
    "a worker may have forked itself": (
        [{"pid": 10}, {"pid": 20}, {"pid": 21, "at": 1001, "parent": 20}, {"pid": 22, "at": 1002, "parent": 21}],
        {(10, 0, 0), (20, 1, 0), (21, 1, 1), (22, 1, 2)}, [],
    ),
    # Each has its own pid as job id, and no two epochs overlap.
    "workers spawned anew each epoch are of the process that ran then": (
        [
            {"pid": 10, "jobid": 10, "run_s": 100},
            *({"pid": 30 + n, "jobid": 30 + n, "at": 1010 + 20 * n, "run_s": 10, "exe": SPAWNED} for n in range(3)),
        ],
        {(10, 0, 0), (30, 0, 1), (31, 0, 2), (32, 0, 3)}, [],
    ),
    "spawned workers find their rank by host": (
        [
            *({"pid": pid, "host": host} for pid, host in ((10, b"node1"), (20, b"node2"))),
            *(
                {"pid": pid, "jobid": pid, "at": 1010, "run_s": 5, "exe": SPAWNED, "host": host}
                for pid, host in ((31, b"node2"), (32, b"node1"))
            ),
        ],
        {(10, 0, 0), (20, 1, 0), (31, 1, 1), (32, 0, 1)}, [],
    ),
    "ranks without a job id are joined by their command": (
        [{"pid": pid, "jobid": pid, "at": 990 + pid, "exe": b"python t.py --local_rank=%d" % pid} for pid in (10, 20)],
        {(10, 0, 0), (20, 1, 0)}, [],
    ),
    # torchrun starts first and ends last; its command line names the program of the ranks.
    "the launcher of the ranks is not a rank": (
        [
            {"pid": 5, "at": 990, "run_s": 100, "exe": TORCHRUN},
            *({"pid": pid, "exe": b"python -u train.py --epochs 3"} for pid in (10, 20)),
            {"pid": 21, "at": 1005, "run_s": 9, "parent": 20},
        ],
        {(10, 0, 0), (20, 1, 0), (21, 1, 1)}, ["launcher of the ranks are left out: user_python_id7-5_"],
    ),
    "programs that touch no file are no ranks": (
        [program(2, b"readlink -f run.sh"), program(3, b"dirname /a"), program(4, b"sleep 1"), {"pid": 20}],
        {(20, 0, 0)}, ["logs of 3 processes without I/O", "readlink, dirname, sleep"],
    ),
    "a rank without data beside others is a rank": (
        [{"pid": 10}, program(20, b"python train.py", at=1001)], {(10, 0, 0), (20, 1, 0)}, [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_processes_have_their_ranks(tmp_path, name):
    logs, expected, said = JOBS[name]
    job = open_job([process_log(tmp_path, **each) for each in logs])
    assert roles(job) == expected
    assert job.nprocs == 1 + max(rank for _, rank, _ in expected)
    assert all(any(text in warning for warning in job.warnings) for text in said)


REFUSED = {
    "of 2 jobs": [{"pid": 10, "jobid": 1}, {"pid": 20, "jobid": 2, "at": 5000}],
    "of 2 jobs: merge one at a time": [{"pid": n, "jobid": n, "exe": b"./app_write %d" % n} for n in (5, 6)],
    # A job script that runs the training twice: these are no two ranks.
    "the 2 logs are of 2 jobs": [{"pid": 10}, {"pid": 20, "at": 1100}],
    "helper processes": [{"pid": 1, "exe": b"uname -p"}, {"pid": 2, "exe": b"uname -p"}],
    "give the log of the process that forked them": [{"pid": 6, "parent": 5}, {"pid": 7, "parent": 5}],
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_not_one_job_is_refused(tmp_path, said):
    with pytest.raises(LogError, match=said):
        open_job([process_log(tmp_path, **each) for each in REFUSED[said]])


def test_the_jobs_of_a_folder_are_listed_with_their_commands(tmp_path):
    folder = tmp_path / "my logs"
    process_log(folder, 9, jobid=9, nprocs=4, exe=b"./solver")
    process_log(folder, 60, jobid=60, at=1005, exe=b"./other -a b")
    for pid in (10, 11, 12, 13, 14):
        process_log(folder, pid, parent=10 if pid > 10 else None)
    with pytest.raises(LogError, match="7 logs are of 3 jobs") as caught:
        open_job(find_logs(folder))
    text = str(caught.value)
    assert "4 processes: ./solver" in text
    assert f"dxt-replay merge '{folder}'/*_id7-*.darshan -o train-7.capture" in text
    assert f"dxt-replay merge '{folder}/user_python_id60-60_1-1-1-1_1.darshan' -o other-60.capture" in text


def test_workers_have_lanes_of_their_own_on_the_clock_of_the_job(tmp_path):
    merge([process_log(tmp_path, 10), process_log(tmp_path, 11, at=1003, parent=10)], [], tmp_path / "c.capture")
    capture = open_capture(tmp_path / "c.capture")
    rows = [row for batch in capture.operations() for row in batch.to_pylist()]
    reads = [row for row in rows if row["origin"] == "traced"]
    assert [(row["rank"], row["lane"], row["start_ns"]) for row in reads] == [(0, 0, 10**9), (0, 1, 4 * 10**9)]
    assert [capture.paths()[row["file_id"]] for row in reads] == ["/data/10", "/data/11"]
    # The opens and closes around them, on the lane of their process.
    assert [(row["lane"], row["op"]) for row in rows] == [(i, op) for i in (0, 1) for op in ("open", "read", "close")]


def test_logs_in_folders_of_ranks_are_of_these_ranks(tmp_path):
    """As `record` lays them: also in dated folders, and workers whose logs do not say who started them."""
    places = {10: "rank2", 11: "rank2", 20: "rank0", 21: "rank0/2026/1/31", 30: "rank1"}
    more = {11: {"exe": SPAWNED}, 21: {"parent": 20}}
    logs = [
        process_log(tmp_path / place, pid, at=1000 + n, **more.get(pid, {}))
        for n, (pid, place) in enumerate(places.items())
    ]
    job = open_job(logs)
    assert roles(job) == {(20, 0, 0), (21, 0, 1), (30, 1, 0), (10, 2, 0), (11, 2, 1)}
    assert job.warnings == ()
    without = open_job(logs[:4])
    assert roles(without) == roles(job) - {(30, 1, 0)}
    assert without.warnings == ("these ranks have no log, so their I/O is not in the capture: 1",)
    # torchrun under srun: the folder is that of a node.
    nodes = [process_log(tmp_path / f"node/rank{pid // 20}", pid, at=1000 + pid) for pid in (10, 11, 20, 21)]
    assert roles(open_job(nodes)) == {(10, 0, 0), (11, 1, 0), (20, 2, 0), (21, 3, 0)}


def test_a_folder_stands_for_the_logs_below_it_and_a_log_counts_once(tmp_path):
    day = tmp_path / "2026" / "11" / "21"
    logs = [process_log(day, 12), process_log(day, 10), process_log(tmp_path, 11)]
    (tmp_path / "notes.txt").touch()
    assert find_logs(tmp_path) == sorted(logs)
    assert find_logs(logs[0]) == [logs[0]]
    assert find_logs(tmp_path / "missing.darshan") == [tmp_path / "missing.darshan"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogError, match="holds no"):
        find_logs(tmp_path / "empty")
    with pytest.raises(LogError, match="twice"):
        open_job([logs[0], day / "." / logs[0].name])
    (text,) = open_job([process_log(tmp_path, 1, exe=b"uname -p ")]).warnings
    assert "(uname -p)" in text
    assert "DARSHAN_LOGFILE" in text


@pytest.fixture
def recording(tmp_path):
    """The folder for logs of a recording."""
    (tmp_path / "run.recording" / "logs").mkdir(parents=True)
    (tmp_path / "run.recording" / "recording.txt").write_text("bash\nrun.sh\n", encoding="utf-8")
    return tmp_path / "run.recording" / "logs"


def test_the_logs_of_one_recording_are_one_job_of_one_rank(recording):
    """A script that copies the data, prepares them for a minute, waits, and trains."""
    logs = [
        program(2, b"rsync -a /far/data /data", at=900, moved=1 << 20),
        {"pid": 10, "exe": b"python prepare.py", "at": 910},
        program(3, b"sleep 30", at=970),
        {"pid": 20, "at": 1000},
        {"pid": 21, "at": 1003, "parent": 20},
        {"pid": 99, "exe": b"uname -p", "at": 1001},  # a helper with data
    ]
    paths = [process_log(recording, **each) for each in logs]
    assert {(pid, rank) for pid, rank, _ in roles(open_job(paths))} == {(pid, 0) for pid in (2, 10, 20, 21, 99)}
    (recording.parent / "recording.txt").unlink()
    with pytest.raises(LogError, match="of 3 jobs"):
        open_job(paths)


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ([{"pid": 10, "at": 1000}, {"pid": 11, "at": 1001}], {10: 0, 11: 1}),
        # A program that only opened a file may have read it by io_uring.
        (
            [
                {"pid": 20, "exe": b"uring", "reads": False, "posix": [{"record_id": 2, "POSIX_OPENS": 1}], "run_s": 1},
                program(30, b"dd"),
                program(40, b"dd", moved=500),
            ],
            {20: 0, 30: 0, 40: 1},
        ),
    ],
)
def test_programs_of_a_recording_side_by_side(recording, logs, expected):
    found = {pid: rank for pid, rank, _ in roles(open_job([process_log(recording, **each) for each in logs]))}
    assert found == expected


def killed(logs, number, marks_of=None):
    """What Darshan leaves of a killed process: no end, no parent, and no process id in the name."""
    job = JobSpec(
        nprocs=1, jobid=7, start_s=1000 + number, end_s=0, exe=b"python train.py", metadata=b"lib_ver=3.5.0\n"
    )
    names = {number: b"/data/%d" % number, 99: str(marks_of).encode() if marks_of else b"/data/x"}
    record = DxtRecord(record_id=number, reads=[(0, 100, 1.0, 1.5)])
    return write_dxt_log(logs / f"user_python_id7_mmap-log-{number}-0.darshan", [record], names=names, job=job)


def marks_of(recording, pid, parent, rank=-1, steps=0):
    path = recording.parent / "profile" / f"host.{pid}.1.marks"
    path.parent.mkdir(exist_ok=True)
    head = HEADER.pack(MAGIC, pid, parent, rank, RECORD.size, 0, 0, 0).ljust(HEADER_BYTES, b"\0")
    path.write_bytes(head + b"".join(RECORD.pack(step + 1, 0, step, pid, 0, OPTIMIZER) for step in range(steps)))
    return path


@pytest.mark.parametrize(
    ("exe", "who"),
    [(SPAWNED, "the program that started the ranks"), (b"python -u rank.py", "1 process that ran another program")],
)
def test_ranks_that_a_program_starts_are_those_of_their_marks_and_their_workers_are_theirs(recording, exe, who):
    logs = [process_log(recording, 9)]
    for pid, parent, rank, steps in ((10, 9, 1, 3), (11, 9, 0, 3), (12, 10, -1, 0), (13, 11, -1, 0)):
        marks_of(recording, pid, parent, rank, steps)
        logs.append(process_log(recording, pid, exe=exe if steps else SPAWNED, at=990 + pid, run_s=5))
    job = open_job(logs)
    assert (job.nprocs, job.first.job.exe) == (2, "python train.py" if exe == SPAWNED else "python -u rank.py")
    found = {pid: (rank, worker > 0) for pid, rank, worker in roles(job)}
    assert found == {9: (0, True), 10: (1, False), 11: (0, False), 12: (1, True), 13: (0, True)}
    assert job.warnings == (f"the I/O of {who} (train.py) is counted with rank 0",)


def test_many_programs_that_a_job_started_were_traced_too(recording):
    logs = [process_log(recording, 9), *(process_log(recording, 100 + n, exe=b"cat /data/x") for n in range(20))]
    (said,) = open_job(logs).warnings
    assert said.endswith("(cat) is counted with rank 0, and so is what tracing each of them took")


def test_the_killed_processes_of_a_recording_are_placed_by_their_marks(recording):
    """The first of them ran the loop and forked the second; nothing is known of the third."""
    marks = {pid: marks_of(recording, pid, parent) for pid, parent in ((10, 1), (11, 10))}
    logs = [killed(recording, 1, marks[10]), killed(recording, 2, marks[11]), killed(recording, 3)]
    job = open_job([*logs, process_log(recording, 12, parent=10, at=1002)])
    assert job.nprocs == 1
    assert job.processes[0].log.path == logs[0]
    assert sorted(process.worker for process in job.processes) == [0, 1, 2, 3]
