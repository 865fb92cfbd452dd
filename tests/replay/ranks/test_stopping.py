"""The end of a run before its time: by a signal to one of its processes, by an error, by the death of one."""

import json
import os
import signal
import subprocess
import sys

import pytest

from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.ranks.death_watch import DeathWatch
from dxt_replay.replay.ranks.mpi import Solo
from dxt_replay.replay.ranks.stopping import HEED_PERIOD_NS, StopRelay, Terminated, stop_on_signals, unwind_on_signals
from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.store.reader import open_capture
from tests.capture_builder import build_capture, read
from tests.fakes import FakeClock
from tests.places import MPIEXEC, needs_mpi

NS_PER_S = 1_000_000_000
MINUTE = 60 * NS_PER_S
needs_pidfd = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system cannot watch processes")


class Told(Solo):
    """A communicator that notes what it is asked to tell; `others`: whether another process was told to stop."""

    others, told, polls = False, 0, 0

    def tell_stop(self):
        self.told += 1

    def told_to_stop(self):
        return self.others

    def arrive(self):
        def all_there():
            self.polls += 1
            return self.polls > 2

        return all_there

    def end_of_notices(self):
        return self.others or self.told > 0


@pytest.fixture
def clock(monkeypatch):
    """The clock of those who stop."""
    clock = FakeClock(read_ns=0)
    monkeypatch.setattr("dxt_replay.replay.ranks.stopping.time", clock)
    return clock


def test_a_stop_is_passed_on_once_and_others_are_asked_after_a_period(clock):
    stop, comm = StopFlag(), Told()
    relay = StopRelay(stop, comm)
    relay.heed()
    comm.others = True
    relay.heed()
    assert not stop.is_set()
    clock.time_ns += HEED_PERIOD_NS
    relay.heed()
    assert (comm.told, stop.is_set()) == (0, True)
    stop, comm = StopFlag(), Told()
    stop.set()
    relay = StopRelay(stop, comm)
    relay.meet()
    assert (comm.told, comm.polls) == (1, 3), "a process that waits for the others still tells them"
    clock.time_ns += HEED_PERIOD_NS
    relay.heed()
    assert comm.told == 1


@pytest.mark.parametrize(("error", "met"), [(ReplayError("no room"), True), (ZeroDivisionError(), False)])
def test_a_known_error_waits_for_the_others_a_bug_does_not(clock, error, met):
    comm = Told()

    def work():
        raise error

    with pytest.raises(type(error)):
        StopRelay(StopFlag(), comm).then_meet(work)
    assert bool(comm.polls) is met


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


def run_under_mpi(source, first):
    """Run the command in three processes that execute `first` before; `rank` is their number, `main` the program.

    There, `all_have_read` says whether every process has done an operation and looked for a notice since.
    """
    arguments = ["run", str(source), "--target", str(source.parent / "twin"), "-o", str(source.parent / "r.capture")]
    told = source.parent / "told"
    told.mkdir()
    program = f"""
import os, signal, sys
from pathlib import Path
from dxt_replay.replay.run import feeder
from dxt_replay.replay.ranks import stopping
from dxt_replay.replay.ranks.mpi import connect
from dxt_replay.replay.commands.main import main
rank = connect().rank
current = []
feeder_run = feeder.Feeder.run
def run(feeding, *arguments, **options):
    current.append(feeding)
    feeder_run(feeding, *arguments, **options)
feeder.Feeder.run = run
look = stopping.StopRelay.heed
def telling(relay):
    if current and current[0].operations_done:
        Path({str(told)!r}, str(rank)).touch()
    look(relay)
stopping.StopRelay.heed = telling
all_have_read = lambda: len(os.listdir({str(told)!r})) == 3
{first}
sys.exit(main({[*arguments, "--json"]!r}))
"""
    command = [str(MPIEXEC), "-n", "3", sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


SIGNAL_WHEN_ALL_HAVE_READ = """
sent = []
def signalling(relay):
    telling(relay)
    if rank == {rank} and not sent and all_have_read(){more}:
        sent.append(os.kill(os.getpid(), signal.{name}))
stopping.StopRelay.heed = signalling
"""
# Rank 1 has done its only operation, and looks from within `meet`.
WAITING = """
meet = stopping.StopRelay.meet
meeting = []
def noted(relay):
    meeting.append(1)
    meet(relay)
stopping.StopRelay.meet = noted
"""


@needs_mpi
@pytest.mark.parametrize(("name", "rank"), [("SIGTERM", 0), ("SIGTERM", 1), ("SIGINT", 2)])
def test_a_signal_to_one_process_ends_all_and_leaves_a_partial_capture(tmp_path, name, rank):
    more = " and meeting" if rank == 1 else ""
    program = WAITING + SIGNAL_WHEN_ALL_HAVE_READ.format(rank=rank, name=name, more=more)
    done = run_under_mpi(long_capture(tmp_path).path, program)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert (document["stopped"], document["operations"]) == (True, 3)
    replay = open_capture(tmp_path / "r.capture")
    assert replay.info.partial
    assert [replay.operation_count(rank) for rank in replay.ranks] == [1, 1, 1]


@needs_mpi
@pytest.mark.parametrize(
    ("program", "said"),
    [
        pytest.param(
            SIGNAL_WHEN_ALL_HAVE_READ.format(rank=rank, name="SIGKILL", more=""),
            f"error: process {rank} of 3 (PID ",
            marks=needs_pidfd,
        )
        for rank in (0, 1)
    ]
    + [("if rank == 2: feeder.FedLane.pump = lambda lane: 1 / 0", "process 2 failed and ends the replay")],
)
def test_a_process_that_dies_or_has_a_bug_ends_the_others_and_is_named(tmp_path, program, said):
    done = run_under_mpi(long_capture(tmp_path).path, program)
    assert done.returncode != 0
    assert said in done.stderr
    assert ("ZeroDivisionError" in done.stderr) == ("failed" in said), "a bug keeps its traceback"
    assert not (tmp_path / "r.capture").exists()
