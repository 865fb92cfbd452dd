"""The mark that an application sets, its record, and how a profile shows it."""

import os
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dxt_replay.profiler_merge import anchor as anchor_module
from dxt_replay.profiler_merge.anchor import (
    ANCHOR_FILE,
    RECORD_BYTES,
    anchor,
)
from dxt_replay.profiler_merge.clocks.anchors import anchor_rank, profile_anchors
from dxt_replay.profiler_merge.profiles.xplane.decode import read_profile
from tests import xplane_writer as writer
from tests.xplane_writer import START_NS, Event, Line


@dataclass(frozen=True)
class AnchorRecord:
    """One 64-byte record of an anchor file: magic, number, wall clock, pthread id, pid, rank, 24 bytes of nothing."""

    i: int
    wall_ns: int
    pthread_id: int
    pid: int
    rank: int


def parse_anchor_record(data: bytes) -> AnchorRecord | None:
    """The record, or None for bytes that are none, such as a hole."""
    if len(data) != RECORD_BYTES or not data.startswith(b"DXTANCHR"):
        return None
    return AnchorRecord(*struct.unpack("<8xQQQIi24x", data))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """No files open from another test, no launcher's rank, no framework."""
    anchor_module._files.reset()
    for name in anchor_module.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("tensorflow", "jax", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def anchor_path(directory: Path, pid: int | None = None) -> Path:
    return directory / f"dxt-anchor.{socket.gethostname()}.{pid or os.getpid()}.bin"


def records(directory: Path) -> list[AnchorRecord | None]:
    data = anchor_path(directory).read_bytes()
    return [parse_anchor_record(data[at : at + RECORD_BYTES]) for at in range(0, len(data), RECORD_BYTES)]


def test_marks_are_numbered_from_zero(tmp_path):
    before = time.time_ns()
    assert [anchor(directory=tmp_path, rank=3) for _ in range(3)] == [0, 1, 2]
    after = time.time_ns()
    found = records(tmp_path)
    assert [record.i for record in found] == [0, 1, 2]
    assert {(record.pid, record.rank, record.pthread_id) for record in found} == {
        (os.getpid(), 3, threading.get_ident())
    }
    stamps = [record.wall_ns for record in found]
    assert before <= stamps[0] <= stamps[1] <= stamps[2] <= after


def test_the_layout_is_that_of_the_design(tmp_path):
    anchor(5, directory=tmp_path, rank=-1)
    data = anchor_path(tmp_path).read_bytes()
    assert len(data) == 6 * 64
    assert data[: 5 * 64] == bytes(5 * 64)
    record = data[5 * 64 :]
    assert record[:8] == b"DXTANCHR"
    assert struct.unpack_from("<Q", record, 8) == (5,)
    assert struct.unpack_from("<Q", record, 24) == (threading.get_ident(),)
    assert struct.unpack_from("<Ii", record, 32) == (os.getpid(), -1)
    assert record[40:] == bytes(24)


def test_a_number_of_ones_own_moves_the_next_one_on(tmp_path):
    assert [anchor(7, directory=tmp_path), anchor(directory=tmp_path), anchor(2, directory=tmp_path)] == [7, 8, 2]
    assert anchor(directory=tmp_path) == 9
    with pytest.raises(ValueError, match="-1"):
        anchor(-1, directory=tmp_path)


def test_the_file_is_opened_once_and_written_once_a_mark(tmp_path, monkeypatch):
    opened, written = [], []
    real_open, real_pwrite = os.open, os.pwrite
    monkeypatch.setattr(os, "open", lambda *a, **k: opened.append(a[0]) or real_open(*a, **k))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: written.append((len(data), at)) or real_pwrite(fd, data, at))
    for _ in range(3):
        anchor(directory=tmp_path)
    assert opened == [str(anchor_path(tmp_path))]
    assert written == [(64, 0), (64, 64), (64, 128)]


def test_the_rank_comes_from_the_launcher(tmp_path, monkeypatch):
    anchor(directory=tmp_path)
    monkeypatch.setenv("PMI_RANK", "12")
    anchor(directory=tmp_path)
    monkeypatch.setenv("PMI_RANK", "twelve")
    anchor(directory=tmp_path)
    assert [record.rank for record in records(tmp_path)] == [-1, 12, -1]


