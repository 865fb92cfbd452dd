"""Runs whose process may have few files open."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from dxt_replay.replay.engine.descriptors import require_descriptors
from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.errors import ReplayError
from tests.capture_builder import build_capture, read


def run_with_limit(source: Path, limit: int) -> subprocess.CompletedProcess[str]:
    target, output = source.parent / "twin", source.parent / "r.capture"
    program = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
from dxt_replay.replay.plan.row_queue import SpillFile
from dxt_replay.replay.plan import row_queue
row_queue.MEMORY_ROWS = 16
row_queue.LEAST_ROWS = 16
from dxt_replay.replay.commands.main import main
sys.exit(main(["run", {str(source)!r}, "--target", {str(target)!r}, "-o", {str(output)!r}, "--pace", "none", "--json"]))
"""
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": ""},
    )


@pytest.mark.parametrize(("ranks", "lanes"), [(1, 8), (4, 2)])
def test_more_files_than_descriptors_are_all_read(tmp_path: Path, ranks: int, lanes: int) -> None:
    files = 400
    # Each file is used twice, far apart: it is idle in between, and may be closed for another.
    ops = [
        read(i % files, rank=rank, lane=i % lanes, start_ns=i, length=8, offset=8 * (i // files))
        for rank in range(ranks)
        for i in range(2 * files)
    ]
    source = build_capture(tmp_path, ops=ops, files=[f"/data/{i}" for i in range(files)], name="source")
    stage(plan_stage(source, tmp_path / "twin"))
    done = run_with_limit(source.path, 96)
    assert done.returncode == 0, done.stderr + done.stdout[:6000]
    document = json.loads(done.stdout)
    assert (document["operations"], document["failed"]) == (ranks * 2 * files, 0)


def test_too_few_descriptors_for_the_lanes_are_told_before_the_run() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    require_descriptors(1)
    if soft == resource.RLIM_INFINITY:
        pytest.skip("the number of open files is not limited here")
    with pytest.raises(ReplayError, match="ulimit -n"):
        require_descriptors(soft)
