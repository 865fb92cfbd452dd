"""Processes of an MPI job: what they agree on, arrivals between nodes, launchers that cannot work, and as workers."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.engine.clock import ARRIVALS, OWN_ARRIVALS, Counters, StopFlag
from dxt_replay.replay.ranks.mpi import MeetingRelay, NodeLeaders, Solo, connect, first_does, is_known_to_all, share_of
from dxt_replay.traces.errors import ReplayError, TargetError, WorkerError
from dxt_replay.traces.workers import Workers, dask_workers
from tests.capture_builder import build_capture, read
from tests.places import MPIEXEC, ROOT, needs_mpi
from tests.traces.test_workers import wait_until

COMMANDS = "dxt_replay.replay.commands.main"


def under_mpi(processes, *words):
    command = [str(MPIEXEC), "-n", str(processes), sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)


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
    found = (comm.rank, comm.size, comm.gather("x"), comm.broadcast(3), first_does(comm, lambda: 3))
    assert found == (0, 1, ["x"], 3, 3)
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
    done = under_mpi(3, "-c", AGREEING)
    assert (done.returncode, done.stdout.strip()) == (0, "all agreed on 3"), done.stderr


# ------------------------------------------------------------------------------------------------------- launchers


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


# ------------------------------------------------------------------------------------------------- between the nodes


class Channel:
    """Two nodes, of which this is the first. `incoming`: what the other one sends; without it the network is gone."""

    def __init__(self, incoming):
        self.incoming, self.works, self.at_its_end = incoming, bool(incoming), threading.Event()
        self.sent: list[int] = []

    def Get_size(self):
        return 2

    def Get_rank(self):
        return 0

    def iprobe(self):
        if not self.works:
            self.at_its_end.set()
            raise RuntimeError("network is down")
        return bool(self.incoming)

    def recv(self):
        if len(self.incoming) == 1:
            self.at_its_end.set()
        return self.incoming.pop(0)

    def send(self, arrived, dest):
        self.sent.append(arrived)


@pytest.mark.parametrize("incoming", [[1, 2], []])
def test_arrivals_travel_both_ways_and_a_relay_that_fails_stops_the_lanes_and_says_why(incoming):
    counters, channel, stop = Counters.of(2), Channel(incoming), StopFlag()
    relay = MeetingRelay(NodeLeaders(channel=channel, any_thread=True), counters, ranks=2, stop=stop)
    counters.add(OWN_ARRIVALS, 3, 1, 0)
    relay.start()
    channel.at_its_end.wait()
    relay.stop()
    assert (stop.is_set(), channel.sent) == (not channel.works, [3])
    if channel.works:
        relay.check()
        assert counters.value(ARRIVALS) == 3
    else:
        with pytest.raises(ReplayError, match=r"relay of collectives between the nodes failed \(network is down\)"):
            relay.check()


TWO_NODES = """
import mpi4py
{before}
import dataclasses, sys
from dxt_replay.replay.ranks import mpi
from pathlib import Path
from dxt_replay.replay.commands.session import ending_together
from dxt_replay.replay.run.story import run_replay
from tests.replay.causal.test_paced_ranks import options
from dxt_replay.traces.errors import DxtReplayError
from dxt_replay.traces.store.reader import open_capture
world = mpi.connect()
mpi.node_id = lambda: str(world.rank)  # as if each process were on a node of its own
folder, shared, counters = Path({folder!r}), [], world.counters
{after}
def replay(name):
    run_replay(open_capture(folder / "source.capture"), folder / f"{{name}}.capture", options(folder), world)
try:
    with ending_together(world):
        replay("replay")
        replay("again")
except DxtReplayError as error:
    sys.exit(f"error: {{error}}")
from mpi4py import MPI
assert [one.leaders.channel == MPI.COMM_NULL for one in shared] == [True, True]
"""
NOTED = "world.counters = lambda own, common: shared.append(counters(own, common)) or shared[-1]"
BROKEN = """
class Channel:
    def __getattr__(self, name):
        raise RuntimeError("network is down")
def broken(own, common):
    shared = counters(own, common)
    if world.rank:
        return shared
    return dataclasses.replace(shared, leaders=shared.leaders._replace(channel=Channel()))