def test_threads_do_not_share_a_number(tmp_path):
    all_live = threading.Barrier(8)  # a thread's id is given again once the thread has ended

    def mark():
        all_live.wait()
        for _ in range(50):
            anchor(directory=tmp_path)
        all_live.wait()

    threads = [threading.Thread(target=mark) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = records(tmp_path)
    assert [record.i for record in found] == list(range(400))
    assert len({record.pthread_id for record in found}) == 8


def test_a_forked_child_writes_a_file_of_its_own(tmp_path):
    code = (
        "import os, sys\nfrom dxt_replay.profiler_merge.anchor import anchor\n"
        f"d = {str(tmp_path)!r}\nanchor(directory=d); anchor(directory=d)\n"
        "pid = os.fork()\nn = anchor(directory=d)\nos.write(1, b'%d %d\\n' % (os.getpid(), n))\n"
        "if pid: os.waitpid(pid, 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    numbers = dict(tuple(map(int, line.split())) for line in done.stdout.splitlines())
    assert sorted(numbers.values()) == [0, 2]
    for pid, number in numbers.items():
        data = anchor_path(tmp_path, pid).read_bytes()
        assert len(data) == 64 * (number + 1)
        assert {parse_anchor_record(data[at : at + 64]).pid for at in range(0, len(data), 64)} == {pid}


def test_the_annotation_surrounds_the_write(tmp_path, monkeypatch):
    log = []

    @contextmanager
    def trace(name, **arguments):
        log.append(("begin", name, arguments))
        yield
        log.append(("end", name))

    tensorflow = types.SimpleNamespace(profiler=types.SimpleNamespace(experimental=types.SimpleNamespace(Trace=trace)))
    jax = types.SimpleNamespace(profiler=types.SimpleNamespace(TraceAnnotation=trace))
    torch = types.SimpleNamespace(profiler=types.SimpleNamespace(record_function=trace))
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "torch", torch)
    real_pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *a: log.append("write") or real_pwrite(*a))
    anchor(4, directory=tmp_path, rank=1)
    text = f"dxt_anchor#i=4,rank=1,pid={os.getpid()}#"
    arguments = {"i": 4, "rank": 1, "pid": os.getpid()}
    assert log == [
        ("begin", "dxt_anchor", arguments),
        ("begin", "dxt_anchor", arguments),
        ("begin", text, {}),
        "write",
        ("end", text),
        ("end", "dxt_anchor"),
        ("end", "dxt_anchor"),
    ]


def test_a_framework_that_is_half_imported_does_no_harm(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))
    assert anchor(directory=tmp_path) == 0


def test_it_needs_the_standard_library_only(tmp_path):
    code = (
        "import sys; from dxt_replay.profiler_merge.anchor import anchor\n"
        f"anchor(directory={str(tmp_path)!r})\n"
        "print(sorted({'numpy', 'pyarrow', 'tensorflow', 'jax', 'torch', 'google'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("path", "groups"),
    [
        ("/a/b/dxt-anchor.nid0042.17.bin", ("nid0042", "17")),
        ("dxt-anchor.a.b.example.org.17.bin", ("a.b.example.org", "17")),
        ("/a/dxt-anchor.h.17.bin.bak", None),
        ("/a/xdxt-anchor.h.17.bin", None),
        ("/a/dxt-anchor.h.bin", None),
        ("/a/dxt-anchor.h.x.bin", None),
    ],
)
def test_anchor_files(path, groups):
    match = ANCHOR_FILE.fullmatch(path)
    assert (match and match.group("host", "pid")) == groups


def _profile(tmp_path, events):
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(writer.profile([Line(id=1, name="python", events=tuple(events))]))
    return read_profile(path)


def _mark(i, at, **more):
    return Event(name="dxt_anchor", start_ns=at, duration_ns=5, stats={"i": i} | more)


def test_profile_anchors(tmp_path):
    events = [
        _mark(0, 10, rank=2, pid=77),
        Event(name="other", start_ns=20, stats={"i": 9}),
        _mark(1, 30, rank=2, pid=77),
    ]
    profile = _profile(tmp_path, events)
    marks = profile_anchors(profile)
    assert (marks.i.tolist(), marks.rank.tolist(), marks.pid.tolist()) == ([0, 1], [2, 2], [77, 77])
    assert (marks.start_ns - START_NS).tolist() == [10, 30]
    assert (marks.end_ns - START_NS).tolist() == [15, 35]
    assert anchor_rank(profile) == (2, 77)


def test_anchor_rank_of_profiles_that_do_not_say(tmp_path):
    assert anchor_rank(_profile(tmp_path, [Event(name="x")])) is None
    assert anchor_rank(_profile(tmp_path, [_mark(0, 1)])) == (-1, -1)
    assert anchor_rank(_profile(tmp_path, [_mark(0, 1, rank=0, pid=1), _mark(1, 9, rank=1, pid=2)])) is None
