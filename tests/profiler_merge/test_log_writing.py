"""How long Darshan took to write logs: real logs of a PyTorch job with workers, with times of files of their own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dxt_replay.profiler_merge.darshan.jobs import open_job
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.darshan_recording import log_writing
from dxt_replay.replay.commands.making import Recorded, _cost_warnings
from tests.places import recorded

MS = 10**6


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """Logs in the order in which their processes ended; the files are copies of long after."""
    found = [Path(shutil.copy(path, tmp_path)) for path in recorded("captures/torch_eval").rglob("*.darshan")]
    assert len(found) > 2
    for log in found:
        log.chmod(0o600)
    return sorted(found, key=end_ns)


def end_ns(log: Path) -> int:
    return open_log(log).job.end_ns


def taking(log: Path, ns: int) -> None:
    os.utime(log, ns=(end_ns(log) + ns, end_ns(log) + ns))


def test_a_log_took_from_its_end_to_the_last_change_of_its_file(logs: list[Path]) -> None:
    """Copies, the end of the job itself, and a file system with another clock say nothing."""
    assert log_writing(open_job(logs)) == []
    taking(logs[-1], 900 * MS)
    assert log_writing(open_job(logs)) == []
    taking(logs[0], 25 * MS)
    job = open_job(logs)
    assert log_writing(job) == [[0, end_ns(logs[0]) - job.start_ns, end_ns(logs[0]) + 25 * MS - job.start_ns]]
    taking(logs[1], -40 * MS)
    assert log_writing(open_job(logs)) == []


def result(written: list[list[int]], run_s: float) -> Recorded:
    info: Any = SimpleNamespace(made_by={"log_writing": written}, job=SimpleNamespace(run_time_s=run_s))
    return cast(Recorded, SimpleNamespace(merged=SimpleNamespace(info=info)))


def test_what_is_much_of_the_run_is_said_once() -> None:
    both = [[0, 0, 200 * MS], [0, 50 * MS, 250 * MS]]
    assert _cost_warnings(result([], 10)) == _cost_warnings(result(both, 100)) == []
    (warning,) = _cost_warnings(result(both, 10))
    assert "Darshan took 250 ms to write the logs of 2 processes" in warning
