"""Kills, tiny limits and errors of the system: what is left is whole, an error keeps its name, no process aborts."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.recorder.tracers import DARSHAN, Tracer, write_script
from dxt_replay.replay.calibration.scratch import scratch_below
from dxt_replay.replay.ranks.mpi import SHARED_MEMORY
from tests.capture_builder import read
from tests.output_commands import OUTPUT_COMMANDS
from tests.places import MPIEXEC, ROOT, SHARED, needs_mpi
from tests.replay.faults.conftest import run, short_capture
from tests.replay.faults.injection import Rule
from tests.replay.faults.test_failing import words
from tests.replay.run.test_story import staged
from tests.traces.test_workers import wait_until

ABORTING = SHARED / "trials" / "fourth" / "faults" / "abort_c6.capture.tar.gz"
LAUNCHED = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
DXT_REPLAY = [sys.executable, "-m", "dxt_replay"]
NOBODY = 65534


def slow(*values):
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def launched(command, folder, **variables):
    environment = {**LAUNCHED, **variables}
    return subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


# ---------------------------------------------------------------------------------------------------------- killed


@pytest.mark.parametrize("moment", [0.1, *slow(0.02, 0.05, 0.2, 0.3, 0.5, 0.8, 1.2)])
@pytest.mark.parametrize("name", ["SIGKILL", *slow("SIGTERM")])
@pytest.mark.parametrize("command", ["merge", "run", "generate"])
def test_what_a_killed_command_left_is_never_a_capture(commands, folder, command, name, moment):
    place = folder / "written" / "out.capture"
    ended = commands.run(words(folder, command, place), killed_at=(moment, name))
    assert "Traceback" not in ended.err
    if place.exists():
        checked = commands.run(["verify", place])  # it had its name before the signal came, so it is whole
        assert checked.status == 0, checked.out
    assert commands.run([*words(folder, command, place), "--force"]).status == 0, "the next one is not in its way"
    assert [path.name for path in (folder / "written").iterdir()] == ["out.capture"]


def test_the_next_calibration_removes_what_a_killed_one_left(tmp_path):
    (tmp_path / "target").mkdir()
    with scratch_below(tmp_path / "target") as (first, _), scratch_below(tmp_path / "target"):
        assert first.exists(), "that of a calibration that still runs stays"
        shutil.copytree(first, tmp_path / "killed")
    (tmp_path / "killed").rename(tmp_path / "target" / first.name)
    with scratch_below(tmp_path / "target") as (path, _):
        assert os.listdir(tmp_path / "target") == [path.name]


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_the_shared_memory_of_mpi_goes_with_the_replay(folder, name):
    """Interrupted while MPI starts; and killed in the run, when its memory has no name any more."""
    before = set(os.listdir(SHARED_MEMORY))
    program = [str(MPIEXEC), "-n", "2", *DXT_REPLAY, *map(str, run(folder, "--speed", "0.01"))]
    with subprocess.Popen(program, env=LAUNCHED, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as replay:
        if name == "SIGINT":
            time.sleep(0.9)
        else:
            wait_until(lambda: any(folder.glob(".replay.capture*")))
        replay.send_signal(getattr(signal, name))
        replay.communicate()
    until, left = time.monotonic() + 10, {""}
    while left and time.monotonic() < until:
        time.sleep(0.1)
        left = {each for each in os.listdir(SHARED_MEMORY) if "mpich" in each} - before
    assert left == set()


# ---------------------------------------------------------------------------------------------------- tiny limits


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        pytest.param(name, limit, marks=() if (name, limit) in (("run", 12), ("stage", 8)) else pytest.mark.slow)
        for name in ("run", "stage", "merge", "generate", "report", "export csv")
        for limit in (7, 8, 9, 10, 12, 16, 24, 34, 40)
    ],
)
def test_open_files(commands, folder, name, limit):
    source = folder / "source.capture"
    (folder / "new").mkdir(exist_ok=True)
    line = ["stage", source, "--target", folder / "new"]
    if name != "stage":
        line = OUTPUT_COMMANDS[name].line(source, folder / OUTPUT_COMMANDS[name].name)
    said_or_done(*commands.run(line, limits={"RLIMIT_NOFILE": limit}), "(ulimit -n)")


def test_more_files_than_descriptors_are_all_read(commands, tmp_path):
    """Each file is used twice, far apart: it is idle in between, and may be closed for another."""
    ops = [read(i % 400, rank=i % 4, lane=i % 8, start_ns=i, length=8, offset=8 * (i // 400)) for i in range(800)]
    staged(tmp_path, ops, [f"/data/{i}" for i in range(400)])
    document = commands.run(run(tmp_path, "--pace", "none", "--json"), limits={"RLIMIT_NOFILE": 96}).json()
    assert (document["operations"], document["failed"], document["lanes"]) == (len(ops), 0, 8)


def test_threads_without_room_for_their_stacks_are_refused_with_the_number_of_processes_that_would_do(
    commands, tmp_path
):
    ops = [read(0, rank=lane // 100, lane=lane, start_ns=lane, length=8) for lane in range(700)]
    staged(tmp_path, ops, ["/a"])
    ended = commands.run(run(tmp_path), limits={"RLIMIT_AS": 5 << 30})
    assert ended.status == 2
    assert "needs 708 threads, one for each lane" in ended.err
    assert "the limit of address space (ulimit -v)" in ended.err
    assert re.search(r"replay on \d processes or more, or choose fewer ranks \(--part ranks=A-B\)", ended.err)


def said_or_done(status, out, err, limit):
    """A command does its work, or says which limit it was; never that a file is damaged."""
    assert status in (0, 2), err
    if status:
        (line,) = err.splitlines()
        assert line.startswith("dxt-replay: error: ")
        assert limit in line or "Too many open files" in line, line
        for wrong in ("damaged", "free space", "--target", "another place", "--output"):
            assert wrong not in line, line


@pytest.mark.skipif(os.geteuid() != 0, reason="the limit does not bind root, who plays another user here")
@pytest.mark.parametrize("limit", [1, 12, *slow(5)])
def test_threads(commands, folder, limit):
    for path in (*folder.parents, folder, *folder.rglob("*")):
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(0o777)
    ended = commands.run(run(folder, "--pace", "none"), limits={"RLIMIT_NPROC": limit}, user=NOBODY)
    said_or_done(*ended, "(ulimit -u)")
    assert ended.status == 2


@pytest.mark.parametrize("kibibytes", [128, *slow(192)])
def test_stack(folder, kibibytes):
    """Python itself needs about 100 KiB of stack: with less it dies at its start."""
    limited = ["bash", "-c", f'ulimit -s {kibibytes}; exec "$@"', "bash"]
    done = launched([*limited, *DXT_REPLAY, *run(folder, "--pace", "none")], ROOT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kib", [60_000, 90_000, 100_000, 150_000, 220_000, 600_000, 1_500_000])
def test_too_little_address_space_is_out_of_memory(tmp_path, kib):
    limited = ["sh", "-c", f'ulimit -v {kib}; exec "$0" -m dxt_replay summary "$1"', sys.executable]
    done = launched([*limited, short_capture(tmp_path).path], tmp_path)
    if kib >= 600_000:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
        assert "out of memory" in done.stderr


# ----------------------------------------------------------------------------------------------- refused, damaged


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ETIMEDOUT])
@pytest.mark.parametrize("part", ["files.parquet", "capture.json", "part-"])
@pytest.mark.parametrize("command", ["summary", "verify"])
def test_what_the_system_refuses_to_read_is_no_damage(commands, folder, code, part, command):
    ended = commands.run([command, folder / "source.capture"], Rule("open", "fail", code, part))
    assert ended.status == 2, ended
    (line,) = ended.err.splitlines()
    assert os.strerror(code) in line
    for wrong in ("damaged", "truncated", "copy or make", "free space"):
        assert wrong not in line


@pytest.mark.skipif(not ABORTING.exists(), reason="the captures of the trials are not here")
@pytest.mark.parametrize("command", ["summary", "verify", "fit"])
def test_a_damaged_footer_ends_no_process(tmp_path, command):
    with tarfile.open(ABORTING) as archive:
        archive.extractall(tmp_path, filter="data")
    done = launched([*DXT_REPLAY, command, "c6.capture", *(["-o", "f.yaml"] if command == "fit" else [])], tmp_path)
    assert done.returncode == (1 if command == "verify" else 2)
    assert "Repetition level histogram size mismatch" in " ".join((done.stdout + done.stderr).split())


def test_the_script_of_a_job_finds_its_programs_without_a_path(tmp_path):
    tracer = Tracer(name=DARSHAN, program=Path("/"), origin="")
    script = write_script(tmp_path / "job.sh", tracer, logs=tmp_path / "logs", profiles=tmp_path, by_rank=True)
    done = launched([script, "/bin/true"], tmp_path, PATH="/nonexistent", PMI_RANK="3")
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "logs" / "rank3").glob("*/*/*"))
