"""A file that a replay writes is a plain file with one name, reached through no link: whatever opens it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dxt_replay.replay.engine.files import Backend, FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import OPEN, RENAME, WRITE_AT
from dxt_replay.replay.engine.link_free import looks_at_whole_paths, refuse_links
from tests.fakes import PythonPosix
from tests.places import ROOT
from tests.replay.engine.issue_lanes import results


@pytest.fixture(params=["posix", "direct", "stdio", "python"])
def backend(request: pytest.FixtureRequest) -> str | Backend:
    return PythonPosix() if request.param == "python" else request.param


@pytest.fixture
def place(tmp_path: Path) -> Path:
    if not looks_at_whole_paths():
        pytest.skip("this system has no openat2")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_bytes(b"kept")
    (tmp_path / "twin").mkdir()
    (tmp_path / "twin/link").symlink_to(tmp_path / "outside")
    return tmp_path


@pytest.mark.parametrize("name", ["link/kept", "link/new"])
def test_a_link_in_the_middle_is_not_followed(backend: str | Backend, place: Path, name: str) -> None:
    slot = FileSlot(path=bytes(place / "twin" / name), writable=True, create=True, uses=9)
    files = Files([slot], backend)
    assert results(files, (WRITE_AT, 0, 0, 5, 0), (OPEN, 0, 0, 0, 0)) == [-errno.ELOOP, -errno.ELOOP]
    assert [path.read_bytes() for path in (place / "outside").iterdir()] == [b"kept"]


def test_a_second_name_of_a_file_is_not_written(backend: str | Backend, place: Path) -> None:
    os.link(place / "outside/kept", place / "twin/a")
    files = Files([FileSlot(path=bytes(place / "twin/a"), writable=True, uses=9)], backend)
    assert results(files, (WRITE_AT, 0, 0, 5, 0), (OPEN, 0, 0, 0, 0), (WRITE_AT, 0, 0, 5, 0)) == [-errno.EMLINK] * 3
    assert (place / "outside/kept").read_bytes() == b"kept"


def test_what_is_not_a_plain_file_is_not_written(backend: str | Backend, place: Path) -> None:
    os.mkfifo(place / "twin/pipe")
    files = Files([FileSlot(path=bytes(place / "twin/pipe"), writable=True, uses=9)], backend)
    (found,) = results(files, (WRITE_AT, 0, 0, 5, 0))
    assert found in (-errno.EPERM, -errno.EINVAL)  # a pipe has no O_DIRECT


@pytest.mark.parametrize(("old", "new"), [("link/kept", "moved"), ("mine", "link/moved"), ("mine", "link/kept")])
def test_a_rename_stays_between_directories(backend: str | Backend, place: Path, old: str, new: str) -> None:
    (place / "twin/mine").write_bytes(b"mine")
    slots = [FileSlot(path=bytes(place / "twin" / name), writable=True, uses=9) for name in (old, new)]
    files = Files(slots, backend)
    assert results(files, (RENAME, 0, 1, 0, 0)) == [-errno.ELOOP]
    assert [path.read_bytes() for path in (place / "outside").iterdir()] == [b"kept"]
    assert (place / "twin/mine").exists()


@pytest.mark.parametrize("name", ["link/kept", "link/new", "link"])
def test_libraries_that_open_paths_themselves_are_kept_from_links(place: Path, name: str) -> None:
    with pytest.raises(OSError, match=f"Errno {errno.ELOOP}"):
        refuse_links(bytes(place / "twin" / name))
    refuse_links(bytes(place / "twin" / "absent"))


_PRELOADED = """
import sys
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import WRITE_AT
from dxt_replay.replay.engine.link_free import looks_at_whole_paths
from tests.fakes import PythonPosix
from tests.replay.engine.issue_lanes import results
assert not looks_at_whole_paths()
paths = [sys.argv[1].encode() + name for name in (b"/new", b"/last", b"/plain")]
slots = [FileSlot(path=path, writable=True, create=True, uses=9) for path in paths]
files = Files(slots, PythonPosix() if sys.argv[2] == "python" else sys.argv[2])
print(results(files, *[(WRITE_AT, slot, 0, 5, 0) for slot in range(3)]))
"""


@pytest.mark.parametrize("backend", ["posix", "stdio", "python"])
def test_under_a_preloaded_tracer_the_calls_of_libc_are_made(place: Path, backend: str) -> None:
    (place / "twin/last").symlink_to(place / "outside/kept")
    (place / "twin/plain").write_bytes(b"plain")
    done = subprocess.run(
        [sys.executable, "-c", _PRELOADED, str(place / "twin"), backend],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": "libm.so.6"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [str([5, -errno.ELOOP, 5])], done.stderr
    assert (place / "outside/kept").read_bytes() == b"kept"
    assert (place / "twin/plain").read_bytes() != b"plain"
