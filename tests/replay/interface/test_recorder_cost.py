"""What Darshan itself cost a recording is said: real logs of a PyTorch job with workers, with times of their own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.replay.interface.recordings import _cost_warnings
from tests.places import recorded

MS = 10**6


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """Logs whose files were finished when Darshan began to write them."""
    found = []
    for path in sorted(recorded("captures/torch_eval").rglob("*.darshan")):
        found.append(Path(shutil.copy(path, tmp_path)))
        taking(found[-1], 0)
    assert len(found) > 2
    return found


def taking(log: Path, ns: int) -> None:
    end_ns = open_log(log).job.end_ns
    log.chmod(0o600)
    os.utime(log, ns=(end_ns + ns, end_ns + ns))


def result(logs: list[Path], run_s: float) -> Any:
    job = SimpleNamespace(tracer=SimpleNamespace(name="darshan"), logs=tuple(logs))
    return SimpleNamespace(job=job, merged=SimpleNamespace(info=SimpleNamespace(job=SimpleNamespace(run_time_s=run_s))))


def test_workers_that_end_early_and_long_are_named(logs: list[Path]) -> None:
    first = min(logs, key=lambda log: open_log(log).job.end_ns)
    assert _cost_warnings(result(logs, 10)) == []
    taking(first, 250 * MS)
    (warning,) = _cost_warnings(result(logs, 10))
    assert "Darshan took 250 ms to write the logs" in warning
    assert _cost_warnings(result(logs, 100)) == []


def test_the_end_of_the_job_itself_keeps_nobody_waiting(logs: list[Path]) -> None:
    taking(max(logs, key=lambda log: open_log(log).job.end_ns), 900 * MS)
    assert _cost_warnings(result(logs, 10)) == []
