"""What the kernel says of a machine and its file systems, from fake /proc and /sys; and what changed, in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dxt_replay.replay.regress.environment import (
    BlockDevice,
    TargetEnvironment,
    machine_changes,
    machine_environment,
    target_changes,
    target_environment,
)


def kernel(folder: Path, mounts: str, **files: str) -> Path:
    """A directory with `proc` and `sys`; `files`: path with `__` for `/` -> content."""
    root = folder / "kernel"
    for name, content in {"proc/self/mountinfo": mounts, **files}.items():
        place = root / name.replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content, encoding="utf-8")
    return root


def test_the_nearest_mount_above_the_target_and_its_device_are_described(tmp_path: Path) -> None:
    point = str(tmp_path / "data set").replace(" ", r"\040")
    mounts = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard\n"
        f"30 22 259:5 / {point} rw,noatime - xfs /dev/nvme0n1p5 rw,logbufs=8\n"
        f"31 22 8:2 / {point}2 rw - ext3 /dev/sda2 rw\n"
        "a damaged line\n"
    )
    root = kernel(tmp_path, mounts, **{"sys__class__bdi__259:5__read_ahead_kb": "512\n"})
    disk = root / "sys/devices/nvme0n1"
    files = {
        "queue/scheduler": "none [kyber]",
        "queue/rotational": "0",
        "queue/nr_requests": "64",
        "queue/read_ahead_kb": "128",
        "device/model": "Fast Disk  \n",
        "p5/partition": "5",
    }
    for name, text in files.items():
        (disk / name).parent.mkdir(parents=True, exist_ok=True)
        (disk / name).write_text(text, encoding="utf-8")
    (root / "sys/dev/block").mkdir(parents=True)
    (root / "sys/dev/block/259:5").symlink_to(disk / "p5")
    (tmp_path / "data set").mkdir()
    assert target_environment(tmp_path / "data set" / "twin", ("/a=/b",), root) == TargetEnvironment(
        target=str(tmp_path / "data set" / "twin"),
        maps=("/a=/b",),
        file_system="xfs",
        mount_point=str(tmp_path / "data set"),
        source="/dev/nvme0n1p5",
        options=("logbufs=8", "noatime", "rw"),
        read_ahead_kib=512,
        device=BlockDevice(
            name="nvme0n1",
            model="Fast Disk",
            scheduler="kyber",
            rotational=False,
            read_ahead_kib=128,
            queue_requests=64,
        ),
    )


def test_a_kernel_that_says_nothing_is_no_obstacle(tmp_path: Path) -> None:
    assert target_environment(tmp_path, (), tmp_path / "nothing") == TargetEnvironment(target=str(tmp_path))
    found = machine_environment(3, tmp_path / "nothing")
    assert (found.processes, found.memory_bytes, found.limits, found.settings) == (3, 0, {}, {})
    assert {"dxt-replay", "python", "pyarrow"} <= found.versions.keys()


def test_here_the_kernel_says_something() -> None:
    assert machine_environment().memory_bytes > 0
    assert target_environment(Path("/proc")).file_system == "proc"


@pytest.mark.parametrize(
    ("group", "files", "limits"),
    [
        (
            "0::/job/step\n",
            {"job__step__cpu.max": "max 100000", "job__cpu.max": "150000 100000", "job__io.max": "8:0 rbps=1000"},
            {"cpu.max": "150000 100000", "io.max": "8:0 rbps=1000"},
        ),
        (
            "4:memory:/job\n3:blkio:/\n",
            {
                "memory__job__memory.limit_in_bytes": str(1 << 62),
                "memory__memory.limit_in_bytes": str(1 << 30),
                "blkio__blkio.throttle.read_bps_device": "8:0 1048576\n",
            },
            {"memory.limit_in_bytes": str(1 << 30), "blkio.throttle.read_bps_device": "8:0 1048576"},
        ),
    ],
)
def test_the_nearest_limits_of_the_control_groups_are_found(
    tmp_path: Path, group: str, files: dict[str, str], limits: dict[str, str]
) -> None:
    placed = {f"sys__fs__cgroup__{name}": text for name, text in files.items()}
    root = kernel(tmp_path, "", proc__self__cgroup=group, **placed)
    assert machine_environment(1, root).limits == limits


def test_changes_are_named() -> None:
    machine = replace(machine_environment(), kernel="6.1.0", memory_bytes=1 << 30, limits={}, versions={"numpy": "1"})
    later = replace(machine, kernel="6.8.0", memory_bytes=(1 << 30) + 4096, limits={"cpu.max": "1 2"}, versions={})
    assert machine_changes(machine, machine) == []
    assert sorted(machine_changes(machine, later)) == [
        "kernel 6.1.0 -> 6.8.0",
        "limit cpu.max none -> 1 2",
        "numpy 1 -> none",
    ]
    disk = TargetEnvironment(
        target="/t", file_system="ext4", options=("rw",), device=BlockDevice(name="sda", rotational=True)
    )
    assert target_changes(disk, replace(disk, options=("noatime", "rw"))) == ["mount option noatime added"]
    assert target_changes(disk, replace(disk, file_system="xfs", options=())) == [
        "file system ext4 -> xfs",
        "mount option rw removed",
    ]
    assert target_changes(disk, replace(disk, device=None)) == ["device sda -> none"]
    assert target_changes(disk, replace(disk, device=BlockDevice(name="sda", rotational=False))) == [
        "device is rotational yes -> no"
    ]
