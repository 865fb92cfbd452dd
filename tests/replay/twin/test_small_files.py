"""Both cores that make small files: the same files, the same order, the same refusals."""

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from replay.twin.content import BLOCK_BYTES, make_noise, noise_block
from replay.twin.small_files import Writer, small_files_writer, write_in_python

SIZES = [0, 1, 7, 8, 9, 4096, 16_384, 100_001, 262_144]


@pytest.fixture(params=["python", "compiled"])
def writer(request: pytest.FixtureRequest) -> Writer:
    if request.param == "python":
        return write_in_python
    if os.environ.get("DXT_REPLAY_REQUIRE_COMPILED") != "1":
        pytest.importorskip("replay.twin._small_files")
    assert small_files_writer() is not write_in_python
    return small_files_writer()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def made(writer: Writer, directory: int, names: list[bytes], sizes: list[int]) -> tuple[int, int]:
    """The error and the number of whole files."""
    done = np.zeros(1, dtype=np.int64)
    record_ids = np.arange(len(names), dtype=np.uint64)
    code = writer(directory, names, np.array(sizes, dtype=np.int64), record_ids, noise_block(), done)
    return code, int(done[0])


def test_each_file_is_the_start_of_its_noise(writer: Writer, directory: int, tmp_path: Path) -> None:
    record_ids = np.array([0, 1, 2**64 - 1, *range(len(SIZES) - 3)], dtype=np.uint64)
    done = np.zeros(1, dtype=np.int64)
    names = [b"%d-\xc3\xa9" % number for number in range(len(SIZES))]
    code = writer(directory, names, np.array(SIZES, dtype=np.int64), record_ids, noise_block(), done)
    assert (code, done[0]) == (0, len(SIZES))
    for name, size, record_id in zip(names, SIZES, record_ids.tolist(), strict=True):
        words = np.empty(BLOCK_BYTES // 8, dtype=np.uint64)
        make_noise(record_id, 0, words)
        assert (tmp_path / os.fsdecode(name)).read_bytes() == words.tobytes()[:size]
    assert len(list(tmp_path.iterdir())) == len(SIZES)


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "directory"])
def test_nothing_that_exists_is_written_into(kind: str, writer: Writer, directory: int, tmp_path: Path) -> None:
    kept, there = tmp_path / "kept", tmp_path / "b"
    kept.write_bytes(b"kept")
    if kind == "file":
        there.write_bytes(b"mine")
    elif kind == "directory":
        there.mkdir()
    else:
        there.symlink_to(kept if kind == "link" else tmp_path / "nowhere")
    assert made(writer, directory, [b"a", b"b", b"c"], [10, 20, 30]) == (errno.EEXIST, 1)
    assert kept.read_bytes() == b"kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "kept"]
    assert kind != "file" or there.read_bytes() == b"mine"


def test_a_file_that_the_system_refuses_is_taken_away(writer: Writer, directory: int, tmp_path: Path) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
        result = made(writer, directory, [b"a", b"b", b"c"], [8192, 10_000, 5])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert result == (errno.EFBIG, 1)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {"a": 8192}


def test_a_name_that_is_too_long(writer: Writer, directory: int) -> None:
    assert made(writer, directory, [b"n" * 256], [1]) == (errno.ENAMETOOLONG, 0)


def test_no_files(writer: Writer, directory: int) -> None:
    assert made(writer, directory, [], []) == (0, 0)


def test_what_is_larger_than_a_block_is_refused(writer: Writer, directory: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most 1048576 bytes"):
        made(writer, directory, [b"a"], [BLOCK_BYTES + 1])
    with pytest.raises(ValueError, match="for each name"):
        made(writer, directory, [b"a"], [1, 2])
    assert list(tmp_path.iterdir()) == []
