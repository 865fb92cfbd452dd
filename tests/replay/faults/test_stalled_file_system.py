"""A file system whose server stops under a run (FUSE): the run ends after its limit, and says where it hung."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.slowed_storage import CannotThrottleError, delayed
from tests.replay.faults.conftest import short_capture
from tests.replay.faults.injection import Commands

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse"),
]
MOST_S = 60


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A passthrough of an empty directory."""
    (tmp_path / "below").mkdir()
    try:
        with delayed(tmp_path / "below", 0) as mounted:
            yield mounted
    except CannotThrottleError as error:
        pytest.skip(str(error))


def server_of(mount: Path) -> int:
    """The process that serves a mount."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"delayed_files") and os.fsencode(mount) in words:
            return int(folder.name)
    raise AssertionError("nothing serves the mount")


@pytest.mark.parametrize("stopped_by", ["limit", "Ctrl-C"])
def test_a_run_on_it_ends_and_says_where_it_hung(
    commands: Commands, tmp_path: Path, mount: Path, stopped_by: str
) -> None:
    capture, server = short_capture(tmp_path).path, server_of(mount)
    mount.mkdir(exist_ok=True)
    assert commands.run(["stage", capture, "--target", mount]).status == 0
    over = threading.Event()

    def stop() -> None:
        """Once the run writes: the files that it makes are there."""
        until = time.monotonic() + MOST_S
        while not over.wait(0.01) and time.monotonic() < until:
            if list((tmp_path / "below").rglob("out/0.bin")) and list(tmp_path.glob(".r.capture.*")):
                os.kill(server, signal.SIGSTOP)
                return

    watching = threading.Thread(target=stop)
    watching.start()
    words = ["run", capture, "--target", mount, "-o", tmp_path / "r.capture", "--speed", "0.02"]
    try:
        if stopped_by == "limit":
            ended = commands.run([*words, "--timeout", "5"], most_s=MOST_S)
        else:
            ended = commands.run(words, killed_at=(5.0, "SIGINT"), most_s=MOST_S)
    finally:
        over.set()
        watching.join()
        os.kill(server, signal.SIGCONT)
    assert ended.status == 2, ended.err
    assert re.search(r"rank [01], lane [01] has been in its (write|read|open) of \S+/(out|data)/", ended.err), ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "r.capture").exists()
