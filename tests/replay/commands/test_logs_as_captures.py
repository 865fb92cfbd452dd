"""A Darshan log where a capture is asked for: merged on the fly, by one process for all, and nothing of it stays."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.auditing import before, captures_made
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log
from tests.places import MPIEXEC, SHARED, needs_mpi

JOB_RECORD_AT = 1340
"""Bytes of a log up to its job record, without which none is read."""

OPERATIONS = 2 * (20 + 3)
"""Traced reads and writes in `job_log`."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two ranks read one file together, and each writes one of its own."""
    records = []
    for rank in range(2):
        reads = [(4096 * (2 * i + rank), 4096, 0.01 * i, 0.01 * i + 0.002) for i in range(20)]
        writes = [(1000 * i, 1000, 0.3 + 0.01 * i, 0.301 + 0.01 * i) for i in range(3)]
        records += [
            DxtRecord(record_id=1, rank=rank, reads=reads),
            DxtRecord(record_id=2 + rank, rank=rank, writes=writes),
        ]
    names = {1: b"/data/train.bin", 2: b"/out/0.bin", 3: b"/out/1.bin"}
    job = JobSpec(nprocs=2, start_s=1000, end_s=1001)
    return write_dxt_log(tmp_path / "job.darshan", records, names=names, job=job)


@pytest.fixture
def system_temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory, empty."""
    folder = tmp_path_factory.mktemp("system")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def run_command(source: Path, output: Path, *more: str) -> list[str]:
    return ["run", str(source), "--target", str(output.parent / "twin"), "-o", str(output), "--pace", "none", *more]


def printed_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    capsys.readouterr()
    main([*argv, "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, Any] = json.loads(captured.out)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """What the files below hold, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rows(capture: Capture) -> list[tuple[Any, ...]]:
    """What was done, without times."""
    columns = ["rank", "op", "file_id", "offset", "length"]
    return sorted(tuple(row.values()) for batch in capture.operations(columns=columns) for row in batch.to_pylist())


