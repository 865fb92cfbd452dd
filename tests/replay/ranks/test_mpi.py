"""What the processes of a replay agree on: one alone, several under mpiexec, and launchers that cannot work."""

import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.ranks.mpi import Solo, connect, first_does, is_known_to_all, share_of
from dxt_replay.traces.errors import TargetError
from tests.places import MPIEXEC, ROOT, needs_mpi


@given(st.integers(0, 200), st.integers(1, 40))
def test_each_rank_is_replayed_once_and_the_shares_are_even(ranks, processes):
    shares = [share_of(range(ranks), process, processes) for process in range(processes)]
    assert [rank for share in shares for rank in share] == list(range(ranks))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_without_a_launcher_one_process_is_alone():
    comm, error = connect({}), TargetError("no room")

    def fails():
        raise error

    assert type(comm) is Solo
    assert (comm.rank, comm.size, comm.gather("x"), comm.broadcast(3), first_does(comm, lambda: 3)) == (
        0,
        1,
        ["x"],
        3,
        3,
    )
    assert comm.common_start_ns(10**9) > time.monotonic_ns()
    comm.agree(None)
    for raising in (lambda: comm.agree(error), lambda: first_does(comm, fails)):
        with pytest.raises(TargetError, match="no room") as raised:
            raising()
        assert is_known_to_all(raised.value)


AGREEING = """
import os
from dxt_replay.replay.ranks.mpi import connect, first_does, together
from dxt_replay.traces.errors import DxtReplayError, TargetError
comm = connect()

def met(work):
    try:
        work()
    except DxtReplayError as error:
        return f"{type(error).__name__} {error}"

def fails(rank):
    assert comm.rank == 0 or rank
    if comm.rank == rank:
        raise TargetError("no room")

values = comm.gather(first_does(comm, os.getpid))
starts, first = comm.gather(comm.common_start_ns(10**8)), comm.gather(comm.first_on_node())
assert comm.processes_on_node() == comm.size
of_first = comm.gather(met(lambda: first_does(comm, lambda: fails(0))))
of_all = comm.gather(met(lambda: together(comm, lambda: fails(1))))
if comm.rank == 0:
    assert values == [os.getpid()] * 3, values
    assert len(set(starts)) == 1, starts
    assert first == [True, False, False], first
    assert of_first == ["TargetError no room"] + ["ReplayError process 0: no room"] * 2, of_first
    assert of_all == ["ReplayError process 1: no room", "TargetError no room", "ReplayError process 1: no room"], of_all
    print("all agreed on", comm.size)
"""


@needs_mpi
def test_under_mpiexec_all_processes_share_one_start_one_result_and_one_error():
    command = [str(MPIEXEC), "-n", "3", sys.executable, "-c", AGREEING]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "all agreed on 3"


@needs_mpi
def test_a_launcher_of_another_mpi_is_told():
    program = "from dxt_replay.replay.ranks.mpi import connect; connect()"
    environment = {**os.environ, "OMPI_COMM_WORLD_SIZE": "2"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0
    assert "different MPIs" in done.stderr


CONNECTING = """
import os
# Not through the launcher, which may lose what a process wrote just before a signal ended it.
os.dup2(os.open("{errors}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
from dxt_replay.replay.ranks.mpi import connect
connect()
"""
SMALL = 'mount -t tmpfs -o size=1M tmpfs /dev/shm && exec "$0" -n 2 "$1" -c "$2"'


@needs_mpi
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
def test_too_little_shared_memory_is_said_before_it_kills(tmp_path):
    errors = tmp_path / "errors"
    command = ["unshare", "-m", "sh", "-c", SMALL, str(MPIEXEC), sys.executable, CONNECTING.format(errors=errors)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("cannot mount here")
    assert done.returncode != 0
    said = errors.read_text()
    assert said.count("dxt-replay: warning: /dev/shm has 1.00 MiB free") == 1
    assert "--shm-size" in said
