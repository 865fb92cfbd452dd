"""Files that are made, looked at and removed many at a time: what is there afterwards, and what is refused."""

import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.replay.target.content import BLOCK_BYTES, make_noise
from dxt_replay.replay.target.small_files import FileNames, look_at_files, remove_files, write_small_files

SIZES = [0, 1, 7, 8, 9, 4096, 16_384, 100_001, 262_144]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def columns(names: list[bytes]) -> FileNames:
    """The names, with something between them in their text."""
    text = np.frombuffer(b"".join(b"/x/" + name for name in names), dtype=np.uint8)
    ends = np.cumsum([3 + len(name) for name in names], dtype=np.int64)
    begins = ends - np.array([len(name) for name in names], dtype=np.int64)
    return FileNames(text=text, begins=begins, ends=ends)


def made(directory: int, names: list[bytes], sizes: list[int]) -> tuple[int, int]:
    """The error and the number of whole files."""
    done = np.zeros(1, dtype=np.int64)
    record_ids = np.arange(len(names), dtype=np.uint64)
    code = write_small_files(directory, columns(names), np.array(sizes, dtype=np.int64), record_ids, done)
    return code, int(done[0])


def test_each_file_is_the_start_of_its_noise(directory: int, tmp_path: Path) -> None:
    record_ids = np.array([0, 1, 2**64 - 1, *range(len(SIZES) - 3)], dtype=np.uint64)
    done = np.zeros(1, dtype=np.int64)
    names = [b"%d-\xc3\xa9" % number for number in range(len(SIZES))]
    code = write_small_files(directory, columns(names), np.array(SIZES, dtype=np.int64), record_ids, done)
    assert (code, done[0]) == (0, len(SIZES))
    for name, size, record_id in zip(names, SIZES, record_ids.tolist(), strict=True):
        words = np.empty(BLOCK_BYTES // 8, dtype=np.uint64)
        make_noise(record_id, 0, words)
        assert (tmp_path / os.fsdecode(name)).read_bytes() == words.tobytes()[:size]
    assert len(list(tmp_path.iterdir())) == len(SIZES)


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "directory"])
def test_nothing_that_exists_is_written_into(kind: str, directory: int, tmp_path: Path) -> None:
    kept, there = tmp_path / "kept", tmp_path / "b"
    kept.write_bytes(b"kept")
    if kind == "file":
        there.write_bytes(b"mine")
    elif kind == "directory":
        there.mkdir()
    else:
        there.symlink_to(kept if kind == "link" else tmp_path / "nowhere")
    assert made(directory, [b"a", b"b", b"c"], [10, 20, 30]) == (errno.EEXIST, 1)
    assert kept.read_bytes() == b"kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "kept"]
    assert kind != "file" or there.read_bytes() == b"mine"


def test_a_file_that_the_system_refuses_is_taken_away(directory: int, tmp_path: Path) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
        result = made(directory, [b"a", b"b", b"c"], [8192, 10_000, 5])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert result == (errno.EFBIG, 1)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {"a": 8192}


def test_a_name_that_is_too_long(directory: int) -> None:
    assert made(directory, [b"n" * 256], [1]) == (errno.ENAMETOOLONG, 0)


def test_no_files(directory: int) -> None:
    assert made(directory, [], []) == (0, 0)


def test_what_is_larger_than_a_block_is_refused(directory: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most 1048576 bytes"):
        made(directory, [b"a"], [BLOCK_BYTES + 1])
    with pytest.raises(ValueError, match="for each name"):
        made(directory, [b"a"], [1, 2])
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_seen_and_no_link_is_followed(directory: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"four")
    os.link(tmp_path / "a", tmp_path / "twin")
    (tmp_path / "é").symlink_to(tmp_path / "a")
    (tmp_path / "d").mkdir()
    names = [b"a", b"none", "é".encode(), b"d", b"twin"]
    found, done = np.full((len(names), 3), -1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    assert look_at_files(directory, columns(names), found, done) == 0
    assert done[0] == len(names)
    assert [stat.S_IFMT(mode) for mode in found[:, 0].tolist()] == [
        stat.S_IFREG,
        0,
        stat.S_IFLNK,
        stat.S_IFDIR,
        stat.S_IFREG,
    ]
    assert found[[0, 1, 4]].tolist() == [[found[0, 0], 4, 2], [0, 0, 0], [found[0, 0], 4, 2]]


def test_only_plain_files_are_removed(directory: int, tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "d").mkdir()
    done = np.zeros(2, dtype=np.int64)
    assert remove_files(directory, columns([b"a", b"link", b"none", b"d", b"b"]), done) == 0
    assert done.tolist() == [5, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "kept", "link"]


@pytest.mark.parametrize("call", [look_at_files, remove_files])
def test_a_refusal_names_its_file_by_number(call: Callable[..., int], directory: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"mine")
    done = np.zeros(2, dtype=np.int64)
    more = (np.zeros((3, 3), dtype=np.int64),) if call is look_at_files else ()
    code = call(directory, columns([b"a", b"n" * 256, b"b"]), *more, done)
    assert (code, done[0]) == (errno.ENAMETOOLONG, 1)


def test_names_that_are_not_within_their_text(directory: int) -> None:
    names = columns([b"a"])
    done, found = np.zeros(2, dtype=np.int64), np.zeros((1, 3), dtype=np.int64)
    begins, ends = names.begins, names.ends
    for begin, end in ((begins, ends + 1), (ends, begins), (begins - 100, ends)):
        with pytest.raises(ValueError, match="not within the text"):
            remove_files(directory, FileNames(text=names.text, begins=begin, ends=end), done)
    with pytest.raises(ValueError, match="three numbers"):
        look_at_files(directory, names, found[:0], done)


def test_names_are_given_as_bytes() -> None:
    names = columns([b"a", b"", "é".encode()])
    assert list(names) == [b"a", b"", "é".encode()]
    assert list(names.of(np.array([2, 0]))) == ["é".encode(), b"a"]
