"""The end of a run before its time: by a signal to one of its processes, by an error, by the death of one."""

import json
import os
import signal
import subprocess
import sys

import pytest

from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.ranks.death_watch import DeathWatch
from dxt_replay.replay.ranks.stopping import Terminated, stop_on_signals, unwind_on_signals
from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.store.reader import open_capture
from tests.capture_builder import build_capture, read
from tests.fakes import FakeClock
from tests.places import MPIEXEC, needs_mpi

NS_PER_S = 1_000_000_000
MINUTE = 60 * NS_PER_S
needs_pidfd = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system cannot watch processes")


@pytest.fixture
def clock(monkeypatch):
    """The clock of those who stop."""
    clock = FakeClock(read_ns=0)
    monkeypatch.setattr("dxt_replay.replay.ranks.stopping.time", clock)
    return clock


def test_the_first_signal_stops_the_run_and_a_later_one_the_process(clock):
    stop = StopFlag()
    with stop_on_signals(stop):
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        clock.time_ns += NS_PER_S // 2  # the launcher passes on what the terminal has sent already
        signal.raise_signal(signal.SIGINT)
        clock.time_ns += 2 * NS_PER_S
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated), (signal.SIGHUP, Terminated)],
)
def test_a_signal_unwinds_and_its_echo_does_not_disturb_the_clearing_up(clock, number, raised):
    before, cleared = signal.getsignal(number), []

    @unwind_on_signals()
    def hold_something():
        try:
            signal.raise_signal(number)
        finally:
            clock.time_ns += NS_PER_S // 2
            signal.raise_signal(number)
            cleared.append(True)

    with pytest.raises(raised) as ended:
        hold_something()
    assert cleared
    assert signal.getsignal(number) == before
    assert raised is KeyboardInterrupt or ended.value.code == 128 + number
    signal.signal(number, signal.SIG_IGN)
    try:
        with unwind_on_signals():
            signal.raise_signal(number)  # what is ignored stays ignored
    finally:
        signal.signal(number, before)


@pytest.fixture
def processes():
    """Three that last until they are killed."""
    command = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
    started = [subprocess.Popen(command) for _ in range(3)]
    yield started
    for process in started:
        process.kill()
        process.wait()


@needs_pidfd
@pytest.mark.parametrize(
    ("watcher", "killed", "named"),
    [
        # Of several that have died when the watcher gets a processor, the first is named.
        ("is held", (0, 1, 2), 0),
        ("is held", (1, 0, 2), 1),
        ("is held", (2, 1, 0), 2),
        ("is held and dismissed", (0, 1, 2), None),
        # The end of the watching process leaves the others to be named.
        ("is alone", (2,), 2),
        # An interrupt reaches all processes, and does not end the watch.
        ("is interrupted", (1,), 1),
    ],
)
def test_the_process_that_died_is_named(processes, watcher, killed, named, capfd):
    watch = DeathWatch({process.pid: f"process {number}" for number, process in enumerate(processes)})
    child = watch._child
    assert child is not None
    assert child.stdin is not None
    os.kill(child.pid, signal.SIGSTOP if "held" in watcher else 0)
    os.kill(child.pid, signal.SIGINT if "interrupted" in watcher else 0)
    if "dismissed" in watcher:
        child.stdin.write(b"x")
        child.stdin.flush()
    if "alone" in watcher:
        child.stdin.close()
    for number in killed:
        processes[number].kill()
        processes[number].wait()
    os.kill(child.pid, signal.SIGCONT)
    if "alone" in watcher:
        child.wait()
    else:
        watch.dismiss()  # too late for those that had died before
    died = "" if named is None else f"dxt-replay: error: process {named} died, which ends the replay\n"
    assert capfd.readouterr().err == died


def long_capture(folder):
    """A read at once and one after a minute on each of three ranks, but only the first on rank 1."""
    ops = [
        read(0, rank=rank, start_ns=at, length=10) for rank, at in ((0, 0), (0, MINUTE), (1, 0), (2, 0), (2, MINUTE))
    ]
    source = build_capture(folder, ops=ops, files=["/a"], name="source")
    stage(plan_stage(source, folder / "twin"))
    return source


PROGRAM = """
import os, signal, sys
from pathlib import Path
from dxt_replay.replay.run import feeder
from dxt_replay.replay.ranks import stopping
from dxt_replay.replay.ranks.mpi import connect
from dxt_replay.replay.commands.main import main
rank, told, sent = connect().rank, Path(sys.argv[1]), []
current, waiting = [], []  # the feeder that runs, and whether it has done all and looks for notices from within `meet`

def noted(place, noted_in, real):
    def call(*arguments, **options):
        noted_in.append(arguments[0])
        real(*arguments, **options)
    setattr(*place, call)

noted((feeder.Feeder, "run"), current, feeder.Feeder.run)
noted((stopping.StopRelay, "meet"), waiting, stopping.StopRelay.meet)
look = stopping.StopRelay.heed

def heed(relay):
    if current and current[0].operations_done:
        (told / str(rank)).touch()
    look(relay)
    # Every process has done an operation and looked for a notice since.
    if len(os.listdir(told)) == 3 and not sent and EVENT:
        sent.append(os.kill(os.getpid(), signal.SIGNAL))

stopping.StopRelay.heed = heed
if rank == BROKEN:
    feeder.FedLane.pump = lambda lane: 1 / 0
sys.exit(main(sys.argv[2:]))
"""


def run_under_mpi(folder, event, name, broken=None):
    """Run the command in three processes, where `event` sends a signal; process `broken` has a bug."""
    source, told = long_capture(folder).path, folder / "told"
    told.mkdir()
    program = PROGRAM.replace("EVENT", event).replace("SIGNAL", name).replace("BROKEN", str(broken))
    words = ["run", source, "--target", folder / "twin", "-o", folder / "r.capture", "--json"]
    command = [MPIEXEC, "-n", "3", sys.executable, "-c", program, told, *words]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=120)


@needs_mpi
@pytest.mark.parametrize(("event", "name"), [("rank == 0", "SIGINT"), ("rank == 1 and waiting", "SIGTERM")])
def test_a_signal_to_one_process_ends_all_and_leaves_a_partial_capture(tmp_path, event, name):
    done = run_under_mpi(tmp_path, event, name)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert (document["stopped"], document["operations"]) == (True, 3)
    replay = open_capture(tmp_path / "r.capture")
    assert replay.info.partial
    assert [replay.operation_count(rank) for rank in replay.ranks] == [1, 1, 1]


@needs_mpi
@pytest.mark.parametrize(
    ("event", "broken", "said"),
    [
        # The first process has the watcher of its node, whose death is named all the same.
        pytest.param("rank == 0", None, "error: process 0 of 3 (PID ", marks=needs_pidfd),
        ("False", 2, "process 2 failed and ends the replay"),
    ],
)
def test_a_process_that_dies_or_has_a_bug_ends_the_others_and_is_named(tmp_path, event, broken, said):
    done = run_under_mpi(tmp_path, event, "SIGKILL", broken)
    assert done.returncode != 0
    assert said in done.stderr
    assert ("ZeroDivisionError" in done.stderr) == ("failed" in said), "a bug keeps its traceback"
    assert not (tmp_path / "r.capture").exists()
