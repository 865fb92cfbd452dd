"""Kills, tiny limits and errors of the system: what is left is whole, an error keeps its name, no process aborts."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import dxt_replay
from dxt_replay.profiler_merge.recorder.tracers import DARSHAN, Tracer, write_script
from dxt_replay.replay.calibration.scratch import NAME
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.ranks.mpi import SHARED_MEMORY
from tests.output_commands import OUTPUT_COMMANDS
from tests.places import MPIEXEC, ROOT, SHARED, needs_mpi
from tests.replay.faults.conftest import run, short_capture
from tests.replay.faults.injection import Rule
from tests.replay.faults.test_failing import words

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


@pytest.mark.parametrize("moment", [0.05, *slow(0.01, 0.1, 0.2, 0.4)])
def test_a_staging_that_was_killed_goes_on(commands, folder, moment):
    (folder / "new").mkdir(exist_ok=True)
    stage = ["stage", folder / "source.capture", "--target", folder / "new"]
    commands.run(stage, Rule("write", "stall", 20, "/new/"), killed_at=(moment, "SIGKILL"))
    assert commands.run(stage).status == 0
    assert not list((folder / "new").rglob("*.part"))
    assert commands.run(["run", *stage[1:], "-o", folder / "replay.capture", "--pace", "none"]).status == 0
    shutil.rmtree(folder / "new" / "dxt-replay-twin" / "data")
    ended = commands.run(["run", *stage[1:], "-o", folder / "again.capture"])
    assert (ended.status, "run `dxt-replay stage` first" in ended.err) == (2, True)


def test_the_next_calibration_removes_what_a_killed_one_left(tmp_path):
    program = f"import dxt_replay; dxt_replay.calibrate({str(tmp_path)!r}, minutes=0.5)"
    with subprocess.Popen([sys.executable, "-c", program], env=LAUNCHED) as killed:
        while not list(tmp_path.glob(f"{NAME}*/data")):
            time.sleep(0.01)
        dxt_replay.calibrate(tmp_path, minutes=0.02)
        assert len(list(tmp_path.glob(f"{NAME}*"))) == 1, "that of a calibration that still runs stays"
        killed.kill()
    found = dxt_replay.calibrate(tmp_path, minutes=0.02)
    assert os.listdir(tmp_path) == []
    assert [each for each in found.measured if each.time_ns > each.p95_ns] == [], "a mean above its own 95 %"


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize(("after_s", "name"), [(0.9, "SIGINT"), (1.2, "SIGINT"), (1.5, "SIGKILL")])
def test_the_shared_memory_of_mpi_goes_with_the_replay(folder, after_s, name):
    before = set(os.listdir(SHARED_MEMORY))
    program = [str(MPIEXEC), "-n", "2", *DXT_REPLAY, *map(str, run(folder, "--speed", "0.01"))]
    with subprocess.Popen(program, env=LAUNCHED, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as replay:
        time.sleep(after_s)
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


def edited(folder, **keys):
    """The short capture with other keys in `capture.json`, and no digests."""
    source = short_capture(folder).path
    document = json.loads((source / "capture.json").read_text())
    job = {**document["job"], **keys}
    (source / "capture.json").write_text(json.dumps({**document, "digests": {}, "job": job}))
    return source


def test_no_byte_of_a_footer_ends_a_process(tmp_path):
    """In forks: an abort of pyarrow ends the process."""
    source, draw = edited(tmp_path), random.Random(1)
    parts = sorted(source.rglob("*.parquet"))
    for _ in range(60):
        part = draw.choice(parts)
        whole = part.read_bytes()
        at = len(whole) - draw.randrange(9, min(pq.read_metadata(part).serialized_size + 8, len(whole)))
        part.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :])
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            os._exit(main(["verify", str(source)]) & 3)
        assert not os.WIFSIGNALED(os.waitpid(child, 0)[1]), (part.name, at)
        part.write_bytes(whole)


@pytest.mark.parametrize("name", ["job_id", "start_ns", "end_ns", "zero_ns"])
def test_a_number_of_the_job_beyond_64_bits_is_damage(tmp_path, name, capsys):
    source = edited(tmp_path, **{name: -(1 << 70)})
    assert main(["export", str(source), "--to", "darshan", "-o", str(tmp_path / "x.darshan")]) == 2
    assert f"is damaged: its job has a {name} of -1180591620717411303424" in capsys.readouterr().err


def test_the_script_of_a_job_finds_its_programs_without_a_path(tmp_path):
    tracer = Tracer(name=DARSHAN, program=Path("/"), origin="")
    script = write_script(tmp_path / "job.sh", tracer, logs=tmp_path / "logs", profiles=tmp_path, by_rank=True)
    done = launched([script, "/bin/true"], tmp_path, PATH="/nonexistent", PMI_RANK="3")
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "logs" / "rank3").glob("*/*/*"))
