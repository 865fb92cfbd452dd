"""The file of a record, and the environment in it: what is written is read again, in every version; what is damaged,
foreign or newer is one clear error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.replay.regress.environment import (
    BlockDevice,
    TargetEnvironment,
    machine_changes,
    machine_environment,
    target_changes,
    target_environment,
)
from dxt_replay.replay.regress.record import MOST_BYTES, ExperimentRecord, check_comparable, is_record, read_record
from dxt_replay.traces.errors import UsageError
from tests.replay.regress.builder import OPTIONS, TARGET, record, run


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    made = record(runs=(run("candidate", 0, elapsed_s=3.0, overhead_pct=None), *record().runs))
    place = tmp_path / "a.json"
    place.write_bytes(made.encoded())
    found = read_record(place)
    assert (found, found.name) == (made, "a.json")
    assert [one.metrics["elapsed_s"] for one in found.counted_runs()] == [1.0, 1.01, 0.99]
    assert (found.start_ns, is_record(place)) == (0, True)


def test_a_record_of_version_1_is_read(tmp_path: Path) -> None:
    document = json.loads(record().encoded()) | {"schema_version": 1}
    metric = {"ratio": 1.2, "low": 1.1, "high": None, "p_value": 0.01, "verdict": "regression"}
    document["result"]["metrics"] = {"io_time_s": metric}
    document["options"] |= {"vectored": 2, "reconstruct": False}
    del document["result"]["storage"], document["runs"][0]["stood_still_s"], document["runs"][0]["keeps_pages"]
    (tmp_path / "a.json").write_text(json.dumps(document), encoding="utf-8")
    found = read_record(tmp_path / "a.json")
    assert (found.schema_version, found.options.vectored, found.counted_runs()) == (1, 2, record().runs)


def test_both_sides_of_one_target_are_runs_of_it() -> None:
    both = (run("baseline", 1, elapsed_s=1.0), run("candidate", 1, elapsed_s=2.0))
    for other, counted in ((TARGET, 2), (replace(TARGET, target="/other"), 1)):
        assert len(record(runs=both, targets={"baseline": other, "candidate": TARGET}).counted_runs()) == counted


def _change(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_change("format", to="something else"), "is not a record of an experiment: give a file"),
        (_change("schema_version", to=3), "this release reads up to 2: update dxt-replay"),
        (_change("schema_version", to="1"), "is damaged: its schema_version"),
        (_change("schema_version", to=True), "is damaged: its schema_version"),
        (_change("runs", to=[]), "it has 0 runs instead of 1 to 10,000"),
        (_change("runs", 0, "metrics", "elapsed_s", to=-1.0), "`float` >= 1e-15"),
        (_change("runs", 0, "metrics", "elapsed_s", to=None), "Expected `float`"),
        (_change("runs", 0, "metrics", to={"speed of light": 1.0}), "'?speed of light'? is not a metric"),
        (_change("runs", 0, "side", to="baseline"), "run 1 is of the side 'baseline', which has no target"),
        (_change("runs", 1, "pair", to=1), "run 2 repeats pair 1 of the candidate"),
        (_change("runs", 1, "start_ns", to=-5), r"`int` >= 0 .*start_ns"),
        (_change("runs", 1, "bytes_read", to=1 << 63), "bytes_read"),
        (_change("runs", 1, "lag_us", to={"p50": 1.0}), "run 2: a percentile is missing"),
        (_change("runs", 1, "whole_s", to=1e300), "`float` < 1000000000"),
        (_change("runs", 1, "capture", to="/etc/passwd"), "is damaged"),
        (_change("targets", to={}), "it has no candidate"),
        (_change("targets", "candidate", "options", to="rw"), "Expected `array`"),
        (_change("primary", to="\x1b[2J"), r"x1b\[2J' is not a metric"),
        (_change("result", "verdict", to="fine"), "Invalid enum value"),
        (_change("result", "alpha", to=7.0), "`float` <= 0.5"),
        (_change("result", to=None), "it has no result"),
        (_change("seed", to=-1), "`int` >= 0"),
    ],
)
def test_what_is_wrong_is_one_clear_error(tmp_path: Path, change: Callable[[Any], None], words: str) -> None:
    document = json.loads(record().encoded())
    change(document)
    place = tmp_path / "a.json"
    place.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UsageError, match=words) as error:
        read_record(place)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a record"),
        (b"[" * 100_000, "is not a record"),
        (b"\xff\xfe", "is not a record"),
        (b'{"format": "dxt-replay regress record", "runs": [', "is damaged"),
        (b'{"format": "dxt-replay regress record", "schema_version": 1}', "is damaged"),
        (b'{"format": "dxt-replay regress record", "schema_version": 1e999}', "is damaged"),
        (b" " * (MOST_BYTES + 1), "has more than 64 MiB"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",  # not the 64 MiB
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_record(tmp_path / "a.json")


def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "absent", "a\0b"):
        with pytest.raises(UsageError, match=r"regular file|cannot read"):
            read_record(tmp_path / name)


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        (record(capture=replace(record().capture, digest="e" * 64)), "is other work with 100"),
        (record(options=replace(OPTIONS, cache="as found")), "with cache as found and these runs with cache cold"),
        (record(options=replace(OPTIONS, pace="none")), "with pace none and these runs with pace steps"),
        (record(runs=(run("candidate", 1, elapsed_s=1.0, stopped=True),)), "has no finished run"),
        (record([1.0] * 2001), "has more than 2,000 runs"),
    ],
)
def test_what_cannot_be_compared_is_refused(recorded: ExperimentRecord, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_comparable(recorded, record().capture, OPTIONS)
    check_comparable(record(), record().capture, OPTIONS)


# ----------------------------------------------------------------------------------------------------- the environment


def kernel(folder: Path, files: dict[str, str]) -> Path:
    """A directory with these files below `proc` and `sys`."""
    for name, content in files.items():
        place = folder / "kernel" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content, encoding="utf-8")
    return folder / "kernel"


def test_the_nearest_mount_above_the_target_and_its_device_are_described(tmp_path: Path) -> None:
    (tmp_path / "data set").mkdir()
    point, disk = str(tmp_path / "data set").replace(" ", r"\040"), "sys/devices/nvme0n1"
    mounts = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard\n"
        f"30 22 259:5 / {point} rw,noatime - xfs /dev/nvme0n1p5 rw,logbufs=8\n"
        f"31 22 8:2 / {point}2 rw - ext3 /dev/sda2 rw\n"
        "a damaged line\n"
    )
    files = {
        "proc/self/mountinfo": mounts,
        "sys/class/bdi/259:5/read_ahead_kb": "512\n",
        f"{disk}/queue/scheduler": "none [kyber]",
        f"{disk}/queue/rotational": "0",
        f"{disk}/queue/nr_requests": "64",
        f"{disk}/queue/read_ahead_kb": "128",
        f"{disk}/device/model": "Fast Disk  \n",
        f"{disk}/p5/partition": "5",
    }
    root = kernel(tmp_path, files)
    (root / "sys/dev/block").mkdir(parents=True)
    (root / "sys/dev/block/259:5").symlink_to(root / disk / "p5")
    assert target_environment(tmp_path / "data set" / "twin", ("/a=/b",), root) == TargetEnvironment(
        target=str(tmp_path / "data set" / "twin"),
        maps=("/a=/b",),
        file_system="xfs",
        mount_point=str(tmp_path / "data set"),
        source="/dev/nvme0n1p5",
        options=("logbufs=8", "noatime", "rw"),
        read_ahead_kib=512,
        device=BlockDevice(
            name="nvme0n1", model="Fast Disk", scheduler="kyber", rotational=False, read_ahead_kib=128,
            queue_requests=64,
        ),
    )  # fmt: skip


def test_a_kernel_that_says_nothing_is_no_obstacle(tmp_path: Path) -> None:
    assert target_environment(tmp_path, (), tmp_path / "nothing") == TargetEnvironment(target=str(tmp_path))
    found = machine_environment(3, tmp_path / "nothing")
    assert (found.processes, found.memory_bytes, found.limits, found.settings) == (3, 0, {}, {})
    assert {"dxt-replay", "python", "pyarrow"} <= found.versions.keys()
    assert machine_environment().memory_bytes > 0, "this one says something"
    assert target_environment(Path("/proc")).file_system == "proc"


GROUPS = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("group", "files", "limits"),
    [
        (
            "0::/job/step\n",
            {"job/step/cpu.max": "max 100000", "job/cpu.max": "150000 100000", "job/io.max": "8:0 rbps=1000"},
            {"cpu.max": "150000 100000", "io.max": "8:0 rbps=1000"},
        ),
        (
            "4:memory:/job\n3:blkio:/\n",
            {
                "memory/job/memory.limit_in_bytes": str(1 << 62),
                "memory/memory.limit_in_bytes": str(1 << 30),
                "blkio/blkio.throttle.read_bps_device": "8:0 1048576\n",
            },
            {"memory.limit_in_bytes": str(1 << 30), "blkio.throttle.read_bps_device": "8:0 1048576"},
        ),
    ],
)
def test_the_nearest_limits_of_the_control_groups_are_found(
    tmp_path: Path, group: str, files: dict[str, str], limits: dict[str, str]
) -> None:
    placed = {f"{GROUPS}/{name}": text for name, text in files.items()}
    assert machine_environment(1, kernel(tmp_path, {"proc/self/cgroup": group, **placed})).limits == limits


def test_changes_are_named() -> None:
    machine = replace(machine_environment(), kernel="6.1.0", memory_bytes=1 << 30, limits={}, versions={"numpy": "1"})
    later = replace(machine, kernel="6.8.0", memory_bytes=(1 << 30) + 4096, limits={"cpu.max": "1 2"}, versions={})
    assert machine_changes(machine, machine) == []
    assert sorted(machine_changes(machine, later)) == [
        "kernel 6.1.0 -> 6.8.0",
        "limit cpu.max none -> 1 2",
        "numpy 1 -> none",
    ]
    device = BlockDevice(name="sda", rotational=True)
    disk = TargetEnvironment(target="/t", file_system="ext4", options=("rw",), device=device)
    for changes, said in (
        ({"options": ("noatime", "rw")}, ["mount option noatime added"]),
        ({"file_system": "xfs", "options": ()}, ["file system ext4 -> xfs", "mount option rw removed"]),
        ({"device": None}, ["device sda -> none"]),
        ({"device": BlockDevice(name="sda", rotational=False)}, ["device is rotational yes -> no"]),
    ):
        assert target_changes(disk, replace(disk, **changes)) == said  # type: ignore[arg-type]
