"""What tests of the issue loop share: lanes that are run, and libraries for LD_PRELOAD."""

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.issue import Lane
from dxt_replay.replay.engine.items import LoopPace
from tests.fakes import make_batch

COMPILER = shutil.which("cc") or shutil.which("gcc")

HOUR_NS = 3600 * 10**9


def run_lane(files, *batches, pace=LoopPace.NONE, start=None, stop=None):
    """Run all batches through one lane in this thread; its completed batches and the lane."""
    lane = Lane(files, pace=pace, start=start or started(), stop=stop or StopFlag())
    for batch in batches:
        assert lane.submit(batch)
    lane.finish()
    lane.run()
    assert lane.done
    return collect_all(lane), lane


def collect_all(lane):
    return list(iter(lane.collect, None))


def results(files, *items, **options):
    """Results of one batch."""
    (completed,), _ = run_lane(files, make_batch(*items), **options)
    assert completed.count == len(items)
    return completed.result.tolist()


def run_together(*lanes):
    """Run lanes that have all their items, each in a thread of its own."""
    threads = [threading.Thread(target=lane.run) for lane in lanes]
    for lane, thread in zip(lanes, threads, strict=True):
        lane.finish()
        thread.start()
    for thread in threads:
        thread.join()


def open_paths():
    """Paths that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.fsencode(os.readlink(f"/proc/self/fd/{name}")))
        except OSError:
            continue  # the descriptor of the listing itself is gone
    return found


def started():
    """A gate that is open."""
    start = StartGate()
    start.open(time.monotonic_ns())
    return start


def built(name, folder):
    """The library of a C file beside this one. Skips the test without a compiler."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    library, source = folder / f"{name}.so", Path(__file__).with_name(f"{name}.c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", str(source), "-o", str(library), "-ldl"], check=True)
    return library
