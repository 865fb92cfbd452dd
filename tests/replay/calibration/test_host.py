"""What the machine says of itself, from files like those of Linux."""

from __future__ import annotations

import os
from pathlib import Path

from dxt_replay.replay.calibration.host import cache_bytes, dirty_bytes, file_system_of, read_ahead_setting


def test_available_memory(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       100 kB\nMemAvailable:    64 kB\n")
    assert cache_bytes(file) == 65_536
    file.write_text("MemAvailable: much\n")
    assert cache_bytes(file) == cache_bytes(tmp_path / "absent") == 1 << 30


def test_dirty_bytes_are_set_in_bytes_or_in_per_cent(tmp_path: Path) -> None:
    (tmp_path / "dirty_bytes").write_text("1234\n")
    assert dirty_bytes(tmp_path) == 1234
    (tmp_path / "dirty_bytes").write_text("0\n")
    (tmp_path / "dirty_ratio").write_text("10\n")
    assert 0 < dirty_bytes(tmp_path) < cache_bytes()


def test_the_type_of_a_file_system_is_that_of_its_device(tmp_path: Path) -> None:
    device = os.stat(tmp_path).st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 2 0:999999 / /other rw - proc proc rw\n"
        f"3 2 {os.major(device)}:{os.minor(device)} / / rw,relatime shared:1 - lustre server:/fs rw\n"
    )
    assert file_system_of(tmp_path, mounts) == "lustre"
    mounts.write_text("nothing\n")
    assert file_system_of(tmp_path, mounts) == file_system_of(tmp_path, tmp_path / "absent") == "file system"


def test_how_far_the_kernel_reads_ahead(tmp_path: Path) -> None:
    (tmp_path / "0:40").mkdir()
    (tmp_path / "0:40" / "read_ahead_kb").write_text("128\n")
    assert read_ahead_setting(os.makedev(0, 40), tmp_path) == 131_072
    assert read_ahead_setting(os.makedev(0, 41), tmp_path) is None
