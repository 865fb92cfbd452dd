"""Bytes that a job received through sockets: against programs that are known to have received them, under strace."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from socket import create_server

import pytest

from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.profiler_merge.tracers.strace import read_strace
from dxt_replay.traces.schema import Unseen
from tests.replay.commands.test_record import can_strace

SENT = 3_000_000

JOB = """
import os, socket, sys
data = os.open(sys.argv[1], os.O_RDONLY)
os.read(data, 1000)
with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as store:
    store.recv(10, socket.MSG_PEEK)
    left = int(sys.argv[3])
    while left:
        left -= len(store.recv(65536)) if left > 1000 else len(os.read(store.fileno(), left))
with socket.create_server(("127.0.0.1", 0)) as own, socket.create_connection(own.getsockname()) as rank:
    other, _ = own.accept()
    other.sendall(bytes(5000))
    print(len(rank.recv(5000, socket.MSG_WAITALL)))
"""


def serve(store) -> None:
    connection, _ = store.accept()
    with connection:
        connection.sendall(bytes(SENT))
        connection.recv(1)


def traced(tmp_path: Path, paths: str) -> tuple[Path, int]:
    """A trace of a job that reads 1000 bytes of a file and SENT of a socket, and sends itself 5000; and the port."""
    data, log = tmp_path / "data.bin", tmp_path / "job.strace"
    data.write_bytes(bytes(1000))
    with create_server(("127.0.0.1", 0)) as store:
        port = store.getsockname()[1]
        server = threading.Thread(target=serve, args=(store,))
        server.start()
        job = [sys.executable, "-c", JOB, str(data), str(port), str(SENT)]
        tracer = ["strace", "-f", "-ttt", "-T", paths, "-s", "0", "-o", str(log)]
        subprocess.run([*tracer, *job], check=True, stdout=subprocess.DEVNULL)
        server.join()
    return log, port


@pytest.mark.skipif(not can_strace(), reason="strace is not installed, or may not trace here")
def test_what_came_from_outside_is_known_by_its_peer(tmp_path: Path) -> None:
    log, port = traced(tmp_path, "-yy")
    job = read_strace([log])
    if job.received_of_unknown:
        pytest.skip("strace cannot ask for the ends of sockets here")
    assert job.received == {f"127.0.0.1:{port}": SENT}
    coverage = merge([log], [], tmp_path / "a.capture", MergeOptions()).info.coverage
    assert coverage.unseen == (Unseen(kind="socket", name=f"127.0.0.1:{port}", bytes=SENT),)
    assert coverage.bytes == pytest.approx(1000 / (1000 + SENT))


@pytest.mark.skipif(not can_strace(), reason="strace is not installed, or may not trace here")
def test_without_peers_how_much_came_from_outside_is_not_known(tmp_path: Path) -> None:
    log, _ = traced(tmp_path, "-y")
    job = read_strace([log])
    assert (job.received, job.received_of_unknown) == ({}, SENT + 5000)
    coverage = merge([log], [], tmp_path / "a.capture", MergeOptions()).info.coverage
    assert coverage.bytes is None
    assert [(each.kind, each.bytes) for each in coverage.unseen] == [("socket", None)]


def test_both_ends_of_a_connection_are_known_in_either_family(tmp_path: Path) -> None:
    calls = [
        ('read(3<TCPv6:[[::ffff:10.0.0.1]:5000->[::ffff:10.0.0.2]:6000]>, ""..., 9)', 9),
        ("close(4<TCP:[10.0.0.2:6000->10.0.0.1:5000]>)", 0),
        ('recvfrom(5<TCPv6:[[2001:db8::1]:5000->[2001:db8::2]:443]>, ""..., 9)', 7),
        ('read(6<TCPv6:[[2001:db8::1]:5001->[2001:db8::2]:443]>, ""..., 9)', 1),
        ('read(7<UNIX-STREAM:[1->2]>, ""..., 9)', 9),
        ('read(8</data/TCP:[1]>, ""..., 9)', 9),
    ]
    log = tmp_path / "a.strace"
    log.write_text("".join(f"7 1795306000.100 {call} = {result} <0.1>\n" for call, result in calls))
    job = read_strace([log])
    assert (job.received, job.received_of_unknown) == ({"2001:db8::2:443": 8}, 0)
