"""Small files in a directory: what is there afterwards, and what is refused. What every target does: test_targets."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.replay.target import _small_files
from dxt_replay.replay.target.content import BLOCK_BYTES, noise_block
from dxt_replay.replay.target.path_columns import column
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.replay.target.posix import PosixTarget, open_directory
from dxt_replay.traces.errors import TargetError


@pytest.fixture
def target(tmp_path: Path) -> Iterator[PosixTarget]:
    with open_directory(tmp_path / "target", make=True) as target:
        yield target


@pytest.fixture
def directory(target: PosixTarget) -> Path:
    place = target.path / TWIN_ROOT
    place.mkdir()
    return place


def made(target: PosixTarget, names: list[str], sizes: list[int]) -> list[bool]:
    """Which files are whole."""
    placed = np.zeros(len(names), dtype=bool)
    paths, record_ids = column([f"{TWIN_ROOT}/{name}" for name in names]), np.arange(len(names), dtype=np.uint64)
    try:
        target.put_many(paths, np.array(sizes, dtype=np.int64), record_ids, placed)
    except TargetError:
        assert not placed.all()
    return placed.tolist()


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "directory"])
def test_nothing_that_exists_is_written_into(kind: str, target: PosixTarget, directory: Path, tmp_path: Path) -> None:
    kept, there = tmp_path / "kept", directory / "b"
    kept.write_bytes(b"kept")
    if kind == "file":
        there.write_bytes(b"mine")
    elif kind == "directory":
        there.mkdir()
    else:
        there.symlink_to(kept if kind == "link" else tmp_path / "nowhere")
    assert made(target, ["a", "b", "c"], [10, 20, 30]) == [True, False, False]
    assert kept.read_bytes() == b"kept"
    assert sorted(path.name for path in directory.iterdir()) == ["a", "b"]
    assert kind != "file" or there.read_bytes() == b"mine"


def test_a_file_that_the_system_refuses_is_taken_away(target: PosixTarget, directory: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
        whole = made(target, ["a", "b", "c"], [8192, 10_000, 5])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert whole == [True, False, False]
    assert {path.name: path.stat().st_size for path in directory.iterdir()} == {"a": 8192}


def test_what_is_there_is_seen_and_no_link_is_followed(target: PosixTarget, directory: Path) -> None:
    (directory / "a").write_bytes(b"four")
    os.link(directory / "a", directory / "twin")
    (directory / "é").symlink_to(directory / "a")
    (directory / "d").mkdir()
    found = target.stat(column([f"{TWIN_ROOT}/{name}" for name in ("a", "none", "é", "d", "twin", "none/x")]))
    kinds = [stat.S_IFMT(mode) for mode in found.mode.tolist()]
    assert kinds == [stat.S_IFREG, 0, stat.S_IFLNK, stat.S_IFDIR, stat.S_IFREG, 0]
    assert found.sizes[[0, 1, 4]].tolist() == [4, -1, 4]
    assert found.links[[0, 1, 4]].tolist() == [2, 0, 2]


def test_only_plain_files_are_removed(target: PosixTarget, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    for name in ("a", "b"):
        (directory / name).write_bytes(b"mine")
    (directory / "link").symlink_to(tmp_path / "kept")
    (directory / "d").mkdir()
    assert target.remove(column([f"{TWIN_ROOT}/{name}" for name in ("a", "link", "none", "d", "b")])) == 2
    assert sorted(path.name for path in directory.iterdir()) == ["d", "link"]
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize("call", ["stat", "remove"])
def test_a_refusal_names_its_file(call: str, target: PosixTarget, directory: Path) -> None:
    long = f"{TWIN_ROOT}/{'n' * 256}"
    with pytest.raises(TargetError, match=f"{long}: {os.strerror(errno.ENAMETOOLONG)}"):
        getattr(target, call)(column([f"{TWIN_ROOT}/a", long, f"{TWIN_ROOT}/b"]))


def test_compiled_calls_do_not_reach_beyond_their_arrays(tmp_path: Path) -> None:
    text, begin, end = np.frombuffer(b"/x/a", dtype=np.uint8), np.array([3]), np.array([4])
    done, found, record_ids = (
        np.zeros(2, dtype=np.int64),
        np.zeros((1, 3), dtype=np.int64),
        np.zeros(1, dtype=np.uint64),
    )
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        for begins, ends in ((begin, end + 1), (end, begin), (begin - 100, end)):
            with pytest.raises(ValueError, match="not within the text"):
                _small_files.remove(fd, text, begins, ends, done)
        with pytest.raises(ValueError, match="three numbers"):
            _small_files.look(fd, text, begin, end, found[:0], done)
        for sizes, message in (([BLOCK_BYTES + 1], "at most 1048576 bytes"), ([1, 2], "for each name")):
            with pytest.raises(ValueError, match=message):
                _small_files.write(fd, text, begin, end, np.array(sizes), record_ids, noise_block(), done)
    finally:
        os.close(fd)
    assert list(tmp_path.iterdir()) == []
