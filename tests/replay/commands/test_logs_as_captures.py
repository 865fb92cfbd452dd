"""A Darshan log where a capture is asked for: merged on the fly, by one process for all, and nothing of it stays."""

import hashlib
import json
import signal
import subprocess
import sys
import tempfile

import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import open_capture
from tests.auditing import before, captures_made
from tests.capture_builder import build_capture, read
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log
from tests.places import MPIEXEC, ROOT, needs_mpi

JOB_RECORD_AT = 1340
"""Bytes of a log up to its job record, without which none is read."""
OPERATIONS = 2 * (20 + 3)
"""Traced reads and writes in `log`."""
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 128 + 15, signal.SIGHUP: 128 + 1}


@pytest.fixture
def log(tmp_path):
    """Two ranks read one file together, and each writes one of its own; a twin of it is staged."""
    records = []
    for rank in range(2):
        reads = [(4096 * (2 * i + rank), 4096, 0.01 * i, 0.01 * i + 0.002) for i in range(20)]
        writes = [(1000 * i, 1000, 0.3 + 0.01 * i, 0.301 + 0.01 * i) for i in range(3)]
        records.append(DxtRecord(record_id=1, rank=rank, reads=reads))
        records.append(DxtRecord(record_id=2 + rank, rank=rank, writes=writes))
    names = {1: b"/data/train.bin", 2: b"/out/0.bin", 3: b"/out/1.bin"}
    made = write_dxt_log(
        tmp_path / "job.darshan", records, names=names, job=JobSpec(nprocs=2, start_s=1000, end_s=1001)
    )
    (tmp_path / "twin").mkdir()
    assert main(["stage", str(made), "--target", str(tmp_path / "twin"), "-q"]) == 0
    return made


@pytest.fixture
def system_temporary(tmp_path_factory, monkeypatch):
    """The system's temporary directory, empty."""
    folder = tmp_path_factory.mktemp("system")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def run_of(source, *more):
    folder = source.parent
    return ["run", str(source), "--target", f"{folder}/twin", "-o", f"{folder}/r.capture", "--pace", "none", *more]


def rows(capture):
    """What was done, without times."""
    columns = ["rank", "op", "file_id", "offset", "length"]
    return sorted(tuple(row.values()) for batch in capture.operations(columns=columns) for row in batch.to_pylist())


def test_a_log_and_the_capture_of_it_share_their_twin(log, tmp_path, say):
    """Staged from the one, replayed from the other, in both ways."""
    merged, sides = tmp_path / "job.capture", []
    say(f"merge {log} -o {merged}")
    for staged, replayed in ((log, merged), (merged, log)):
        side = tmp_path / f"staged-from-{staged.suffix[1:]}"
        (side / "twin").mkdir(parents=True)
        say(f"stage {staged} --target {side}/twin")
        sides.append({path.relative_to(side): path.read_bytes() for path in side.rglob("*") if path.is_file()})
        say(f"run {replayed} --target {side}/twin -o {side}/replay.capture --pace none")
        assert dxt_replay.compare(log, side / "replay.capture").verdict.exact == "pass"
        assert {path.name for path in side.iterdir()} == {"twin", "replay.capture"}
    assert sides[0] == sides[1]


def test_several_runs_share_one_merge_and_name_the_log_as_their_source(log, tmp_path):
    with captures_made() as made:
        assert main(run_of(log, "--repeat", "2")) == 0
    (merged,) = (path for path in made if path.name.startswith(".job.capture"))
    assert merged.parent.parent == tmp_path, "beside the replay, which all nodes share"
    assert {path.name for path in tmp_path.iterdir()} == {"job.darshan", "twin", "r.1.capture", "r.2.capture"}
    (source,) = open_capture(tmp_path / "r.2.capture").info.sources
    assert (source.name, source.kind) == ("job.darshan", "darshan")
    assert source.sha256 == hashlib.sha256(log.read_bytes()).hexdigest()


ERRORS = """
stage LOG --target twin --part ranks=7 => LOG has no rank 7
run LOG --target twin -o r.capture --part ranks=7 => LOG has no rank 7
run LOG --target twin -o r.capture --part steps=1-2 => LOG has no step
run LOG --target nowhere -o r.capture => nowhere does not exist
run CUT --target twin -o r.capture => cut.darshan
run none.darshan --target twin -o r.capture => none.darshan
run LOG --target twin -o LOG => is not a capture: choose another name
stage CUT --target twin => cut.darshan
compare LOG CUT => cut.darshan
"""


def test_an_error_names_the_log_and_leaves_nothing(log, tmp_path, system_temporary, monkeypatch, say):
    cut = tmp_path / "cut.darshan"
    cut.write_bytes(log.read_bytes()[:JOB_RECORD_AT])
    monkeypatch.chdir(tmp_path)
    there = sorted(tmp_path.iterdir())
    for row in ERRORS.strip().splitlines():
        line, message = row.replace("LOG", str(log)).replace("CUT", str(cut)).split(" => ")
        say(line, status=2)
        assert message in say.err
        assert len(say.err.splitlines()) == 1
        assert sorted(tmp_path.iterdir()) == there
        assert not list(system_temporary.iterdir())


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda at, log: dxt_replay.run(log, at, at / "there.capture"), "exists"),
        (lambda at, log: dxt_replay.run_repeatedly(log, at, at / "a.capture", 2, api="x"), "api 'x'"),
        (lambda at, log: dxt_replay.run(log, at, at / "a.capture", speed=-1.0), "--speed -1"),
        (lambda at, log: dxt_replay.run(log, at, at / "a.capture", pace="steps"), "no training steps"),
        (lambda at, log: dxt_replay.regress(log, at, at, pace="now"), "pace 'now'"),
    ],
)
def test_what_can_be_refused_is_refused_before_a_log_is_read(refused, message, tmp_path):
    """The log is damaged, which nobody comes to see."""
    (tmp_path / "job.darshan").write_bytes(b"damaged")
    build_capture(tmp_path, name="there", files=["/a"], ops=[read(0, length=1)])
    with pytest.raises(dxt_replay.DxtReplayError, match=message):
        refused(tmp_path, tmp_path / "job.darshan")


