"""What tests of staging share: a capture and a target, what is in it, and a disk that refuses."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from dxt_replay.replay.target.manifest import read_manifest
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.replay.target.targets import open_target
from tests.capture_builder import File, Op, build_capture, read, write


def tree(directory):
    """Every file below `directory` with its bytes, directories as None."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in sorted(directory.rglob("*"))
    }


def twin(target):
    """Sizes of the files below the twin root, by path there."""
    root = target / TWIN_ROOT
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}


def manifest_of(target):
    with open_target(target) as opened:
        return read_manifest(opened)


def entries(target):
    """The rows of the manifest."""
    rows: list[dict[str, Any]] = manifest_of(target).files.to_pylist()
    return rows


def staged(capture, target, **options):
    plan = plan_stage(capture, target, **options)
    stage(plan)
    return plan


@pytest.fixture(name="target")
def target_fixture(tmp_path):
    return tmp_path / "target"


@pytest.fixture(name="capture")
def capture_fixture(tmp_path):
    """Two files read, one only written, one only stat'ed, one that no operation names."""
    return build_capture(
        tmp_path,
        files=["/data/a.npz", "/data/b/c.npz", "/out/model.ckpt", File("/data/index", size=5000), File("/x", size=9)],
        ops=[
            read(0, offset=100, length=3_000_000),
            read(1, offset=0, length=10),
            write(1, offset=10, length=20),
            write(2, length=4096),
            Op("stat", 3),
        ],
    )


def failing(call, code, *, after=0):
    """`call`, which the operating system refuses with `code` from call number `after` on."""
    count = 0

    def refused(*arguments, **options):
        nonlocal count
        count += 1
        if count > after:
            raise OSError(code, os.strerror(code))
        return call(*arguments, **options)

    return refused


def failing_writes(code, *, after=0):
    """`os.write`, which is refused with `code` from block number `after` of any large files on."""
    write = os.write
    of_blocks = failing(write, code, after=after)
    return lambda fd, data: write(fd, data) if len(data) < 4096 else of_blocks(fd, data)


def free_space(monkeypatch, free, *, inodes=1000):
    answer = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_favail=inodes, f_files=inodes, f_blocks=1)
    monkeypatch.setattr(os, "statvfs", lambda path: answer)


@dataclass(frozen=True)
class HeldReader:
    """A `Reader` of bytes in memory."""

    data: bytes

    @property
    def size(self):
        return len(self.data)

    def read_into(self, into, offset):
        found = self.data[offset : offset + len(into)]
        into[: len(found)] = found
        return len(found)

    def data_from(self, offset):
        return next((at for at in range(offset, self.size) if self.data[at]), self.size)
