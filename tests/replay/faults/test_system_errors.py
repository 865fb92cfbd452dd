"""Errors of the system keep their names, a damaged byte ends no process, and a killed command leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import random
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
from tests.places import MPIEXEC, ROOT, SHARED, needs_mpi
from tests.replay.faults.conftest import short_capture
from tests.replay.faults.injection import Commands, Rule
from tests.replay.faults.test_hanging_calls import run

ABORTING = SHARED / "trials" / "fourth" / "faults" / "abort_c6.capture.tar.gz"
LAUNCHED = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ETIMEDOUT])
@pytest.mark.parametrize("part", ["files.parquet", "capture.json", "part-"])
@pytest.mark.parametrize("command", ["summary", "verify"])
def test_what_the_system_refuses_to_read_is_no_damage(
    commands: Commands, folder: Path, code: int, part: str, command: str
) -> None:
    ended = commands.run([command, folder / "source.capture"], Rule(call="open", action="fail", number=code, path=part))
    assert ended.status == 2, ended
    (line,) = ended.err.splitlines()
    assert os.strerror(code) in line
    for wrong in ("damaged", "truncated", "copy or make", "free space"):
        assert wrong not in line


def test_an_output_that_cannot_be_synced_takes_no_place(commands: Commands, folder: Path) -> None:
    ended = commands.run(run(folder), Rule(call="sync", action="fail", number=errno.EIO, path="capture.json"))
    assert ended.status == 2, ended
    assert os.strerror(errno.EIO) in ended.err
    assert sorted(os.listdir(folder)) == ["source.capture", "twin"]


@pytest.mark.skipif(not ABORTING.exists(), reason="the captures of the trials are not here")
@pytest.mark.parametrize("command", ["summary", "verify", "fit"])
def test_a_damaged_footer_ends_no_process(tmp_path: Path, command: str) -> None:
    with tarfile.open(ABORTING) as archive:
        archive.extractall(tmp_path, filter="data")
    more = ["-o", "f.yaml"] if command == "fit" else []
    words = [sys.executable, "-m", "dxt_replay", command, "c6.capture", *more]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=LAUNCHED, check=False)
    assert done.returncode == (1 if command == "verify" else 2)
    assert "Repetition level histogram size mismatch" in " ".join((done.stdout + done.stderr).split())


def test_no_byte_of_a_footer_ends_a_process(tmp_path: Path) -> None:
    """In forks: an abort of pyarrow ends the process."""
    source = short_capture(tmp_path).path
    document = json.loads((source / "capture.json").read_text())
    (source / "capture.json").write_text(json.dumps({**document, "digests": {}}))
    parts = sorted(source.rglob("*.parquet"))
    draw = random.Random(1)
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
def test_a_number_of_the_job_beyond_64_bits_is_damage(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = short_capture(tmp_path).path
    document = json.loads((source / "capture.json").read_text())
    document |= {"digests": {}, "job": {**document["job"], name: -(1 << 70)}}
    (source / "capture.json").write_text(json.dumps(document))
    assert main(["export", str(source), "--to", "darshan", "-o", str(tmp_path / "x.darshan")]) == 2
    assert f"is damaged: its job has a {name} of -1180591620717411303424" in capsys.readouterr().err


@pytest.mark.parametrize("kib", [60_000, 90_000, 100_000, 150_000, 220_000, 600_000, 1_500_000])
def test_too_little_address_space_is_out_of_memory(tmp_path: Path, kib: int) -> None:
    source = short_capture(tmp_path).path
    line = f'ulimit -v {kib}; exec "$0" -m dxt_replay summary "$1"'
    words = ["sh", "-c", line, sys.executable, source]
    done = subprocess.run(words, cwd=tmp_path, env=LAUNCHED, capture_output=True, text=True, check=False)
    if kib >= 600_000:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
        assert "out of memory" in done.stderr


def test_the_next_calibration_removes_what_a_killed_one_left(tmp_path: Path) -> None:
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
def test_the_shared_memory_of_mpi_goes_with_the_replay(folder: Path, after_s: float, name: str) -> None:
    before = set(os.listdir(SHARED_MEMORY))
    program = [str(MPIEXEC), "-n", "2", sys.executable, "-m", "dxt_replay", *map(str, run(folder, "--speed", "0.01"))]
    with subprocess.Popen(program, env=LAUNCHED, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as replay:
        time.sleep(after_s)
        replay.send_signal(getattr(signal, name))
        replay.communicate()
    until = time.monotonic() + 10
    while (
        left := {each for each in os.listdir(SHARED_MEMORY) if "mpich" in each} - before
    ) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == set()


def test_the_script_of_a_job_finds_its_programs_without_a_path(tmp_path: Path) -> None:
    tracer = Tracer(name=DARSHAN, program=Path("/"), origin="")
    script = write_script(tmp_path / "job.sh", tracer, logs=tmp_path / "logs", profiles=tmp_path, by_rank=True)
    words = [str(script), "/bin/true"]
    environment = {"PATH": "/nonexistent", "PMI_RANK": "3"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "logs" / "rank3").glob("*/*/*"))
