"""What the machine cannot hold is said before the first thread of a lane is started."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from dxt_replay.replay.engine.limits import require_descriptors, require_threads
from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.errors import ReplayError
from tests.capture_builder import build_capture, read
from tests.places import ROOT

ADDRESS_SPACE = """
import resource
from pathlib import Path
from dxt_replay.replay.engine.limits import require_threads
from dxt_replay.traces.errors import ReplayError
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
resource.setrlimit(resource.RLIMIT_AS, (used + (58 << 20), resource.RLIM_INFINITY))
require_threads(40)
try:
    require_threads(500)
except ReplayError as error:
    print(error)
"""
MAPPINGS = """
import mmap, os, threading
from dxt_replay.replay.engine.limits import require_threads
from dxt_replay.traces.errors import ReplayError
most = int(open("/proc/sys/vm/max_map_count").read())
kept = []
while most - len(open("/proc/self/maps").readlines()) > 500:
    for _ in range(100):  # neighbours with one protection would be one mapping
        kept.append(mmap.mmap(-1, 4096, prot=(mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE)[len(kept) % 2]))
try:
    require_threads(500)
except ReplayError as error:
    print(error)
end, made = threading.Event(), 0
try:
    while made < 500:
        threading.Thread(target=end.wait, daemon=True).start()
        made += 1
except RuntimeError:
    print(made, "were possible")
end.set()
"""


def said(program: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_threads_without_room_for_their_stacks_are_refused_with_the_number_of_processes_that_would_do() -> None:
    refusal = said(ADDRESS_SPACE)
    assert "needs 508 threads, one for each lane" in refusal
    assert "the limit of address space (ulimit -v)" in refusal
    assert "replay on 10 processes or more, or choose fewer ranks (--part ranks=A-B)" in refusal


def test_a_thread_takes_two_mappings_of_those_that_the_kernel_allows_a_process() -> None:
    refusal, possible = said(MAPPINGS).splitlines()
    room = int(refusal.split("leaves room for ")[1].split(":")[0])
    assert "the kernel (vm.max_map_count)" in refusal
    assert 0.8 * room <= int(possible.split()[0]) <= room
    require_threads(4)


RUN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
from dxt_replay.replay.plan import spill
spill.MEMORY_ROWS = spill.LEAST_ROWS = 16
from dxt_replay.replay.commands.main import main
sys.exit(main(["run", *sys.argv[1:], "--pace", "none", "--json"]))
"""


@pytest.mark.parametrize(("ranks", "lanes"), [(1, 8), (4, 2)])
def test_more_files_than_descriptors_are_all_read(tmp_path: Path, ranks: int, lanes: int) -> None:
    files = 400
    # Each file is used twice, far apart: it is idle in between, and may be closed for another.
    ops = [
        read(i % files, rank=rank, lane=i % lanes, start_ns=i, length=8, offset=8 * (i // files))
        for rank in range(ranks)
        for i in range(2 * files)
    ]
    source = build_capture(tmp_path, ops=ops, files=[f"/data/{i}" for i in range(files)], name="source")
    stage(plan_stage(source, tmp_path / "twin"))
    printed = said(RUN, str(source.path), "--target", str(tmp_path / "twin"), "-o", str(tmp_path / "r.capture"))
    document = json.loads(printed)
    assert (document["operations"], document["failed"]) == (ranks * 2 * files, 0)


def test_too_few_descriptors_for_the_lanes_are_told_before_the_run() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    require_descriptors(1)
    if soft == resource.RLIM_INFINITY:
        pytest.skip("the number of open files is not limited here")
    with pytest.raises(ReplayError, match="ulimit -n"):
        require_descriptors(soft)
