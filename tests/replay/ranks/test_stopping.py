"""The end of a run before its time: by a signal to one of its processes, by an error, by the death of one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.ranks.mpi import Solo
from dxt_replay.replay.ranks.stopping import HEED_PERIOD_NS, StopRelay, Terminated, stop_on_signals, unwind_on_signals
from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import build_capture, read
from tests.fakes import FakeClock
from tests.places import MPIEXEC, needs_mpi

NS_PER_S = 1_000_000_000
MINUTE = 60 * NS_PER_S


class Told(Solo):
    """A communicator that notes what it is asked to tell; `others`: whether another process was told to stop."""

    def __init__(self, others: bool = False) -> None:
        self.others = others
        self.told = 0
        self.polls = 0

    def tell_stop(self) -> None:
        self.told += 1

    def told_to_stop(self) -> bool:
        return self.others

    def arrive(self) -> Callable[[], bool]:
        def all_there() -> bool:
            self.polls += 1
            return self.polls > 2

        return all_there

    def end_of_notices(self) -> bool:
        return self.others or self.told > 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The clock of those who stop."""
    clock = FakeClock(read_ns=0)
    monkeypatch.setattr("dxt_replay.replay.ranks.stopping.time", clock)
    return clock


def test_a_stop_is_passed_on_once_and_others_are_asked_after_a_period(clock: FakeClock) -> None:
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
def test_a_known_error_waits_for_the_others_a_bug_does_not(clock: FakeClock, error: Exception, met: bool) -> None:
    comm = Told()

    def work() -> None:
        raise error

    with pytest.raises(type(error)):
        StopRelay(StopFlag(), comm).then_meet(work)
    assert bool(comm.polls) is met


def test_the_first_signal_stops_the_run_and_a_later_one_the_process(clock: FakeClock) -> None:
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
def test_a_signal_unwinds_and_its_echo_does_not_disturb_the_clearing_up(
    clock: FakeClock, number: signal.Signals, raised: type[BaseException]
) -> None:
    before, cleared = signal.getsignal(number), []

    @unwind_on_signals()
    def hold_something() -> None:
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
    if raised is Terminated:
        assert ended.value.code == 128 + number


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with unwind_on_signals():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def long_capture(folder: Path, ranks: int = 3) -> Capture:
    """A read at once and one after a minute on each rank, but only the first on rank 1."""
    ops = [read(0, rank=rank, start_ns=at, length=10) for rank in range(ranks) for at in (0, MINUTE)[: 2 - (rank == 1)]]
    source = build_capture(folder, ops=ops, files=["/a"], name="source")
    stage(plan_stage(source, folder / "twin"))
    return source


def run_under_mpi(source: Path, first: str, processes: int = 3) -> subprocess.CompletedProcess[str]:
    """Run the command in processes that execute `first` before; `rank` is their number, `main` the program.

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
all_have_read = lambda: len(os.listdir({str(told)!r})) == {processes}
{first}
sys.exit(main({[*arguments, "--json"]!r}))
"""
    command = [str(MPIEXEC), "-n", str(processes), sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


SIGNAL_WHEN_ALL_HAVE_READ = """
sent = []
def signalling(relay):
    telling(relay)
    if rank == {rank} and not sent and all_have_read():
        sent.append(os.kill(os.getpid(), signal.{name}))
stopping.StopRelay.heed = signalling
"""


@needs_mpi
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_signal_to_one_process_ends_all_and_leaves_a_partial_capture(tmp_path: Path, name: str, rank: int) -> None:
    source = long_capture(tmp_path)
    done = run_under_mpi(source.path, SIGNAL_WHEN_ALL_HAVE_READ.format(rank=rank, name=name))
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert (document["stopped"], document["operations"]) == (True, 3)
    replay = open_capture(tmp_path / "r.capture")
    assert replay.info.partial
    assert [replay.operation_count(rank) for rank in replay.ranks] == [1, 1, 1]


@needs_mpi
def test_a_signal_reaches_a_process_that_waits_for_the_others(tmp_path: Path) -> None:
    source = long_capture(tmp_path)
    # Rank 1 has done its only operation, and looks from within `meet`.
    waiting = """
meet = stopping.StopRelay.meet
meeting = []
def noted(relay):
    meeting.append(1)
    meet(relay)
stopping.StopRelay.meet = noted
"""
    signalling = SIGNAL_WHEN_ALL_HAVE_READ.format(rank=1, name="SIGTERM")
    done = run_under_mpi(source.path, waiting + signalling.replace("all_have_read()", "meeting and all_have_read()"))
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["stopped"]
    assert open_capture(tmp_path / "r.capture").operation_count() == 3


@needs_mpi
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system cannot watch processes")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_ends_the_others_and_is_named(tmp_path: Path, rank: int) -> None:
    source = long_capture(tmp_path)
    done = run_under_mpi(source.path, SIGNAL_WHEN_ALL_HAVE_READ.format(rank=rank, name="SIGKILL"))
    assert done.returncode != 0
    assert f"error: process {rank} of 3 (PID " in done.stderr
    assert not (tmp_path / "r.capture").exists()


@needs_mpi
def test_a_bug_in_one_process_ends_all_and_keeps_its_traceback(tmp_path: Path) -> None:
    source = long_capture(tmp_path)
    broken = """
if rank == 2:
    feeder.FedLane.pump = lambda lane: 1 / 0
"""
    done = run_under_mpi(source.path, broken)
    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr
    assert "process 2 failed and ends the replay" in done.stderr