world.counters = broken
"""


@needs_mpi
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("", NOTED, None),  # what a run shares between nodes is freed with it
        ('mpi4py.rc.thread_level = "serialized"', "", "MPI_THREAD_MULTIPLE"),
        ("", BROKEN, "network is down"),
    ],
)
def test_a_replay_on_two_nodes_works_or_is_an_error_and_never_waits_for_ever(tmp_path, before, after, said):
    from tests.replay.causal.test_paced_ranks import SMALL, source_of

    source_of(tmp_path, dataclasses.replace(SMALL, ranks=2))
    done = under_mpi(2, "-c", TWO_NODES.format(before=before, after=after, folder=str(tmp_path)))
    assert "Traceback" not in done.stderr
    assert (done.returncode == 0) == (said is None), done.stderr
    assert (said or "") in done.stderr
    assert (tmp_path / "replay.capture").exists() == (said is None)


# ------------------------------------------------------------------------------------------------------- as workers


@pytest.fixture
def capture(tmp_path):
    ops = [read(0, offset=7 * i, length=4000 + i, start_ns=977 * i, rank=i % 5) for i in range(500)]
    return build_capture(tmp_path, files=["/a"], ops=ops)


def sums(capture, workers):
    workers.piece_operations = 1
    return repr(dxt_replay.tables(capture, ["files", "sizes"], by="rank", executor=workers).as_json())


WORKING = """
import sys
from dxt_replay.replay.ranks.mpi import rank_workers
from tests.replay.ranks.test_mpi import sums
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.reader import open_capture
try:
    with rank_workers(2):
        pass
except UsageError as error:
    assert "--workers 2: the 2 processes of mpiexec are the workers" in str(error)
else:
    raise AssertionError
with rank_workers(None) as workers:
    if workers is not None:
        sys.stdout.write(sums(open_capture(sys.argv[1]), workers))
"""


@needs_mpi
def test_an_mpi_job_comes_to_the_same_bits_and_prints_once(capture, capsys):
    done = under_mpi(2, "-c", WORKING, str(capture.path))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", sums(capture, Workers(1)))
    command = ["summary", str(capture.path), "--json"]
    assert main(command) == 0
    done = under_mpi(2, "-m", COMMANDS, *command)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", capsys.readouterr().out)


def test_a_dask_cluster_comes_to_the_same_bits_counts_who_joins_and_is_named_when_it_has_gone(capture):
    distributed = pytest.importorskip("distributed", reason="the extra [dask] is not installed")
    local = {"processes": False, "protocol": "tcp://", "dashboard_address": None, "worker_dashboard_address": None}
    cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, **local)
    assert main(["summary", str(capture.path), "--details", "--dask", cluster.scheduler_address]) == 0
    gone = pytest.raises(WorkerError, match=r"--dask tcp://.*: the scheduler has gone")
    with gone, dask_workers(cluster.scheduler_address) as workers:
        said = []
        workers.on_choice = said.append
        cluster.scale(3)
        cluster.wait_for_workers(3)
        assert sums(capture, workers) == sums(capture, Workers(1))
        assert "3 at a time" in said[-1]
        cluster.close()
        sums(capture, workers)


@needs_mpi
def test_ctrl_c_of_an_mpi_job_leaves_no_files(tmp_path):
    words = ("generate", "resnet50_h100", "--ranks", "8", "train.epochs=1", "dataset.num_files_train=8000", "-o")
    command = [str(MPIEXEC), "-n", "2", sys.executable, "-m", COMMANDS, *words, str(tmp_path / "made.capture")]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as job:
        wait_until(lambda: any(tmp_path.glob(".made.capture*/*")))
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(120) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_waits_for_words_is_no_scheduler(capture):
    pytest.importorskip("distributed", reason="the extra [dask] is not installed")
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"tcp://127.0.0.1:{server.server_port}"
    command = [sys.executable, "-m", COMMANDS, "summary", str(capture.path), "--dask", address]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    server.shutdown()
    server.server_close()
    assert done.returncode != 0
    assert f"--dask {address}: no scheduler of Dask answers there" in done.stderr
