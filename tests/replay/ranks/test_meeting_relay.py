"""Arrivals at collectives travel between nodes; what cannot work is an error, and never a run that waits for ever."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dxt_replay.replay.engine.clock import ARRIVALS, OWN_ARRIVALS, Counters, StopFlag
from dxt_replay.replay.ranks.mpi import MeetingRelay, NodeLeaders
from dxt_replay.traces.errors import ReplayError
from tests.places import MPIEXEC, ROOT, needs_mpi

PROGRAM = """
import mpi4py
{before}
import sys
from dxt_replay.replay.ranks import mpi
from pathlib import Path
from dxt_replay.replay.commands.session import ending_together
from dxt_replay.replay.run.story import run_replay
from tests.replay.causal.test_paced_ranks import options
from dxt_replay.traces.errors import DxtReplayError
from dxt_replay.traces.store.reader import open_capture
world = mpi.connect()
mpi.node_id = lambda: str(world.rank)  # as if each process were on a node of its own
{after}
folder = Path({folder!r})
try:
    with ending_together(world):
        run_replay(open_capture(folder / "source.capture"), folder / "replay.capture", options(folder), world)
except DxtReplayError as error:
    sys.exit(f"error: {{error}}")
"""


class Channel:
    """Two nodes, of which this is the first: `incoming` is what the other one sends."""

    def __init__(self, incoming: list[int]) -> None:
        self.incoming = incoming
        self.sent: list[int] = []
        self.at_its_end = threading.Event()

    def Get_size(self) -> int:
        return 2

    def Get_rank(self) -> int:
        return 0

    def iprobe(self) -> bool:
        return bool(self.incoming)

    def recv(self) -> int:
        if len(self.incoming) == 1:
            self.at_its_end.set()
        return self.incoming.pop(0)

    def send(self, arrived: int, dest: int) -> None:
        self.sent.append(arrived)


class Broken(Channel):
    """A network that went away."""

    def iprobe(self) -> bool:
        self.at_its_end.set()
        raise RuntimeError("network is down")


def relay_of(channel: Channel, stop: StopFlag, counters: Counters | None = None) -> MeetingRelay:
    leaders = NodeLeaders(channel=channel, any_thread=True)
    return MeetingRelay(leaders, counters or Counters.of(2), ranks=2, stop=stop)


def test_arrivals_travel_both_ways() -> None:
    counters, channel, stop = Counters.of(2), Channel([1, 2]), StopFlag()
    relay = relay_of(channel, stop, counters)
    counters.add(OWN_ARRIVALS, 3, 1, 0)
    relay.start()
    channel.at_its_end.wait()
    relay.stop()
    relay.check()
    assert counters.value(ARRIVALS) == 3
    assert channel.sent == [3]
    assert not stop.is_set()


def test_a_relay_that_fails_stops_the_lanes_and_says_why() -> None:
    stop, channel = StopFlag(), Broken([])
    relay = relay_of(channel, stop)
    relay.start()
    channel.at_its_end.wait()
    relay.stop()
    assert stop.is_set()
    with pytest.raises(ReplayError, match=r"relay of collectives between the nodes failed \(network is down\)"):
        relay.check()


def run_on_two_nodes(folder: Path, *, before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
    from tests.replay.causal.test_paced_ranks import SMALL, source_of

    source_of(folder, dataclasses.replace(SMALL, ranks=2))
    program = PROGRAM.format(before=before, after=after, folder=str(folder))
    command = [str(MPIEXEC), "-n", "2", sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)


@needs_mpi
def test_without_thread_multiple_the_run_is_refused_before_it_begins(tmp_path: Path) -> None:
    done = run_on_two_nodes(tmp_path, before='mpi4py.rc.thread_level = "serialized"')
    assert done.returncode != 0
    assert "MPI_THREAD_MULTIPLE" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "replay.capture").exists()


@needs_mpi
def test_a_run_whose_relay_fails_ends_with_its_error(tmp_path: Path) -> None:
    broken = """
import dataclasses
original = world.counters
class Channel:
    def __getattr__(self, name):
        raise RuntimeError("network is down")
def counters(own, common):
    shared = original(own, common)
    if world.rank:
        return shared
    return dataclasses.replace(shared, leaders=shared.leaders._replace(channel=Channel()))
world.counters = counters
"""
    done = run_on_two_nodes(tmp_path, after=broken)
    assert done.returncode != 0
    assert "network is down" in done.stderr
    assert not (tmp_path / "replay.capture").exists()


@needs_mpi
def test_what_a_run_shares_between_nodes_is_freed_with_it(tmp_path: Path) -> None:
    after = f"""
from mpi4py import MPI
folder = Path({str(tmp_path)!r})
shared = []
original = world.counters
world.counters = lambda own, common: shared.append(original(own, common)) or shared[-1]
for number in range(2):
    run_replay(open_capture(folder / "source.capture"), folder / f"replay-{{number}}.capture", options(folder), world)
assert [one.leaders.channel == MPI.COMM_NULL for one in shared] == [True, True]
"""
    done = run_on_two_nodes(tmp_path, after=after)
    assert done.returncode == 0, done.stderr
