"""The benchmark on file systems: its table says what the comparisons found, and it removes all that it makes."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import file_systems
from benchmarks.file_systems import CHANGES, Storage, UnavailableError, conclude, mounted, table
from tests.places import ROOT

needs_ext4 = pytest.mark.skipif(bool(file_systems.why_unavailable("ext4")), reason="needs root and loop devices")


def row(verdict, ratio=1.0, **others):
    return {"verdict": verdict, "ratio": ratio, "ci": [0.9, 1.1]} | others


def change(verdict, expected, **others):
    return row(verdict, change="ext4: some change", workload="reading", expected=expected, **others)


@pytest.mark.parametrize(
    ("verdict", "expected", "alarms", "passed"),
    [
        ("regression", "slower", 0, True),
        ("improvement", "faster", 4, True),  # as many of 30 as chance explains
        ("regression", "slower", 5, False),
        *((verdict, expected, 0, False) for verdict, expected in (
            ("improvement", "slower"), ("regression", "faster"), ("no change", "slower"), ("inconclusive", "faster"))),
    ],
)  # fmt: skip
def test_all_changes_are_found_in_their_direction_and_no_promise_is_broken(verdict, expected, alarms, passed):
    same = [row(("improvement", "regression")[number % 2]) for number in range(alarms)]
    same += [row(("no change", "inconclusive")[number % 2]) for number in range(30 - alarms)]
    assert conclude([change(verdict, expected)], {"idle": same}, {})["passed"] is passed


def test_the_table_names_what_was_missed_broken_and_left_out():
    missed = change("improvement", "slower", ratio=0.5, ci=(None, None))
    found = change("regression", "slower", ratio=2.0, ci=(1.5, 2.5))
    lines = table(conclude([missed, found], {"busy": [row("regression")] * 30}, {"xfs": "no mkfs"})).splitlines()
    assert lines[1:] == [
        "ext4: some change;reading;0.50 x;-;NOT FOUND: improvement",
        "ext4: some change;reading;2.00 x;1.50 to 2.50",
        "30 A/A comparisons, busy machine: 30 false alarms (promised: at most 5 %: BROKEN)",
        "xfs: not measured: no mkfs",
    ]
    shown = {line.split(";")[0] for line in (ROOT / "docs/pictures/verdicts.csv").read_text().splitlines()[1:]}
    assert set(CHANGES) <= shown


def test_a_file_system_that_the_kernel_does_not_have_is_named():
    assert file_systems.why_unavailable("nosuchfs") in ("it needs root", "this kernel has no nosuchfs")
    with pytest.raises(UnavailableError), mounted(Storage(kind="nosuchfs"), Path("/")):
        pass


def left_over(place):
    """Loop devices with an image in `place` and mounts below it, once no other process that just began holds one."""
    for _ in range(100):
        devices = subprocess.run(["losetup", "--list", "--output", "BACK-FILE"], capture_output=True, text=True).stdout
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
        found = [line for line in (devices + mounts).splitlines() if str(place) in line]
        if not found:
            break
        time.sleep(0.1)
    return found


@needs_ext4
def test_an_interrupted_benchmark_leaves_nothing(tmp_path):
    words = ["--only", "ext4: rbps", "--target", str(tmp_path), "-o", str(tmp_path / "result.json")]
    command = [sys.executable, "-m", "benchmarks.file_systems", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("*/mounted-*")) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert not left_over(tmp_path)
    assert not list(tmp_path.iterdir())