# ------------------------------------------------------------------------------------------- ended before its time
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", ["run", "stage", "summary", "merge"])
def test_a_signal_while_merging_leaves_nothing(log, command, number, tmp_path, system_temporary):
    words = {"stage": ["--target", system_temporary], "summary": [], "merge": ["-o", tmp_path / "c.capture"]}
    arguments = run_of(log) if command == "run" else [command, str(log), *map(str, words[command])]
    met = []

    def interrupt(path):
        met.append(path)
        signal.raise_signal(number)

    handlers = [signal.getsignal(each) for each in SIGNALS]
    with before("os.rename", "*/capture.json", interrupt):
        assert main(arguments) == SIGNALS[number]
    assert len(met) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"job.darshan", "twin"}
    assert not list(system_temporary.iterdir())
    assert [signal.getsignal(each) for each in SIGNALS] == handlers


def program_of(first, words, of="replay.commands.main"):
    """A program that does `first` before the command, whose `main` is that of a module."""
    return f"""
import os, signal, sys, tempfile, threading, time
from pathlib import Path
from tests.auditing import before
{first}
from dxt_replay.{of} import main
sys.argv[1:] = {list(map(str, words))!r}
sys.exit(main())
"""


def ended(program, processes=0):
    """What the program came to, in so many processes under mpiexec."""
    launcher = [str(MPIEXEC), "-n", str(processes)] if processes else []
    command = [*launcher, sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_process_that_ignores_hangups_goes_on_ignoring_them(log, tmp_path):
    """As under nohup."""
    first = """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
hanging_up = before("os.rename", "*/capture.json", lambda _: signal.raise_signal(signal.SIGHUP))
hanging_up.__enter__()
"""
    done = ended(program_of(first, run_of(log)))
    assert done.returncode == 0, done.stderr
    assert open_capture(tmp_path / "r.capture").operation_count() >= OPERATIONS


# ----------------------------------------------------------------------------------------------------- under mpiexec
RANK = "from dxt_replay.replay.ranks.mpi import connect\nrank = connect().rank\n"


@needs_mpi
def test_one_process_merges_for_all(log, tmp_path, tmp_path_factory, say):
    nodes = tmp_path_factory.mktemp("nodes")
    # Each process has a temporary directory of its own, as on nodes of their own.
    first = f"""{RANK}
tempfile.tempdir = {str(nodes)!r} + f"/{{rank}}"
os.mkdir(tempfile.tempdir)
noting = before("os.mkdir", "*/.job.capture.*", lambda _: (Path(tempfile.gettempdir()) / "merged").touch())
noting.__enter__()
"""
    done = ended(program_of(first, run_of(log, "--json")), 3)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["processes"], found["failed"]) == (3, 0)
    assert [str(path.relative_to(nodes)) for path in nodes.rglob("*") if path.is_file()] == ["0/merged"]
    assert {path.name for path in tmp_path.iterdir()} == {"job.darshan", "twin", "r.capture"}
    say(f"merge {log} -o {tmp_path}/job.capture")
    assert rows(open_capture(tmp_path / "r.capture")) == rows(open_capture(tmp_path / "job.capture"))


@needs_mpi
@pytest.mark.parametrize(
    ("more", "message"),
    [(["--part", "ranks=7"], "job.darshan has no rank 7"), (["--pace", "steps"], "--profile DIR"), ([], "cut.darshan")],
)
def test_under_mpiexec_an_error_is_told_once(log, tmp_path, more, message):
    if "cut" in message:
        log = log.rename(tmp_path / "cut.darshan")
        log.write_bytes(log.read_bytes()[:JOB_RECORD_AT])
    done = ended(program_of("", run_of(log, *more)), 3)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("dxt-replay: error: ")
    assert message in line
    assert {path.name for path in tmp_path.iterdir()} == {log.name, "twin"}


@needs_mpi
@pytest.mark.parametrize(("receiver", "ending"), [(0, "SIGTERM"), (1, "SIGINT")])
def test_under_mpiexec_a_signal_while_merging_leaves_nothing(log, tmp_path, receiver, ending):
    first = f"""{RANK}
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
    done = ended(program_of(first, run_of(log)), 3)
    assert done.returncode != 0
    assert f"process {receiver} received a signal to stop and ends the replay" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"job.darshan", "twin"}


@needs_mpi
@pytest.mark.parametrize(("event", "name"), [("import", "mpi4py"), ("import", "dxt_replay.replay.run.story")])
def test_a_ctrl_c_in_one_process_ends_all_of_them(log, tmp_path, event, name):
    """One that leaves before the start of MPI, or while it joins the others, once left those in MPI for ever."""
    first = f"""
def interrupted(path):
    if os.environ["PMI_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGINT)
ending = before({event!r}, {name!r}, interrupted)
ending.__enter__()
"""
    done = ended(program_of(first, run_of(log), of="__main__"), 2)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r.capture").exists()
