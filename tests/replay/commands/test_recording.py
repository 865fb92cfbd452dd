"""`dxt-replay record`: under a stand-in of Darshan's library, under real strace, and under the real Darshan if there.

Two jobs say what they did: one reads and writes known bytes in each way that there is, so that its capture can be held
against them; the other reads in one way at a time, in each kind of child process.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from socket import create_server

import pytest

from dxt_replay.profiler_merge.recorder.darshan import find_library
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.samples import sample
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.unseen import why_not_judged
from tests import fake_darshan
from tests.places import ROOT
from tests.schemas import check

PYTHON = sys.executable
WITHOUT_COMPUTE = "no loop was seen, so the capture has neither steps nor compute"
DARSHAN = os.environ.get("DXT_TEST_DARSHAN") or (found.path if (found := find_library(os.environ)) else None)
needs_darshan = pytest.mark.skipif(DARSHAN is None, reason="needs Darshan's runtime library, or DXT_TEST_DARSHAN")
TRACES = shutil.which("strace") is not None and not subprocess.run(["strace", "-o", os.devnull, "true"]).returncode
needs_strace = pytest.mark.skipif(not TRACES, reason="strace is not installed, or may not trace here")


@pytest.fixture
def library(tmp_path, monkeypatch):
    """The stand-in, beside the work directory; every Python process of the job leaves a log."""
    (tmp_path / "darshan").mkdir()
    monkeypatch.setenv("FAKE_DARSHAN_LOG", str(fake_darshan.prepared_log(tmp_path / "darshan" / "prepared")))
    return fake_darshan.build(tmp_path / "darshan")


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """An empty directory in which the command runs; this process is nobody's rank."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "work"


@pytest.fixture
def record(library, capfd):
    """Records a Python program, or the words of a command, with the stand-in: what stdout and stderr say, in one line
    each."""

    def recorded(job, *options, status=0, library=library):
        words = ["--", PYTHON, "-c", job] if isinstance(job, str) else ["--", *map(str, job)]
        capfd.readouterr()
        ended = main(["record", *(["--library", str(library)] if library else []), *map(str, options), *words])
        out, err = capfd.readouterr()
        assert ended == status, err
        return out, " ".join(err.split())

    return recorded


def rows_of(capture="run.capture"):
    """The operations of a capture, with the path of each."""
    opened = open_capture(Path(capture))
    paths = opened.paths()
    rows = [row for batch in opened.operations() for row in batch.to_pylist()]
    return [{**row, "path": paths[row["file_id"]]} for row in rows]


def traced_reads(capture="run.capture"):
    return sum(row["origin"] == "traced" and row["op"] == "read" for row in rows_of(capture))


# ------------------------------------------------------------------------------------------------------- the stand-in
SAID = {
    "a job that works": ({}, "print('trained')", 0, f"{WITHOUT_COMPUTE}: `record`", True),
    "a job that fails is merged": ({}, "raise SystemExit(7)", 7, "exit status of the job 7", True),
    "a job that fails has what it has": ({}, "raise SystemExit(3)", 3, f"{WITHOUT_COMPUTE}: the job ended with", True),
    "ended by a signal": ({}, "import os; os.kill(os.getpid(), 15)", 143, "ended by signal 15 and left no log", True),
    "half a trace": ({"FAKE_DARSHAN_LOG": "half"}, "1", 0, "only 25.0% of the job's I/O is in the trace: record", True),
    "inside the ranks": ({"PMI_SIZE": "8", "PMI_RANK": "3"}, "1", 2, "`dxt-replay record -- mpiexec -n 8", False),
    "a variable for more than logs": ({"SITE_SCRATCH": "/"}, "1", 2, "the folder of SITE_SCRATCH (/)", False),
    "a folder for logs of the site": ({"SITE_LOGDIR": "site"}, "1", 0, "trace coverage 100 %", True),
    "a library without DXT": ({"FAKE_DARSHAN_LOG": "plain"}, "1", 2, "was built without DXT", False),
    "a sitecustomize of the environment": ({"PYTHONPATH": "site"}, "1", 0, "mine still runs", True),
}
"""Environment, program of the job, status, a sentence on stderr, and whether the job ran."""


