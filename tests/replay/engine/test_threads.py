"""What the machine cannot hold is said before the first thread of a lane is started."""

from __future__ import annotations

import subprocess
import sys

from dxt_replay.replay.engine.threads import require_threads
from tests.places import ROOT

PROGRAM = """
import resource
from pathlib import Path
from dxt_replay.replay.engine.threads import require_threads
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


def test_threads_without_room_for_their_stacks_are_refused_with_the_number_of_processes_that_would_do() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "needs 508 threads, one for each lane" in done.stdout
    assert "the limit of address space (ulimit -v)" in done.stdout
    assert "replay on 10 processes or more, or choose fewer ranks (--ranks)" in done.stdout


MAPPED = """
import mmap, os, threading
from dxt_replay.replay.engine.threads import require_threads
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


def test_a_thread_takes_two_mappings_of_those_that_the_kernel_allows_a_process() -> None:
    done = subprocess.run([sys.executable, "-c", MAPPED], cwd=ROOT, capture_output=True, text=True, check=True)
    refusal, possible = done.stdout.splitlines()
    room = int(refusal.split("leaves room for ")[1].split(":")[0])
    assert "the kernel (vm.max_map_count)" in refusal
    assert 0.8 * room <= int(possible.split()[0]) <= room


def test_a_few_threads_are_always_possible() -> None:
    require_threads(4)
