"""Processes of an MPI job: what they agree on, arrivals between nodes, launchers that cannot work, and as workers; and
the end of a run before its time: by a signal to one of its processes, by an error, by the death of one."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.engine.clock import Counters, StopFlag
from dxt_replay.replay.ranks.death_watch import DeathWatch
from dxt_replay.replay.ranks.mpi import MeetingRelay, NodeLeaders, Solo, connect, first_does, is_known_to_all, share_of
from dxt_replay.replay.ranks.stopping import Terminated, stop_on_signals, unwind_on_signals
from dxt_replay.traces.errors import ReplayError, TargetError, WorkerError
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.workers import Workers, dask_workers
from tests.capture_builder import build_capture, read
from tests.fakes import FakeClock
from tests.places import MPIEXEC, ROOT, needs_mpi
from tests.replay.run.test_story import mpi_job, staged
from tests.traces.test_workers import wait_until

NS_PER_S = 1_000_000_000
MINUTE = 60 * NS_PER_S
needs_pidfd = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system cannot watch processes")
COMMANDS = "dxt_replay.replay.commands.main"


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

found = [
    comm.gather((first_does(comm, os.getpid), comm.common_start_ns(10**8), comm.processes_on_node())),
    comm.gather(comm.first_on_node()),
    comm.gather(met(lambda: first_does(comm, lambda: fails(0)))),
    comm.gather(met(lambda: together(comm, lambda: fails(1)))),
]
if comm.rank == 0:
    same, *others = found
    assert same[0] == same[1] and same[0][::2] == (os.getpid(), 2), same
    print(others)
"""


@needs_mpi
def test_under_mpiexec_all_processes_share_one_start_one_result_and_one_error():
    done = mpi_job(2, "-c", AGREEING)
    of_first, of_second = (
        [error if rank == process else f"ReplayError process {process}: no room" for rank in (0, 1)]
        for process, error in enumerate(["TargetError no room"] * 2)
    )
    assert (done.returncode, done.stdout.strip()) == (0, str([[True, False], of_first, of_second])), done.stderr


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


def test_ranks_that_meet_on_several_nodes_need_threads_that_may_call_mpi():
    with pytest.raises(ReplayError, match="MPI_THREAD_MULTIPLE"):
        MeetingRelay(NodeLeaders(channel=None, any_thread=False), Counters.of(2), ranks=2, stop=StopFlag())


TWO_NODES = """
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
folder, shared, counters = Path(sys.argv[1]), [], world.counters

class NoChannel:
    def __getattr__(self, name):
        raise RuntimeError("network is down")

def noted(own, common):
    shared.append(counters(own, common))
    if sys.argv[2] == "broken" and world.rank == 0:
        return dataclasses.replace(shared[-1], leaders=shared[-1].leaders._replace(channel=NoChannel()))
    return shared[-1]

world.counters = noted
try:
    with ending_together(world):
        for name in ("replay", "again"):
            source = open_capture(folder / "source.capture")
            run_replay(source, folder / f"{name}.capture", options(folder), world)
except DxtReplayError as error:
    sys.exit(f"error: {error}")
from mpi4py import MPI
assert [one.leaders.channel == MPI.COMM_NULL for one in shared] == [True, True], "freed with each run"
"""


@needs_mpi
@pytest.mark.parametrize("network", ["works", "broken"])
def test_a_replay_on_two_nodes_works_or_is_an_error_and_never_waits_for_ever(tmp_path, network):
    from tests.replay.causal.test_paced_ranks import SMALL, source_of

    source_of(tmp_path, dataclasses.replace(SMALL, ranks=2))
    done = mpi_job(2, "-c", TWO_NODES, str(tmp_path), network)
    assert "Traceback" not in done.stderr
    assert (done.returncode == 0) == (network == "works"), done.stderr
    failed = "relay of collectives between the nodes failed (network is down)"
    assert (failed in done.stderr) == (network == "broken")
    assert (tmp_path / "replay.capture").exists() == (network == "works")


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
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.ranks.mpi import rank_workers
from tests.replay.ranks.test_processes import sums
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
        print(sums(open_capture(sys.argv[1]), workers), flush=True)
main(["summary", sys.argv[1], "--json"])
"""


@needs_mpi
def test_an_mpi_job_comes_to_the_same_bits_and_prints_once(capture, capsys):
    done = mpi_job(2, "-c", WORKING, str(capture.path))
    print(sums(capture, Workers(1)))
    assert main(["summary", str(capture.path), "--json"]) == 0
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
    words = ("generate", "resnet50_h100", "--ranks", "4", "train.epochs=1", "dataset.num_files_train=4000", "-o")
    command = [str(MPIEXEC), "-n", "2", sys.executable, "-m", COMMANDS, *words, str(tmp_path / "made.capture")]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as job:
        wait_until(lambda: any(tmp_path.glob(".made.capture*/*")))
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(120) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_waits_for_words_is_no_scheduler(capture, monkeypatch, capsys):
    pytest.importorskip("distributed", reason="the extra [dask] is not installed")
    monkeypatch.setattr("dxt_replay.traces.workers.ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        assert main(["summary", str(capture.path), "--dask", address]) == WorkerError.exit_status
    assert f"--dask {address}: no scheduler of Dask answers there" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- an end before its time


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
    return staged(folder, ops, ["/a"])


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
    return mpi_job(3, "-c", program, told, *words)


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