@pytest.mark.parametrize("case", SAID)
def test_a_job_and_what_is_said_of_it(record, work, tmp_path, monkeypatch, case):
    environment, program, status, sentence, ran = SAID[case]
    (work / "site").mkdir()
    (work / "site" / "sitecustomize.py").write_text("import sys\nprint('mine still runs', file=sys.stderr)\n")
    logs = {
        "half": lambda: fake_darshan.prepared_log(tmp_path / "half", counted=8),
        "plain": lambda: fake_darshan.log_without_dxt(tmp_path / "plain"),
        "site": lambda: work / "site",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, str(logs[value]()) if value in logs else value)
    out, err = record(f"open('ran', 'w'); {program}", status=status)
    assert sentence in err
    assert out == "trained\n" * ("trained" in program), "the report is on stderr: standard output is the job's"
    assert (work / "ran").exists() == ran
    assert [path.name for path in (work / "site").iterdir() if path.name != "__pycache__"] == ["sitecustomize.py"]
    if status == 0:
        assert "darshan 3.5.0" in err
        assert err.endswith("next: dxt-replay summary run.capture")
        assert traced_reads() == 2
        assert (work / "run.recording" / "recording.txt").read_text(encoding="utf-8").startswith(PYTHON)


def test_json_has_standard_output_for_itself(record):
    out, err = record("print('trained')", "--json", "-o", "a.capture")
    assert err == "trained"
    result = json.loads(out)
    assert result["schema_version"] == 1
    assert (result["capture"], result["exit_status"], result["logs"]) == ("a.capture", 0, 1)
    assert result["tracer"]["found_in"] == "--library"
    assert result["merge"]["operations"]["traced"] == 2
    check("record", result)


def test_what_exists_is_refused_before_the_job_starts(record, work):
    job = "open('ran', 'w')"
    record(job)
    (work / "ran").unlink()
    assert "run.capture exists: --force replaces it" in record(job, status=2)[1]
    shutil.rmtree(work / "run.capture")
    assert "run.recording exists: --force replaces it" in record(job, status=2)[1]
    assert not (work / "ran").exists()
    record(job, "--force")
    assert (work / "ran").exists()


@pytest.mark.parametrize(("ahead_s", "said"), [(3600, "set forward by 3600.000 s"), (-2, "set back by 2"), (0, None)])
def test_a_clock_that_was_set_meanwhile_is_said(record, monkeypatch, ahead_s, said):
    looks = iter([10**18, 10**18 + ahead_s * 10**9])
    monkeypatch.setattr("dxt_replay.profiler_merge.recorder.job._ahead_ns", lambda: next(looks))
    err = record("1")[1]
    assert ("the clock of this machine was" in err) is (said is not None)
    assert said is None or said in err


def launcher(path, script):
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return f"./{path.name}"


def test_each_rank_behind_a_launcher_has_its_logs_and_the_launcher_has_none(record, work):
    mpiexec = launcher(work / "mpiexec", '#!/bin/sh\nshift 2\nfor r in 0 2; do PMI_RANK=$r "$@" || exit; done\n')
    program = "import os; print(os.environ['PMI_RANK'], 'libdarshan' in os.environ['LD_PRELOAD'])"
    out, err = record([mpiexec, "-n", "2", PYTHON, "-c", program])
    assert out == "0 True\n2 True\n"
    assert "Merged 3 ranks" in err
    assert "these ranks have no log, so their I/O is not in the capture: 1" in err
    ranks = {path.parent.name for path in (work / "run.recording" / "logs").rglob("*.darshan")}
    assert ranks == {"rank0", "rank2"}
    mpirun = launcher(work / "mpirun", f'#!{PYTHON}\nimport os\nprint("LD_PRELOAD" in os.environ)\n')
    out, err = record([mpirun, "-n", "2", PYTHON, "-c", "1"], "--force", status=2)
    assert out == "False\n"
    assert "the job left no log" in err


def test_hdf5_is_loaded_beside_a_darshan_that_calls_it(record, library):
    """The one of the job's h5py, and the libraries that it needs before it."""
    import h5py

    bundled = sorted(Path(h5py.__file__).parent.parent.glob("h5py.libs/libhdf5-*.so*"))
    if not bundled:
        pytest.skip("h5py is not a wheel that brings its HDF5")
    out, _ = record("import h5py, os; print(os.environ['LD_PRELOAD']); print(h5py.version.hdf5_version)")
    first, *others = out.split()[0].split(":")
    assert (first, others[-1], out.split()[1]) == (str(library), str(bundled[0]), h5py.version.hdf5_version)