def assert_same_twin_and_replay(log: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Staged from the one, replayed from the other, in both ways."""
    merged = folder / "job.capture"
    assert main(["merge", str(log), "-o", str(merged)]) == 0
    sides = {}
    for staged, replayed in ((log, merged), (merged, log)):
        side = folder / f"staged-from-{staged.suffix[1:]}"
        side.mkdir()
        (side / "twin").mkdir(exist_ok=True)
        assert main(["stage", str(staged), "--target", str(side / "twin")]) == 0
        sides[staged] = contents(side / "twin")
        assert main(run_command(replayed, side / "replay.capture")) == 0
        found = printed_json(capsys, "compare", str(log), str(side / "replay.capture"))
        assert found["verdict"]["exact"] == "pass", found["exact"]
        assert rows(open_capture(side / "replay.capture"))
        assert {path.name for path in side.iterdir()} == {"twin", "replay.capture"}
    assert sides[log] == sides[merged]


def test_a_log_and_the_capture_of_it_share_their_twin(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_same_twin_and_replay(log, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no real logs in {SHARED}")
@pytest.mark.parametrize(
    "path",
    [
        "captures/candle/job.darshan",
        "captures/cosmoflow_threads/job.darshan",
        "captures/frnn/job.darshan",
        "captures/l2hmc/job.darshan",
        "darshan-logs/ior_hdf5_example.darshan",
        "darshan-logs/mpi-io-test-ppc64-3.1.6.darshan",
        "darshan-logs/nonmpi_dxt_anonymized.darshan",
        "darshan-logs/runtime_and_dxt_heatmaps_diagonal_write_only.darshan",
    ],
)
def test_real_logs_and_their_captures_share_their_twins(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_same_twin_and_replay(SHARED / path, tmp_path, capsys)


def test_a_replay_names_the_log_as_its_source(log: Path, tmp_path: Path) -> None:
    (tmp_path / "twin").mkdir(exist_ok=True)
    assert main(["stage", str(log), "--target", str(tmp_path / "twin")]) == 0
    (tmp_path / "new").mkdir()
    assert main(run_command(log, tmp_path / "new" / "r.capture", "--target", str(tmp_path / "twin"))) == 0
    (source,) = open_capture(tmp_path / "new" / "r.capture").info.sources
    assert (source.name, source.kind) == ("job.darshan", "darshan")
    assert source.sha256 == hashlib.sha256(log.read_bytes()).hexdigest()
    assert {path.name for path in tmp_path.iterdir()} == {"job.darshan", "twin", "new"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["r.capture"]


def test_several_runs_share_one_merge(log: Path, tmp_path: Path) -> None:
    (tmp_path / "twin").mkdir(exist_ok=True)
    assert main(["stage", str(log), "--target", str(tmp_path / "twin")]) == 0
    with captures_made() as made:
        assert main(run_command(log, tmp_path / "r.capture", "--repeat", "2")) == 0
    (merged,) = (path for path in made if path.name.startswith(".job.capture"))
    assert merged.parent.parent == tmp_path, "beside the replay, which all nodes share"
    assert {path.name for path in tmp_path.iterdir()} == {"job.darshan", "twin", "r.1.capture", "r.2.capture"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["stage", "LOG", "--target", "t", "--part", "ranks=7"], "LOG has no rank 7"),
        (["run", "LOG", "--target", "t", "-o", "r.capture", "--part", "ranks=7"], "LOG has no rank 7"),
        (["run", "LOG", "--target", "t", "-o", "r.capture", "--part", "steps=1-2"], "LOG has no step"),
        (["run", "LOG", "--target", "nowhere", "-o", "r.capture"], "nowhere does not exist"),
        (["run", "CUT", "--target", "t", "-o", "r.capture"], "cut.darshan"),
        (["run", "none.darshan", "--target", "t", "-o", "r.capture"], "none.darshan"),
        (["run", "LOG", "--target", "t", "-o", "LOG"], "is not a capture: choose another name"),
        (["stage", "CUT", "--target", "t"], "cut.darshan"),
        (["compare", "LOG", "CUT"], "cut.darshan"),
    ],
)
def test_an_error_names_the_log_and_leaves_nothing(
    log: Path,
    argv: list[str],
    message: str,
    tmp_path: Path,
    system_temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "cut.darshan").write_bytes(log.read_bytes()[:JOB_RECORD_AT])
    monkeypatch.chdir(tmp_path)
    Path("t").mkdir(exist_ok=True)
    assert main(["stage", str(log), "--target", "t"]) == 0
    before = sorted(tmp_path.iterdir())
    capsys.readouterr()
    names = {"LOG": str(log), "CUT": str(tmp_path / "cut.darshan")}
    assert main([names.get(word, word) for word in argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message.replace("LOG", str(log)) in line
    assert sorted(tmp_path.iterdir()) == before
    assert not list(system_temporary.iterdir())


# ------------------------------------------------------------------------------------------- ended before its time


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + 15), (signal.SIGHUP, 128 + 1)]
)
@pytest.mark.parametrize("command", ["run", "stage", "summary"])
def test_a_signal_while_merging_leaves_nothing(
    log: Path,
    command: str,
    number: signal.Signals,
    status: int,
    tmp_path: Path,
    system_temporary: Path,
) -> None:
    arguments = {
        "run": run_command(log, tmp_path / "r.capture"),
        "stage": ["stage", str(log), "--target", str(system_temporary)],
        "summary": ["summary", str(log)],
    }[command]
    working: list[Path] = []

    def interrupt(path: Path) -> None:
        working.extend(path.parent.parent.iterdir())
        signal.raise_signal(number)

    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with before("os.rename", "*/capture.json", interrupt):
        assert main(arguments) == status
    assert len(working) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["job.darshan"]
    assert not list(system_temporary.iterdir())
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers


# ----------------------------------------------------------------------------------------------------- under mpiexec


def under_mpi(arguments: list[str], processes: int, first: str = "") -> subprocess.CompletedProcess[str]:
    """The program in processes that execute `first` before; `rank` is their number there."""
    program = f"""
import os, signal, sys, tempfile, threading, time
from pathlib import Path
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.ranks.mpi import connect
from tests.auditing import before
rank = connect().rank
{first}
sys.exit(main({arguments!r}))
"""
    command = [str(MPIEXEC), "-n", str(processes), sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@needs_mpi
def test_one_process_merges_for_all(log: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (tmp_path / "twin").mkdir(exist_ok=True)
    assert main(["stage", str(log), "--target", str(tmp_path / "twin")]) == 0
    nodes = tmp_path_factory.mktemp("nodes")
    # Each process has a temporary directory of its own, as on nodes of their own.
    first = f"""
tempfile.tempdir = {str(nodes)!r} + f"/{{rank}}"
os.mkdir(tempfile.tempdir)
noting = before("os.mkdir", "*/.job.capture.*", lambda _: (Path(tempfile.gettempdir()) / "merged").touch())
noting.__enter__()
"""
    done = under_mpi(run_command(log, tmp_path / "r.capture", "--json"), 3, first)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["processes"], found["failed"]) == (3, 0)
    assert [str(path.relative_to(nodes)) for path in nodes.rglob("*") if path.is_file()] == ["0/merged"]
    assert {path.name for path in tmp_path.iterdir()} == {"job.darshan", "twin", "r.capture"}
    assert main(["merge", str(log), "-o", str(tmp_path / "job.capture")]) == 0
    assert rows(open_capture(tmp_path / "r.capture")) == rows(open_capture(tmp_path / "job.capture"))


@needs_mpi
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--part", "ranks=7"], "job.darshan has no rank 7"),
        (["--pace", "steps"], "--profile DIR"),
        ([], "cut.darshan"),
    ],
)
def test_under_mpiexec_an_error_is_told_once(log: Path, tmp_path: Path, more: list[str], message: str) -> None:
    if "cut" in message:
        log = log.rename(tmp_path / "cut.darshan")
        log.write_bytes(log.read_bytes()[:JOB_RECORD_AT])
    done = under_mpi(run_command(log, tmp_path / "r.capture", *more), 3)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("dxt-replay: error: ")
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == [log.name]


@needs_mpi
@pytest.mark.parametrize(("receiver", "ending"), [(0, "SIGTERM"), (1, "SIGTERM"), (1, "SIGINT")])
def test_under_mpiexec_a_signal_while_merging_leaves_nothing(
    log: Path, tmp_path: Path, receiver: int, ending: str
) -> None:
    first = f"""
folder = Path({str(tmp_path)!r})
def without_end(path):
    while True:
        time.sleep(0.01)
merging = before("os.rename", "*/capture.json", without_end)
merging.__enter__()
def send_when_merging():
    while not list(folder.glob(".r.capture.*/.job.capture.*/.capture.json.new")):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.{ending})
if rank == {receiver}:
    threading.Thread(target=send_when_merging, daemon=True).start()
"""
    done = under_mpi(run_command(log, tmp_path / "r.capture"), 3, first)
    assert done.returncode != 0
    assert f"process {receiver} received a signal to stop and ends the replay" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["job.darshan"]


def test_a_process_that_ignores_hangups_goes_on_ignoring_them(log: Path, tmp_path: Path) -> None:
    """As under nohup."""
    (tmp_path / "twin").mkdir(exist_ok=True)
    assert main(["stage", str(log), "--target", str(tmp_path / "twin")]) == 0
    program = f"""
import signal, sys
from dxt_replay.replay.commands.main import main
from tests.auditing import before
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with before("os.rename", "*/capture.json", lambda _: signal.raise_signal(signal.SIGHUP)):
    sys.exit(main({run_command(log, tmp_path / "r.capture")!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert open_capture(tmp_path / "r.capture").operation_count() >= OPERATIONS
