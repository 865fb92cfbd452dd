"""Which system calls a lane makes: strace is the witness."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dxt_replay.replay.engine.limits import check_direct
from dxt_replay.replay.engine.link_free import looks_at_whole_paths
from dxt_replay.traces.errors import TargetError
from tests.places import ROOT

STRACE = shutil.which("strace")

PROGRAM = """
import sys
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import CLOSE, OPEN, READ_AT, RENAME, SEEK, STAT, SYNC, WRITE_AT
from tests.replay.engine.issue_lanes import results
paths = [sys.argv[2].encode() + name for name in (b"/data", b"/new")]
files = Files([FileSlot(path=path, writable=True, create=True, uses=100) for path in paths], sys.argv[1])
print(results(
    files, (OPEN, 0, 0, 0, 0), (READ_AT, 0, 5000, 100, 0), (WRITE_AT, 0, 4096, 8192, 0), (WRITE_AT, 0, 10, 3, 0),
    (SYNC, 0, 0, 0, 0), (SEEK, 0, 77, 0, 0), (STAT, 0, 0, 0, 0), (CLOSE, 0, 0, 0, 0), (RENAME, 0, 1, 0, 0),
))
"""
MADE = {
    "posix": ["openat2 data", "pread64 100 5000", "pwrite64 8192 4096", "pwrite64 3 10"],
    # A direct file that is written to in parts of blocks gets a second descriptor, which is closed with it.
    "direct": ["openat2 data", "pread64 4096 4096", "pwrite64 8192 4096", "openat2 data", "pwrite64 3 10"],
}
CALLS = "openat2,pread64,pwrite64,fsync,lseek,newfstatat,close,renameat"


def in_short(line: str) -> str:
    """A call with what matters of its arguments: names of files, lengths and offsets."""
    found = re.match(r"(?:\[pid +\d+\] )?(\w+)\((.*)\) += ", line)
    assert found is not None, line
    call, arguments = found.groups()
    names = re.findall(r'"(?:[^"]*/)?(data|new)"', arguments)
    numbers = re.findall(r", (\d+)", re.sub(r'"[^"]*"(\.\.\.)?|\{[^}]*\}', "", arguments))
    return " ".join([call, *names, *(numbers if call in ("pread64", "pwrite64", "lseek") else [])])


@pytest.mark.skipif(STRACE is None, reason="no strace")
@pytest.mark.parametrize("backend", MADE)
def test_each_operation_is_one_call(tmp_path: Path, backend: str) -> None:
    if backend == "direct":
        try:
            check_direct(tmp_path, [])
        except TargetError as error:
            pytest.skip(str(error))
    if not looks_at_whole_paths():
        pytest.skip("this system has no openat2")
    (tmp_path / "data").write_bytes(bytes(10_000))
    trace = tmp_path / "trace"
    command = [str(STRACE), "-f", "-y", "-o", str(trace), "-e", f"trace={CALLS}"]
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, backend, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout.strip() == "[0, 100, 8192, 3, 0, 0, 0, 0, 0]", done.stderr
    lines = [line.split(None, 1)[1] for line in trace.read_text().splitlines()]
    of_files = [line for line in lines if f"{tmp_path}/" in line or line.startswith("renameat")]
    found = [in_short(line) for line in of_files if ', "", ' not in line]  # an fstat belongs to an open
    closes = ["close"] * (2 if backend == "direct" else 1)
    assert found == [*MADE[backend], "fsync", "lseek 77", "newfstatat data", *closes, "renameat data new"]


@pytest.mark.skipif(STRACE is None, reason="no strace")
@pytest.mark.parametrize("backend", ["posix", "mapped"])
def test_sequential_reads_are_announced_for_an_open_that_says_so_and_for_no_other(tmp_path: Path, backend: str) -> None:
    (tmp_path / "data").write_bytes(bytes(10_000))
    program = """
import sys
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import CLOSE, OPEN, READ_AHEAD
from tests.replay.engine.issue_lanes import results
files = Files([FileSlot(path=sys.argv[2].encode() + b"/data", uses=100)], sys.argv[1])
print(results(files, *((kind, 0, place, 0, 0) for place in (-1, READ_AHEAD, -1) for kind in (OPEN, CLOSE))))
"""
    log, command = tmp_path / "log", [sys.executable, "-c", program, backend, str(tmp_path)]
    tracing = [str(STRACE), "-f", "-o", str(log), "-e", "trace=openat,fadvise64"]
    done = subprocess.run([*tracing, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr.lower():
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    lines = log.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if f"{tmp_path}/data" in line)
    assert ["SEQUENTIAL" in line for line in lines[first:] if "/data" in line or "SEQUENTIAL" in line] == [
        False, False, True, False,
    ]  # fmt: skip