def test_profiles_of_other_runs_are_not_of_this_job_and_a_merge_that_fails_says_how_to_repeat_it(record, work):
    """The folder that the job writes into holds those of earlier runs too."""
    old = work / "prof" / "rank0.xplane.pb"
    old.parent.mkdir()
    shutil.copy(sample("imagenet").profiles[0], old)
    os.utime(old, (1, 1))
    err = record("1", "--profile", "prof")[1]
    assert "prof holds no profile that this job wrote" in err
    assert WITHOUT_COMPUTE in err
    copy = f"import shutil; shutil.copyfile({str(sample('imagenet').profiles[0])!r}, 'prof/rank0.xplane.pb')"
    err = record(copy, "-o", "a b.capture", "--profile", "prof", status=2)[1]
    assert "is the profile of another run" in err
    again = "next: dxt-replay merge 'a b.recording/logs' --profile prof/rank0.xplane.pb -o 'a b.capture'"
    assert err.endswith(again)
    assert not (work / "a b.capture").exists()


def test_ctrl_c_leaves_what_was_recorded(library, work):
    """Darshan's own end of a process is never reached: Python ends itself by the signal."""
    words = f"record --library {library} -o {work}/c.capture -- {PYTHON} -c".split()
    job = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.1)"
    with subprocess.Popen(
        ["env", "--default-signal=INT", PYTHON, "-m", "dxt_replay.replay.commands.main", *words, job],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert "the job was interrupted: the capture holds what it did until it ended" in err
    assert "trace coverage 100 %" in err
    assert traced_reads(work / "c.capture") == 2


def test_counters_that_a_killed_process_left_are_used(record, tmp_path, monkeypatch):
    """Darshan keeps them in a mapped file of the temporary folder, which a process that ends in order removes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    counters = fake_darshan.log_without_dxt(tmp_path / "plain")
    program = (
        f"import os, shutil; shutil.copyfile({str(counters)!r}, "
        f"f\"{tmp_path}/me_python_id{{os.environ['DXT_RECORDING_JOB']}}_mmap-log-7-0.darshan\"); "
        "os.kill(os.getpid(), 15)"
    )
    err = record(program, status=143)[1]
    assert "python ended by a signal before Darshan wrote a trace: that I/O is rebuilt from counters" in err
    assert "record again with more memory" not in err
    reads = [(row["origin"], row["length"]) for row in rows_of() if row["op"] == "read"]
    assert reads == [("reconstructed", 100)]
    assert not list(tmp_path.glob("*mmap-log*"))


def test_a_library_that_writes_no_log_is_refused_before_the_job(record, work, tmp_path):
    broken = tmp_path / "libdarshan.so"
    broken.write_text("not a library", encoding="utf-8")
    err = record("open('ran', 'w')", library=broken, status=2)[1]
    assert "wrote no log for a small test program" in err
    assert "cannot be preloaded" in err  # the loader's own words
    assert not (work / "ran").exists()


def test_without_any_tracer_it_says_how_to_get_each_and_without_a_choice_the_job_runs(record, work, monkeypatch):
    """A stripped environment, in which nothing can be found; the job has no loop to make a capture of."""
    monkeypatch.setattr("dxt_replay.profiler_merge.recorder.darshan.find_library", lambda environment: None)
    err = record("1", "--with", "darshan", library=None, status=2)[1]
    for words in ("conda install -c conda-forge darshan-runtime", "spack install", "apt install strace", "pip install"):
        assert words in err
    assert list(work.iterdir()) == []
    out, err = record("print('trained')", library=None, status=2)
    assert out == "trained\n"
    assert "the job left no marks" in err
    assert "with dxt_replay.recording() as r:" in err


@needs_strace
@pytest.mark.parametrize(("ending", "status"), [("1", 0), ("raise SystemExit(5)", 5), ("os.kill(os.getpid(), 9)", 137)])
def test_strace_records_every_read(record, work, ending, status):
    (work / "data.bin").write_bytes(bytes(3000))
    program = f"import os; f = open('data.bin', 'rb', buffering=0); [f.read(1000) for _ in range(4)]; {ending}"
    err = record(program, "--with", "strace", library=None, status=status)[1]
    reads = [row for row in rows_of() if row["op"] == "read" and row["path"] == str(work / "data.bin")]
    found = [(row["offset"], row["length"]) for row in reads]
    assert found == [(0, 1000), (1000, 1000), (2000, 1000), (3000, 0)]
    assert "each traced call takes 0.05 to 0.13 ms longer" in err


# ------------------------------------------------------------------------------------ a job whose every byte is known
READ, MAPPED, RECEIVED, MEMORY, SAVED, NEW, PIPED = 1_000_000, 2 << 20, 3_000_000, 65_536, 100_000, 50_000, 70_000

KNOWN_JOB = """
import mmap, os, socket, subprocess, sys, time
port, received, memory, piped = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
def fetch():
    with socket.create_connection(("127.0.0.1", port)) as store:
        left = received
        while left:
            left -= len(store.recv(65536))
        time.sleep(1)
fetch()
for name in ("train.bin", memory):
    with open(name, "rb", buffering=0) as file:
        while file.read(250_000):
            pass
data = os.open("mapped.bin", os.O_RDONLY)
mapped = mmap.mmap(data, 0, prot=mmap.PROT_READ)
sum(mapped[::4096])
time.sleep(1)
with open("model.pth", "wb", buffering=0) as file:
    file.write(bytes(100_000))
os.mkdir("checkpoints")
with open("checkpoints/step-1.bin", "wb", buffering=0) as file:
    file.write(bytes(50_000))
subprocess.run([sys.executable, "-c", f"print('x' * {piped}, end='')"], stdout=subprocess.PIPE, check=True)
"""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--with", "strace"], marks=needs_strace, id="strace"),
        pytest.param(["--library", DARSHAN], marks=needs_darshan, id="darshan"),
    ],
)
def test_a_capture_claims_every_byte_that_moved_and_no_other(record, work, options):
    """It reads files and a mapped file, receives from a server on the loopback and from a pipe, reads a file in
    /dev/shm, and writes a `.pth` and into a folder that was not there before."""
    (work / "train.bin").write_bytes(bytes(READ))
    (work / "mapped.bin").write_bytes(bytes(MAPPED))
    (work / "job.py").write_text(KNOWN_JOB, encoding="utf-8")
    with create_server(("127.0.0.1", 0)) as store, tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        memory = Path(shared, "a.bin")
        memory.write_bytes(bytes(MEMORY))

        def serve():
            connection, _ = store.accept()
            with connection:
                connection.sendall(bytes(RECEIVED))
                connection.recv(1)

        server = threading.Thread(target=serve)
        server.start()
        job = [PYTHON, "job.py", store.getsockname()[1], RECEIVED, memory, PIPED]
        err = record(job, *options, library=None)[1]
        server.join()
    found = {}
    for row in rows_of():
        if row["op"] in ("read", "write"):
            assert row["origin"] == "traced"
            found[row["path"]] = found.get(row["path"], 0) + row["length"]
    # Where the kernel allows it, page faults show a part of the pages: one maps up to 16 that the cache holds.
    by_faults = found.pop(str(work / "mapped.bin"), 0)
    wanted = {"train.bin": READ, memory: MEMORY, "model.pth": SAVED, "checkpoints/step-1.bin": NEW}
    of_python = (".py", os.path.basename(PYTHON))  # the interpreter itself, if no package of the system brought it
    assert {path: moved for path, moved in found.items() if moved and not path.endswith(of_python)} == {
        str(work / path): moved for path, moved in wanted.items()
    }
    coverage = open_capture(work / "run.capture").info.coverage
    mapped = next(each for each in coverage.unseen if each.kind == "mapped")
    assert mapped.name == str(work / "mapped.bin")
    assert MAPPED - 16 * by_faults <= mapped.bytes <= MAPPED - by_faults
    assert f"memory-mapped: {work}/mapped.bin (" in err
    assert "trace coverage 100 %" not in err
    received = [each for each in coverage.unseen if each.kind == "socket"]
    if received:  # a kernel without socket diagnosis, and a tracer that does not see sockets, say nothing of them
        assert [each.bytes for each in received] == [RECEIVED]
        traced = sum(wanted.values()) + by_faults
        assert coverage.bytes == pytest.approx(traced / (traced + mapped.bytes + RECEIVED), rel=0.01)
    assert why_not_judged(coverage, coverage.unseen) is not None


# ---------------------------------------------------------------------------------------- every process of a job counts
FILES, SIZE = 20, 256 << 10

JOB = """
import ctypes, multiprocessing as mp, os, signal, subprocess, sys

kind, folder = sys.argv[1:]
names = [os.path.join(folder, "f%d" % number) for number in range(20)]
libc = ctypes.CDLL(None)
libc.syscall.restype = ctypes.c_long


def read(name):
    with open(name, "rb", buffering=0) as file:
        return len(file.read())


def raw(name):
    file, buffer = os.open(name, os.O_RDONLY), ctypes.create_string_buffer(1 << 18)
    os.read(file, 512)
    got = libc.syscall(0 if os.uname().machine == "x86_64" else 63, file, buffer, 1 << 18)
    os.close(file)
    return got


def killed(name):
    pid = os.fork()
    if not pid:
        read(name)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def run(*words, **more):
    return lambda name: subprocess.run([*words, name], stdout=subprocess.PIPE, **more)


ways = {"read": read, "raw": raw, "killed": killed, "shell": run("sh", "-c", 'cat "$0"')}
ways["empty"] = run("/bin/cat", env={})
if __name__ == "__main__":
    read(names[0])
    start, _, how = kind.partition("-")
    if how == "pool":
        with mp.get_context(start).Pool(2) as pool:
            pool.map(read, names)
            pool.close()
            pool.join()
    elif how == "outlives":
        if not os.fork():
            import time
            time.sleep(1)
            for name in names:
                read(name)
        os._exit(0)
    else:
        for name in names:
            ways[kind](name)
"""
SEEN = ["read", "shell", "fork-outlives", "fork-pool", "spawn-pool", "forkserver-pool"]
NOT_SEEN = {"raw": "processes with a log", "empty": "cat (20 processes)", "killed": None}
"""Kind of a job -> what is not known of it, by Darshan."""
BY_STRACE = ["read", "shell", "forkserver-pool", "empty", "raw", "killed", "fork-outlives"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tracer", "kind"),
    [
        *(pytest.param("darshan", kind, marks=needs_darshan) for kind in [*SEEN, *NOT_SEEN]),
        *(pytest.param("strace", kind, marks=needs_strace) for kind in BY_STRACE),
    ],
)
def test_what_a_tracer_shows_keeps_its_number_and_what_it_does_not_is_not_claimed(say, work, tracer, kind):
    """The job reads one of 20 files of 256 KiB, then all, in its way."""
    (work / "job.py").write_text(JOB, encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            Path(folder, f"f{number}").write_bytes(os.urandom(SIZE))
        options = ["--with", "strace"] if tracer == "strace" else ["--library", DARSHAN]
        main(["record", *options, "--", PYTHON, "job.py", kind, folder])
    coverage = open_capture(work / "run.capture").info.coverage
    names = [each.name for each in coverage.unseen if each.kind == "process"]
    read = sum(row["length"] for row in rows_of() if row["op"] == "read")
    said = say("summary run.capture")
    if kind == "killed" and tracer == "darshan":  # without mmap logs its counters are lost, and nothing is claimed
        assert names or read >= (FILES + 1) * SIZE
        assert coverage.bytes is None or coverage.bytes < 0.1
        assert "is not known" in said
    elif kind in NOT_SEEN and tracer == "darshan":
        assert names == [NOT_SEEN[kind]]
        assert read < 2 * SIZE
        assert coverage.bytes is None
        unknown = f"data were read that no log of the job's processes holds ({NOT_SEEN[kind]})"
        assert f"is not known: {unknown}" in said
    else:
        assert names == []
        assert read >= (FILES + 1) * SIZE
        assert coverage.bytes == pytest.approx(1.0, abs=0.01)
        assert tracer == "strace" or (read < (FILES + 2) * SIZE and "is not known:" not in said)
