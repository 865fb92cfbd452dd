"""The pace `steps` in real runs: what waits for what, in one process and in several, on one node and on many."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dxt_replay.replay.causal.explain import explanation
from dxt_replay.replay.plan.pacing import Pace, Pacing, RunOptions
from dxt_replay.replay.ranks.mpi import Solo, share_of
from dxt_replay.replay.run.story import choose_layers_together, derive_context, run_replay
from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.schema import SPAN_KINDS, codes
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import build_capture
from tests.places import ROOT
from tests.simulated_application import FILES, MS, US, Application, Storage, run

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
SMALL = Application(
    steps=12,
    ranks=2,
    compute_ns=MS,
    jitter=0.5,
    collective_ns=200 * US,
    load_reads=3,
    checkpoint_every=5,
    checkpoint_writes=1,
)
STORAGE = Storage(latency_ns=50 * US)


def source_of(folder: Path, application: Application) -> Capture:
    """The staged capture of an application; the twin is `folder`/twin."""
    recorded = run(application, STORAGE)
    source = build_capture(folder, files=FILES, ops=recorded.ops, spans=recorded.spans, name="source")
    stage(plan_stage(source, folder / "twin"))
    return source


def options(folder: Path, **pacing: Any) -> RunOptions:
    return RunOptions(target=folder / "twin", pacing=Pacing(pace=Pace.STEPS, **pacing))


def spans_of(capture: Capture, rank: int, kind: str) -> list[tuple[int, int]]:
    mine = capture.spans.filter(pa.compute.equal(capture.spans["rank"], rank))
    chosen = codes(mine, "kind") == SPAN_KINDS.index(kind)
    return sorted(
        zip(mine["start_ns"].to_numpy()[chosen].tolist(), mine["end_ns"].to_numpy()[chosen].tolist(), strict=True)
    )


def operations_of(capture: Capture, rank: int) -> list[dict[str, Any]]:
    return [row for batch in capture.operations(rank) for row in batch.to_pylist()]


def assert_ranks_met(replay: Capture, count: int, started_ns: Mapping[int, int] | None = None) -> None:
    """Nobody left a collective before all had come. `started_ns`: by rank, the start that its times count from."""
    started = started_ns or dict.fromkeys(replay.ranks, 0)
    met = [
        [(start + started[rank], end + started[rank]) for start, end in spans_of(replay, rank, "collective")]
        for rank in replay.ranks
    ]
    assert {len(each) for each in met} == {count}
    for together in zip(*met, strict=True):
        assert min(end for _, end in together) >= max(start for start, _ in together)


def test_reads_of_the_training_thread_wait_for_its_steps(tmp_path: Path) -> None:
    source = source_of(tmp_path, SMALL)
    result = run_replay(source, tmp_path / "replay.capture", options(tmp_path), Solo())
    assert result is not None
    assert result.as_json()["failed"] == 0
    replay = open_capture(tmp_path / "replay.capture")
    assert_ranks_met(replay, 12)
    for rank in source.ranks:
        waits, meetings = spans_of(replay, rank, "input_wait"), spans_of(replay, rank, "collective")
        rows = operations_of(replay, rank)
        reads = [row for row in rows if row["op"] == "read" and row["file_id"] == 0]
        assert len(reads) == 36
        for step, (begin, end) in enumerate(waits):
            mine = reads[3 * step : 3 * step + 3]
            assert all(begin <= row["start_ns"] and row["end_ns"] <= end for row in mine)
            assert step == 0 or begin >= meetings[step - 1][1]
        loads = [row["end_ns"] for row in rows if row["file_id"] == 1]
        assert len(loads) == 3
        assert max(loads) <= waits[0][0]
        assert len(spans_of(replay, rank, "step")) == 12
    checkpoints = spans_of(replay, 0, "checkpoint")
    writes = [row for row in operations_of(replay, 0) if row["op"] == "write"]
    assert len(checkpoints) == len(writes) == 2
    for (begin, end), row in zip(checkpoints, writes, strict=True):
        assert begin <= row["start_ns"] < row["end_ns"] <= end


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: install the mpich wheel")
@pytest.mark.parametrize("one_node_each", [False, True])
def test_ranks_of_several_processes_meet(tmp_path: Path, one_node_each: bool) -> None:
    """Processes on several nodes estimate how far their clocks differ; by the one clock here no estimate matters."""
    source = source_of(tmp_path, dataclasses.replace(SMALL, ranks=3))
    program = (
        "import sys\nfrom dxt_replay.replay.ranks import mpi\nfrom pathlib import Path\n"
        "from tests.replay.causal.test_paced_ranks import options\n"
        "from dxt_replay.replay.run.story import run_replay\n"
        "from dxt_replay.traces.store.reader import open_capture\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "class World(mpi.MpiWorld):\n"
        "    def common_start_ns(self, margin_ns):\n"
        "        start_ns = super().common_start_ns(margin_ns)\n"
        "        (folder / f'start.{self.rank}').write_text(str(start_ns))\n"
        "        return start_ns\n"
        "world = World()\n"
        + ("mpi.node_id = lambda: str(world.rank)\n" if one_node_each else "")
        + "source = open_capture(folder / 'source.capture')\n"
        "run_replay(source, folder / 'replay.capture', options(folder), world)\n"
    )
    command = [str(MPIEXEC), "-n", "2", sys.executable, "-c", program]
    root = ROOT
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    replay = open_capture(tmp_path / "replay.capture")
    assert replay.ranks == source.ranks
    started = {
        rank: int((tmp_path / f"start.{process}").read_text())
        for process in range(2)
        for rank in share_of(source.ranks, process, 2)
    }
    assert_ranks_met(replay, 12, started)


def test_the_model_that_is_shown_is_the_one_that_a_run_follows(tmp_path: Path) -> None:
    source = source_of(tmp_path, SMALL)
    result = run_replay(source, tmp_path / "replay.capture", options(tmp_path), Solo())
    found = explanation(source)
    assert result is not None
    assert found is not None
    assert found["ranks"] == result.as_json()["model"]


def test_runs_that_share_a_context_replay_the_same(tmp_path: Path) -> None:
    source = source_of(tmp_path, SMALL)
    chosen = options(tmp_path)
    layers = choose_layers_together(source, Solo(), api="auto")
    context = derive_context(source, Solo(), layers, Pace.STEPS)
    documents = []
    for number, shared in enumerate((None, context, context)):
        output = tmp_path / f"replay-{number}.capture"
        result = run_replay(source, output, chosen, Solo(), context=shared)
        assert result is not None
        documents.append(result.as_json())
        assert_ranks_met(open_capture(output), 12)
    for name in ("operations", "failed", "recorded_s", "model", "warnings", "backends"):
        assert documents[0][name] == documents[1][name] == documents[2][name]
