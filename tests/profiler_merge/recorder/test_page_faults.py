"""Page faults of a job, as the kernel tells them: against the pages that a program is known to touch."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.profiler_merge.mapped_reads import FAULT_ROW, MAPPING, mapped_reads
from dxt_replay.profiler_merge.recorder.page_faults import PageFaults
from dxt_replay.traces.schema import APIS, OPS, codes
from dxt_replay.traces.store.reader import open_capture

PAGE = 4096
JOB = """
import mmap, os, sys
for pages in sys.argv[2:]:
    descriptor = os.open(sys.argv[1], os.O_RDONLY)
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
        os.close(descriptor)
        for page in pages.split(","):
            mapped[4096 * int(page)]
"""


def _allowed() -> bool:
    try:
        PageFaults().close()
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _allowed(), reason="perf_event_open is not allowed here")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.bin"
    path.write_bytes(os.urandom(16 << 20))
    with path.open("rb") as file:  # cached in large pieces, as it was written, one fault would map 2 MiB
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def _pages() -> list[list[int]]:
    """Pages that are far apart, in random order, for each of two mappings."""
    rng = random.Random(3)
    return [rng.sample(range(0, 4096, 64), 20), rng.sample(range(0, 4096, 64), 30)]


def _words(data: Path, pages: list[list[int]]) -> list[str]:
    return [sys.executable, "-c", JOB, str(data), *(",".join(map(str, each)) for each in pages)]


def test_each_touched_page_is_a_fault_in_order(data: Path, tmp_path: Path) -> None:
    pages, found = _pages(), tmp_path / "page_faults.bin"
    with PageFaults().collected(found):
        words = _words(data, pages)
        pid = os.posix_spawn(words[0], words, os.environ)
        assert os.waitpid(pid, 0)[1] == 0
    with found.open("rb") as file:
        head = json.loads(file.readline())
        rows = np.frombuffer(file.read(), dtype=FAULT_ROW)
    number = head["files"].index(str(data))
    assert head["lost"] == 0
    assert head["sizes"][number] == 16 << 20
    assert number not in head["programs"]
    mine = rows[rows["file"] == number]
    assert set(mine["pid"].tolist()) == set(mine["tid"].tolist()) == {pid}
    made = np.flatnonzero(mine["kind"] == MAPPING)
    assert mine["length"][made].tolist() == [16 << 20] * 2
    touched = [part["offset"][part["kind"] != MAPPING] // PAGE for part in np.split(mine, made)[1:]]
    assert [part.tolist() for part in touched] == pages
    assert (mine["end_ns"] >= mine["start_ns"]).all()


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_they_become_operations_of_a_recording(data: Path, tmp_path: Path) -> None:
    pages, out = _pages(), tmp_path / "run.capture"
    command = [sys.executable, "-m", "dxt_replay.replay.commands.main", "record", "--with", "strace", "-o", str(out)]
    done = subprocess.run([*command, "--", *_words(data, pages)], capture_output=True, text=True, check=False)
    if "strace cannot trace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    capture = open_capture(out)
    (rows,) = list(capture.operations(0))
    mapped = np.flatnonzero(codes(rows, "api") == APIS.index("MMAP"))
    op, offset = codes(rows, "op")[mapped], rows.column("offset").to_numpy()[mapped]
    again = [OPS.index("close"), OPS.index("open")]
    reads = [[OPS.index("read")] * len(each) for each in pages]
    assert op.tolist() == [OPS.index("open"), *reads[0], *again, *reads[1]]
    assert (offset[op == OPS.index("read")] // PAGE).tolist() == [page for each in pages for page in each]
    assert capture.info.coverage.bytes == 1.0
    assert [each.bytes for each in capture.info.coverage.unseen if each.kind == "mapped"] in ([], [0])
    assert mapped_reads([tmp_path / "run.recording" / "logs" / "x"]).complete


SEQUENTIAL = """
import mmap, resource, sys, time
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    time.sleep(0.2)
    slept = 0
    for page in range(4096):
        before, begin = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw, time.monotonic_ns()
        mapped[4096 * page]
        end, after = time.monotonic_ns(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        slept += (end - begin) * (after > before)
print(slept)
"""


def test_faults_that_slept_have_their_wait_whether_minor_or_major(data: Path, tmp_path: Path) -> None:
    found = tmp_path / "page_faults.bin"
    with PageFaults().collected(found):
        done = subprocess.run([sys.executable, "-c", SEQUENTIAL, data], capture_output=True, text=True, check=True)
    if int(done.stdout) < 1_000_000:
        pytest.skip("this storage does not let a fault wait")
    with found.open("rb") as file:
        number = json.loads(file.readline())["files"].index(str(data))
        rows = np.frombuffer(file.read(), dtype=FAULT_ROW)
    waited = (rows["end_ns"] - rows["start_ns"])[rows["file"] == number].sum()
    assert 0.5 * int(done.stdout) < waited <= int(done.stdout)  # which includes the two clocks and the count
