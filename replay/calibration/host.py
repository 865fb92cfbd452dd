"""Reads the system's own facts about this machine and a file system. Measures nothing."""

from __future__ import annotations

import os
from pathlib import Path

from dxt_replay.traces.memory import available_bytes

_DEFAULT_DIRTY_PCT = 20
"""vm.dirty_ratio of Linux."""


def cache_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that a page cache can use, bytes; 1 GiB if /proc/meminfo does not tell."""
    return available_bytes(meminfo) or 1 << 30


def dirty_bytes(folder: Path = Path("/proc/sys/vm")) -> int:
    """Bytes of writes that the page cache holds before a writer has to wait (vm.dirty_bytes, vm.dirty_ratio)."""
    limit = _number(folder / "dirty_bytes") or 0
    percent = _number(folder / "dirty_ratio") or _DEFAULT_DIRTY_PCT
    return limit or cache_bytes() * percent // 100


def read_ahead_setting(device: int, folder: Path = Path("/sys/class/bdi")) -> int | None:
    """Bytes that the kernel reads ahead at most on the file system of this st_dev; None if unknown."""
    kib = _number(folder / f"{os.major(device)}:{os.minor(device)}" / "read_ahead_kb")
    return None if kib is None else kib << 10


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that holds `path`, such as ext4; "file system" if unknown."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        text = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "file system"
    for line in text.splitlines():
        before, _, after = line.partition(" - ")  # proc(5), /proc/pid/mountinfo
        fields = before.split()
        if len(fields) > 2 and fields[2] == wanted and after:
            return after.split()[0]
    return "file system"
