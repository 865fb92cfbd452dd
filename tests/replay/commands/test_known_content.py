"""A job whose every byte is known, and what its capture claims: nothing that is not there, nothing missing unsaid.

It reads files and a mapped file, receives from a server on the loopback and from a pipe, reads a file in /dev/shm, and
writes a `.pth` and into a folder that was not there before.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from socket import create_server

import pytest

from dxt_replay.profiler_merge.recorder.darshan import find_library
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.unseen import why_not_judged

READ, MAPPED, RECEIVED, MEMORY, SAVED, NEW, PIPED = 1_000_000, 2 << 20, 3_000_000, 65_536, 100_000, 50_000, 70_000

JOB = """
import mmap, os, socket, subprocess, sys, time
port, received, memory, piped = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
def fetch():
    with socket.create_connection(("127.0.0.1", port)) as store:
        left = received
        while left:
            left -= len(store.recv(65536))
        time.sleep(1)
fetch()
for name in ("train.bin", memory):
    with open(name, "rb", buffering=0) as file:
        while file.read(250_000):
            pass
data = os.open("mapped.bin", os.O_RDONLY)
mapped = mmap.mmap(data, 0, prot=mmap.PROT_READ)
sum(mapped[::4096])
time.sleep(1)
with open("model.pth", "wb", buffering=0) as file:
    file.write(bytes(100_000))
os.mkdir("checkpoints")
with open("checkpoints/step-1.bin", "wb", buffering=0) as file:
    file.write(bytes(50_000))
subprocess.run([sys.executable, "-c", f"print('x' * {piped}, end='')"], stdout=subprocess.PIPE, check=True)
"""


@pytest.fixture
def memory() -> Iterator[Path]:
    """A file in shared memory."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    (folder / "a.bin").write_bytes(bytes(MEMORY))
    yield folder / "a.bin"
    shutil.rmtree(folder)


def recorded(folder: Path, memory: Path, *options: str) -> Capture:
    (folder / "train.bin").write_bytes(bytes(READ))
    (folder / "mapped.bin").write_bytes(bytes(MAPPED))
    (folder / "job.py").write_text(JOB, encoding="utf-8")
    with create_server(("127.0.0.1", 0)) as store:
        port = store.getsockname()[1]

        def serve() -> None:
            connection, _ = store.accept()
            with connection:
                connection.sendall(bytes(RECEIVED))
                connection.recv(1)

        server = threading.Thread(target=serve)
        server.start()
        words = [sys.executable, "job.py", str(port), str(RECEIVED), str(memory), str(PIPED)]
        assert main(["record", *options, "--", *words]) == 0
        server.join()
    return open_capture(folder / "run.capture")


def check(capture: Capture, folder: Path, memory: Path) -> None:
    rows = [row for batch in capture.operations() for row in batch.to_pylist()]
    paths = capture.paths()
    found: dict[str, int] = {}
    for row in rows:
        if row["op"] in ("read", "write"):
            assert row["origin"] == "traced"
            found[paths[row["file_id"]]] = found.get(paths[row["file_id"]], 0) + row["length"]
    wanted = {
        str(folder / "train.bin"): READ,
        str(memory): MEMORY,
        str(folder / "model.pth"): SAVED,
        str(folder / "checkpoints" / "step-1.bin"): NEW,
    }
    # Where the kernel allows it, page faults show a part of the pages: one maps up to 16 that the cache holds.
    by_faults = found.pop(str(folder / "mapped.bin"), 0)
    assert {path: moved for path, moved in found.items() if moved and not path.endswith(".py")} == wanted
    coverage = capture.info.coverage
    mapped = next(each for each in coverage.unseen if each.kind == "mapped")
    assert mapped.name == str(folder / "mapped.bin")
    assert mapped.bytes is not None
    assert MAPPED - 16 * by_faults <= mapped.bytes <= MAPPED - by_faults
    received = [each for each in coverage.unseen if each.kind == "socket"]
    if received:  # a kernel without socket diagnosis, and a tracer that does not see sockets, say nothing of them
        assert [each.bytes for each in received] == [RECEIVED]
        traced = READ + MEMORY + SAVED + NEW + by_faults
        assert coverage.bytes is not None
        assert coverage.bytes == pytest.approx(traced / (traced + mapped.bytes + RECEIVED), rel=0.01)
    assert why_not_judged(coverage, coverage.unseen) is not None


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in which the command runs; this process is nobody's rank."""
    monkeypatch.chdir(tmp_path)
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_strace_and_the_look_from_outside_account_for_every_byte(work: Path, memory: Path) -> None:
    check(recorded(work, memory, "--with", "strace"), work, memory)


@pytest.mark.skipif(find_library(os.environ) is None, reason="Darshan's runtime library is not installed")
def test_darshan_and_the_look_from_outside_account_for_every_byte(work: Path, memory: Path) -> None:
    check(recorded(work, memory), work, memory)
