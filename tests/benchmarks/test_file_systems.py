"""The benchmark on file systems: its table says what the comparisons found, and it removes all that it makes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.file_systems import measuring
from benchmarks.file_systems.__main__ import KINDS
from benchmarks.file_systems.changes import CHANGES
from benchmarks.file_systems.mounted import IMAGE_BYTES, Storage, UnavailableError, mounted, why_unavailable
from benchmarks.file_systems.verdict_table import binomial_tail, conclude, is_found, markdown, promise, table
from benchmarks.slowed_storage import CannotThrottleError
from tests.places import ROOT

needs_loop = pytest.mark.skipif(why_unavailable("ext4") is not None, reason=f"ext4: {why_unavailable('ext4')}")


def row(verdict, ratio=1.0, ci=(0.9, 1.1), **others):
    return {"verdict": verdict, "ratio": ratio, "ci": list(ci)} | others


def change(verdict, expected, **others):
    return row(verdict, change="ext4: some change", workload="reading", expected=expected, **others)


def same(verdict):
    return row(verdict, kind="ext4", workload="reading")


@pytest.mark.parametrize(
    ("verdict", "expected", "found"),
    [
        ("regression", "slower", True),
        ("improvement", "faster", True),
        ("improvement", "slower", False),
        ("regression", "faster", False),
        ("no change", "slower", False),
        ("inconclusive", "faster", False),
    ],
)
def test_a_change_is_found_by_a_verdict_of_its_direction_alone(verdict, expected, found):
    assert is_found(change(verdict, expected)) is found


def test_the_tail_of_the_binomial_distribution():
    assert binomial_tail(0, 30, 0.05) == pytest.approx(1.0)
    assert binomial_tail(1, 30, 0.05) == pytest.approx(1 - 0.95**30)
    assert binomial_tail(3, 3, 0.05) == pytest.approx(0.05**3)
    assert binomial_tail(4, 3, 0.05) == 0.0


@pytest.mark.parametrize(("alarms", "kept"), [(0, True), (1, True), (4, True), (5, False), (30, False)])
def test_a_promise_is_broken_by_more_false_alarms_than_chance_explains(alarms, kept):
    rows = [same("regression" if number % 2 else "improvement") for number in range(alarms)]
    rows += [same("inconclusive" if number % 2 else "no change") for number in range(30 - alarms)]
    found = promise(rows)
    assert (found["false_alarms"], found["comparisons"], found["kept"]) == (alarms, 30, kept)


def test_the_result_passes_when_all_changes_are_found_and_no_promise_is_broken():
    found, missed = change("regression", "slower"), change("no change", "slower")
    calm, alarmed = [same("no change")] * 30, [same("regression")] * 30
    assert conclude([found], {"idle": calm}, {})["passed"]
    assert not conclude([found, missed], {"idle": calm}, {})["passed"]
    assert not conclude([found], {"idle": calm, "busy": alarmed}, {})["passed"]


def test_the_table_names_what_was_missed_broken_and_left_out():
    missed = change("improvement", "slower", ratio=0.5, ci=(None, None))
    beside = change("regression", "slower", ratio=2.0, ci=(1.5, 2.5), fio=row("no change"))
    lines = table(conclude([missed, beside], {"busy": [same("regression")] * 30}, {"nfs": "no client"})).splitlines()
    assert " NO " in lines[1]
    assert lines[1].split()[-1] == "-"
    assert " yes " in lines[2]
    assert lines[2].endswith("1.50 to 2.50  no change, 1.00 x (0.90 to 1.10)")
    assert lines[3] == "30 A/A comparisons, busy machine: 30 false alarms (promised: at most 5 %: BROKEN)"
    assert lines[4] == "nfs: not measured: no client"


def test_the_table_in_markdown_has_as_many_cells_in_each_row():
    rows = [change("regression", "slower"), change("no change", "slower", fio=row("no change", ci=(None, None)))]
    lines = markdown(conclude(rows, {}, {"nfs": "no client"})).splitlines()
    assert [line.count("|") for line in lines[:4]] == [8] * 4
    assert lines[2:] == [
        "| ext4: some change | reading | slower | regression | 1.00 x | 0.90 to 1.10 |  |",
        "| ext4: some change | reading | slower | no change | 1.00 x | 0.90 to 1.10 | no change, 1.00 x (-) |",
        "",
        "- nfs: not measured: no client",
    ]


def test_every_change_has_a_name_of_its_own_a_workload_and_sides_that_differ():
    assert len({change.name for change in CHANGES}) == len(CHANGES)
    for change in CHANGES:
        assert "," not in change.name  # which separates names of --only
        assert (Path(measuring.__file__).parent / "workloads" / f"{change.workload}.yaml").is_file()
        assert change.workload in measuring.WORKLOADS
        assert change.baseline != change.candidate
        assert change.expected in ("slower", "faster")


def test_a_file_system_that_the_kernel_does_not_have_is_named():
    assert why_unavailable("nosuchfs") in ("it needs root", "this kernel has no nosuchfs")
    with pytest.raises(UnavailableError), mounted(Storage(kind="nosuchfs"), Path("/")):
        pass


def left_over(place):
    """`loop_devices`, after the moment for which another process that was just started may still hold a mount."""
    for _ in range(100):
        if not loop_devices(place):
            return []
        time.sleep(0.1)
    return loop_devices(place)


def loop_devices(place):
    """Loop devices with an image in `place`, and mounts below it."""
    devices = subprocess.run(["losetup", "--list", "--output", "BACK-FILE"], capture_output=True, text=True, check=True)
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    return [line for line in (devices.stdout + mounts).splitlines() if str(place) in line]


@needs_loop
def test_a_mounted_file_system_is_gone_after_an_error(tmp_path):
    def use_and_fail():
        with mounted(Storage(kind="ext4", read_ahead_kib=16), tmp_path) as side:
            assert side.folder.is_mount()
            assert os.statvfs(side.folder).f_blocks * os.statvfs(side.folder).f_frsize < IMAGE_BYTES
            ahead = Path("/sys/dev/block", side.device, "queue", "read_ahead_kb")
            assert ahead.read_text(encoding="ascii").strip() == "16"
            assert loop_devices(tmp_path)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use_and_fail()
    assert not left_over(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_system_of_each_kind_keeps_what_is_written_and_is_gone_afterwards(tmp_path, kind):
    written = bytes(range(256)) * 256
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(mounted(Storage(kind=kind), tmp_path)).folder
        except (UnavailableError, CannotThrottleError) as error:
            pytest.skip(str(error))
        (folder / "sub").mkdir()
        (folder / "sub" / "first").write_bytes(written)
        (folder / "sub" / "first").rename(folder / "second")
        with (folder / "second").open("r+b") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert file.read() == written
            file.truncate(10)
        assert (folder / "second").stat().st_size == 10
        (folder / "sub").rmdir()
        assert "second" in os.listdir(folder)
    assert not folder.exists()
    assert not left_over(tmp_path)


@needs_loop
def test_a_device_is_detached_where_its_file_system_cannot_be_mounted(tmp_path):
    with pytest.raises(UnavailableError, match="mount"), mounted(Storage(kind="ext4", options="nosuch=1"), tmp_path):
        pass
    assert not left_over(tmp_path)
    assert not list(tmp_path.iterdir())


def benchmark(tmp_path, *arguments):
    command = [sys.executable, "-m", "benchmarks.file_systems", "--target", str(tmp_path)]
    return subprocess.Popen(
        [*command, "-o", str(tmp_path / "out" / "result.json"), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_unknown_name_is_refused(tmp_path):
    with benchmark(tmp_path, "--only", "ext4: riops,nosuch") as process:
        _, said = process.communicate()
    assert process.returncode == 2
    assert "no comparison begins with 'nosuch'" in said


@needs_loop
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_benchmark_and_leaves_nothing(tmp_path, number):
    with benchmark(tmp_path, "--only", "ext4: riops") as process:
        assert "comparing ext4: riops" in process.stderr.readline()
        process.send_signal(number)
        process.communicate()
    assert process.returncode == 128 + number
    assert not left_over(tmp_path)
    assert not list(tmp_path.iterdir())
    groups = [*Path("/sys/fs/cgroup").glob("dxt-replay-*"), *Path("/sys/fs/cgroup/blkio").glob("dxt-replay-*")]
    assert str(process.pid) not in [group.name.rsplit("-", 1)[1] for group in groups]


@needs_loop
@pytest.mark.slow
def test_a_throttled_disk_is_compared_and_the_table_says_what_came_of_it(tmp_path):
    with benchmark(tmp_path, "--only", "ext4: riops") as process:
        printed, said = process.communicate()
    result = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    if not result["changes"]:
        pytest.skip(str(result["skipped"]))
    [change] = result["changes"]
    assert change["verdict"] in ("regression", "inconclusive"), said  # inconclusive where the machine is too noisy
    found = change["verdict"] == "regression"
    assert process.returncode == (0 if found else 1)
    assert (" yes " if found else " NO ") in printed
    assert not left_over(tmp_path)
