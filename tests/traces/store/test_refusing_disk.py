"""A disk or a directory that refuses is one error of ours, at whatever byte it does."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.replay.target.stage import plan_stage
from dxt_replay.traces.errors import TargetError, UnreadableError
from dxt_replay.traces.output import check_output
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import OpsWriter, begin_capture
from tests.capture_builder import build_capture, ops_table, read
from tests.places import open_below

NOBODY = 65534


def elsewhere(work: Callable[..., None], *arguments: Any) -> tuple[type | None, str]:
    """What a function raised in a process of its own, which may give up rights."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        error = pool.submit(work, *arguments).exception()
    return (None, "") if error is None else (type(error), str(error))


def _write_with_limits(folder: Path, limits: range) -> None:
    """Write the same rows under each limit of a file's size: at some the rows are refused, at others the footer."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    rows = ops_table([read(0, offset=i, length=i, start_ns=i) for i in range(100)])
    for limit in limits:
        directory = folder / str(limit)
        directory.mkdir()
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            with OpsWriter(directory) as writer:
                writer.write(rows)
        except TargetError:
            # NFS and FUSE keep the directory of a file that is removed while it is open
            left = [path for path in directory.rglob("*") if path.is_file()] + open_below(directory)
            if left:
                raise AssertionError(f"limit {limit} left {left}") from None
        else:
            raise AssertionError(f"limit {limit} was not met")


def test_a_file_limit_at_any_byte_is_one_error(tmp_path: Path) -> None:
    with OpsWriter(tmp_path / "whole") as writer:
        writer.write(ops_table([read(0, offset=i, length=i, start_ns=i) for i in range(100)]))
    (part,) = (tmp_path / "whole" / "ops").glob("part-*")
    limits = range(8, part.stat().st_size, 97)
    assert elsewhere(_write_with_limits, tmp_path, limits) == (None, "")


def _errors_of_nobody(calls: list[tuple[Callable[..., None], tuple[Any, ...], type[Exception]]]) -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    for work, arguments, kind in calls:
        with pytest.raises(kind, match="Permission denied"):
            work(*arguments)


def _plan(capture: Path, target: Path) -> None:
    plan_stage(open_capture(capture), target)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may enter, as tmp_path is not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its rights")
def test_a_directory_that_may_not_be_read_is_one_error(public: Path) -> None:
    build_capture(public, files=["/a"], ops=[read(0, length=1)], name="open")
    closed = public / "closed"
    closed.mkdir(mode=0o700)
    build_capture(closed, files=["/a"], ops=[read(0, length=1)])
    hidden_ops = build_capture(public, files=["/a"], ops=[read(0, length=1)], name="hidden")
    (hidden_ops.path / "ops").chmod(0o700)
    calls = [
        (begin_capture, (closed / "new.capture",), TargetError),
        (check_output, (closed / "new.csv",), TargetError),
        (open_capture, (closed / "test.capture",), UnreadableError),
        (open_capture, (hidden_ops.path,), UnreadableError),
        (_plan, (public / "open.capture", closed / "target"), TargetError),
    ]
    assert elsewhere(_errors_of_nobody, calls) == (None, "")
