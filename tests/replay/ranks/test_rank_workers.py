"""Processes of an MPI job, and a cluster of Dask, as workers: the bits of one process, printed once."""

import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.errors import WorkerError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers import Workers, dask_workers
from tests.capture_builder import Op, build_capture
from tests.places import ROOT
from tests.traces.test_workers import wait_until

RANKS = 5


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    ops = [
        Op("read", 0, offset=7 * number, length=4000 + number, start_ns=977 * number, rank=number % RANKS)
        for number in range(500)
    ]
    return build_capture(tmp_path, files=["/a"], ops=ops)


def sums(capture: Capture, workers: Workers) -> str:
    workers.piece_operations = 1
    return repr(dxt_replay.tables(capture, ["files", "sizes"], by="rank", executor=workers).as_json())


SCRIPT = """
import sys
from dxt_replay.replay.ranks.mpi import rank_workers
from tests.replay.ranks.test_rank_workers import sums
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


def under_mpi(*words: str) -> subprocess.CompletedProcess[str]:
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    return subprocess.run(
        [mpiexec, "-n", "2", sys.executable, *words], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )


def test_an_mpi_job_comes_to_the_same_bits(capture: Capture) -> None:
    done = under_mpi("-c", SCRIPT, str(capture.path))
    expected = sums(capture, Workers(1))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", expected)


def test_the_first_process_of_an_mpi_job_prints(capture: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["summary", str(capture.path), "--json"]
    assert main(command) == 0
    done = under_mpi("-m", "dxt_replay.replay.commands.main", *command)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", capsys.readouterr().out)


def test_a_dask_cluster_comes_to_the_same_bits(capture: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra [dask] is not installed")
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        protocol="tcp://",
        dashboard_address=None,
        worker_dashboard_address=None,
    ) as cluster:
        with dask_workers(cluster.scheduler_address) as workers:
            assert sums(capture, workers) == sums(capture, Workers(1))
        assert main(["summary", str(capture.path), "--details", "--dask", cluster.scheduler_address]) == 0
    assert "operations" in capsys.readouterr().out


def test_workers_that_join_later_count_and_a_scheduler_that_has_gone_is_named(capture: Capture) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra [dask] is not installed")
    local = {"processes": False, "protocol": "tcp://", "dashboard_address": None, "worker_dashboard_address": None}
    gone = pytest.raises(WorkerError, match=r"--dask tcp://.*: the scheduler has gone")
    cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, **local)
    with gone, dask_workers(cluster.scheduler_address) as workers:
        said: list[str] = []
        workers.on_choice = said.append
        cluster.scale(3)
        cluster.wait_for_workers(3)
        sums(capture, workers)
        assert "3 at a time" in said[-1]
        cluster.close()
        sums(capture, workers)


def test_ctrl_c_of_an_mpi_job_leaves_no_files(tmp_path: Path) -> None:
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    words = ("generate", "resnet50_h100", "--ranks", "8", "train.epochs=1", "dataset.num_files_train=8000", "-o")
    command = [mpiexec, "-n", "2", sys.executable, "-m", "dxt_replay.replay.commands.main", *words]
    with subprocess.Popen([*command, str(tmp_path / "made.capture")], cwd=ROOT, start_new_session=True) as job:
        wait_until(lambda: any(tmp_path.glob(".made.capture*/*")))
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(120) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_waits_for_words_is_no_scheduler(capture: Capture) -> None:
    pytest.importorskip("distributed", reason="the extra [dask] is not installed")
    command = [sys.executable, "-m", "dxt_replay.replay.commands.main", "summary", str(capture.path), "--dask"]
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"tcp://127.0.0.1:{server.server_port}"
    done = subprocess.run([*command, address], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    server.shutdown()
    server.server_close()
    assert done.returncode != 0
    assert f"--dask {address}: no scheduler of Dask answers there" in done.stderr
