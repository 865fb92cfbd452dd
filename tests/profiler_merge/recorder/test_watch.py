"""What is read past every tracer, counted from outside: against what a program is known to have mapped and received."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from socket import create_server

import pytest

from dxt_replay.profiler_merge.recorder.watch import Watch, data_mappings, descendants, mapped_files

MIB = 1 << 20

SMAPS = b"""\
7f0000000000-7f0000400000 r--s 00000000 08:01 99                         /data/train.arrow
Size:               4096 kB
Rss:                1024 kB
7f0000400000-7f0000800000 r--p 00400000 08:01 99                         /data/train.arrow
Rss:                 512 kB
7f0000800000-7f0000900000 r-xp 00000000 08:01 98                         /data/my program
Rss:                 512 kB
7f0000900000-7f0000a00000 r--p 00100000 08:01 98                         /data/my program
Rss:                 512 kB
7f0000a00000-7f0000b00000 r--p 00000000 08:01 97                         /usr/lib/locale/locale-archive
7f0000b00000-7f0000c00000 rw-s 00000000 00:01 96                         /dev/shm/torch_1
7f0000c00000-7f0000d00000 r--s 00000000 08:01 95                         /data/gone (deleted)
7f0000d00000-7f0000e00000 rw-p 00000000 00:00 0
Rss:                 999 kB
7f0000e00000-7f0000f00000 r--p 00000000 08:01 94                         /opt/python/lib/python3.11/site-packages/a.dat
7f0000f00000-7f0001000000 rw-p 00000000 00:00 0                          [heap]
"""

JOB = """
import mmap, os, socket, sys, time
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as store:
    left = int(sys.argv[2])
    while left:
        left -= len(store.recv(65536))
    data = os.open(sys.argv[3], os.O_RDONLY)
    mapped = mmap.mmap(data, 0, prot=mmap.PROT_READ)
    print(sum(mapped[: int(sys.argv[4]) : 4096]), flush=True)
    sys.stdin.read()
"""


def test_files_of_programs_and_of_the_system_are_no_data() -> None:
    assert list(data_mappings(SMAPS)) == [b"/data/train.arrow"]
    assert mapped_files(SMAPS) == {b"/data/train.arrow": (8 * MIB, 1536 * 1024)}


def test_what_a_child_maps_and_receives_is_counted(tmp_path: Path) -> None:
    """The program is a grandchild; it touches the first 6 of 16 MiB, and reads 3,000,000 bytes of a socket."""
    data, sent = tmp_path / "train.bin", 3_000_000
    data.write_bytes(bytes(16 * MIB))
    with create_server(("127.0.0.1", 0)) as store:
        port = store.getsockname()[1]

        def serve() -> None:
            connection, _ = store.accept()
            with connection:
                connection.sendall(bytes(sent))
                connection.recv(1)  # until the job closes it

        server = threading.Thread(target=serve)
        server.start()
        words = [sys.executable, "-c", JOB, str(port), str(sent), str(data), str(6 * MIB)]
        job = subprocess.Popen(
            ["sh", "-c", '"$@"; true', "sh", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert job.stdout is not None
        assert job.stdout.readline() == "0\n"
        watched = Watch()
        watched.look(descendants(job.pid))
        assert len(list(descendants(job.pid))) == 2
        job.communicate("")
        server.join()
    watched.write(tmp_path / "unseen.json", {})
    found = json.loads((tmp_path / "unseen.json").read_text())
    entry = found["mapped"][str(data)]
    assert entry["size"] == 16 * MIB
    assert 6 * MIB <= entry["bytes"] <= 7 * MIB  # the kernel maps some pages around the one that is asked for
    if found["received"]:  # a kernel without socket diagnosis says nothing of sockets
        assert found["received"] == {f"127.0.0.1:{port}": sent}


def test_a_look_is_not_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look of 1 s may follow 50 s later."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    looked: list[float] = []

    def pids() -> Iterator[int]:
        looked.append(now[0])
        now[0] += 1
        yield from ()

    watched = Watch()
    for second in (0, 1, 49, 51, 52):
        now[0] = 100.0 + second
        watched.look(pids())
    assert looked == [100.0, 151.0]


def test_a_process_that_is_gone_is_no_error_and_names_that_are_not_utf_8_are_kept(tmp_path: Path) -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    watched = Watch()
    watched.look([done.pid])
    watched.write(tmp_path / "unseen.json", {})
    assert not (tmp_path / "unseen.json").exists()
    watched._sizes["/data/\udcff"], watched._resident["/data/\udcff"][1] = 10, 30
    watched.write(tmp_path / "unseen.json", {})
    text = (tmp_path / "unseen.json").read_text(encoding="utf-8", errors="surrogateescape")
    assert json.loads(text)["mapped"] == {"/data/\udcff": {"size": 10, "bytes": 10}}
