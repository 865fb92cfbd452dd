import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.ranks.comm import Solo, first_does, is_known_to_all, share_of
from dxt_replay.replay.ranks.mpi_world import connect
from dxt_replay.traces.errors import TargetError

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


@given(st.integers(0, 200), st.integers(1, 40))
def test_each_rank_is_replayed_once_and_the_shares_are_even(ranks, processes):
    shares = [share_of(range(ranks), process, processes) for process in range(processes)]
    assert [rank for share in shares for rank in share] == list(range(ranks))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_without_a_launcher_one_process_is_alone():
    comm = connect({})
    assert isinstance(comm, Solo)
    assert (comm.rank, comm.size, comm.gather("x"), comm.broadcast(3)) == (0, 1, ["x"], 3)
    assert comm.common_start_ns(10**9) > time.monotonic_ns()


def test_alone_an_error_is_raised_as_it_is():
    error = TargetError("no room")
    with pytest.raises(TargetError, match="no room"):
        Solo().agree(error)
    Solo().agree(None)


def test_alone_the_first_does_it_and_its_error_is_known():
    def fails():
        raise TargetError("no room")

    assert first_does(Solo(), lambda: 3) == 3
    with pytest.raises(TargetError, match="no room") as raised:
        first_does(Solo(), fails)
    assert is_known_to_all(raised.value)


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: install the mpich wheel")
def test_under_mpiexec_the_first_does_it_for_all():
    program = """
import os
from dxt_replay.replay.ranks.comm import first_does
from dxt_replay.replay.ranks.mpi_world import connect
from dxt_replay.traces.errors import DxtReplayError, TargetError
comm = connect()
values = comm.gather(first_does(comm, os.getpid))
def fails():
    assert comm.rank == 0
    raise TargetError("no room")
try:
    first_does(comm, fails)
    outcome = "nothing raised"
except DxtReplayError as error:
    outcome = str(error)
outcomes = comm.gather(outcome)
if comm.rank == 0:
    assert values == [os.getpid()] * 3, values
    assert outcomes == ["no room"] + ["process 0: no room"] * 2, outcomes
    print("all agreed on", comm.size)
"""
    done = subprocess.run(
        [MPIEXEC, "-n", "3", sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "all agreed on 3"


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: install the mpich wheel")
def test_a_launcher_of_another_mpi_is_told():
    program = "from dxt_replay.replay.ranks.mpi_world import connect; connect()"
    environment = {**os.environ, "OMPI_COMM_WORLD_SIZE": "2"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0
    assert "different MPIs" in done.stderr


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: install the mpich wheel")
def test_under_mpiexec_all_processes_share_one_start_and_one_error():
    program = """
from dxt_replay.replay.ranks.mpi_world import connect
from dxt_replay.traces.errors import ReplayError, TargetError
comm = connect()
starts = comm.gather(comm.common_start_ns(10**8))
first = comm.gather(comm.first_on_node())
assert comm.processes_on_node() == comm.size
try:
    comm.agree(TargetError("no room") if comm.rank == 1 else None)
    outcome = "nothing raised"
except TargetError as error:
    outcome = f"own {error}"
except ReplayError as error:
    outcome = f"told {error}"
outcomes = comm.gather(outcome)
if comm.rank == 0:
    assert len(set(starts)) == 1, starts
    assert first == [True, False, False], first
    assert outcomes == ["told process 1: no room", "own no room", "told process 1: no room"], outcomes
    print("all agreed on", comm.size)
"""
    done = subprocess.run(
        [MPIEXEC, "-n", "3", sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "all agreed on 3"
