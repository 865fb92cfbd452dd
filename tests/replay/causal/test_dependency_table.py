"""A causal model as data: what it says of jobs whose rules are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dxt_replay.replay.causal import explain
from dxt_replay.replay.causal.explain import dependency_rows
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import build_capture, read
from tests.simulated_application import FILES, READ_BYTES, US, Application, Storage
from tests.simulated_application import run as simulated
from tests.simulated_known_loader import KnownJob
from tests.simulated_known_loader import run as known
from tests.simulated_loader import Loader, capture_of

FAST = Storage(latency_ns=150 * US)


def rows_of(capture: Capture, lane: int) -> list[dict[str, Any]]:
    return [row for row in dependency_rows(capture) if row["rank"] == 0 and row["lane"] == lane]


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_makes_its_batches_in_turn_and_goes_on_when_one_was_fetched(worker: int, tmp_path: Path) -> None:
    """PyTorch: worker w of 2 makes the batches w, w + 2 ..., each when its own batch two before was fetched."""
    rows = rows_of(capture_of(tmp_path, Loader(passes=1, made=(7, 6)), FAST), lane=1 + worker)
    mine = range(worker, 13, 2)
    made = rows[: len(mine)]
    assert [row["needed_by"] for row in made] == [f"fetch {number}" for number in mine]
    assert [row["follows"] for row in made[2:]] == [f"end of fetch {number - 4}" for number in mine[2:]]
    assert {row["follows"] for row in made[:2]} == {"begin of fetch 0"}
    assert {(row["calls"], row["bytes"]) for row in made} == {(6, 6 * READ_BYTES)}
    # 300 us before each read of a batch but the first.
    assert [row["think_ns"] for row in made[2:]] == pytest.approx([5 * 300 * US] * (len(mine) - 2), rel=0.01)


def test_a_training_thread_that_reads_waits_for_itself(tmp_path: Path) -> None:
    recorded = simulated(Application(steps=10, checkpoint_every=4, load_reads=2), FAST)
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=1.0), ranks=(0,), lanes="pthread_id")
    capture = build_capture(tmp_path, files=FILES, ops=recorded.ops, spans=recorded.spans, info=info)
    rows = [(row["needed_by"], row["follows"]) for row in rows_of(capture, lane=0)]
    fetches = [(f"fetch {number}", f"begin of fetch {number}") for number in range(10)]
    saves = [(f"checkpoint {number}", f"begin of checkpoint {number}") for number in range(2)]
    assert rows == [("loading", None), *fetches[:4], saves[0], *fetches[4:8], saves[1], *fetches[8:]]


def test_what_a_capture_says_itself_is_what_is_shown(tmp_path: Path) -> None:
    job = KnownJob(ranks=1)
    capture = known(job, FAST).capture(tmp_path, job)
    rows = {(row["lane"], row["start_ns"]): row for row in dependency_rows(capture)}
    for batch in capture.operations(0, columns=["lane", "start_ns", "feeds", "follows", "follows_end"]):
        for each in batch.to_pylist():
            row = rows.get((each["lane"], each["start_ns"]))
            if row is None or each["feeds"] is None:
                continue
            side, number = ("begin", "end")[each["follows_end"]], each["follows"]
            assert (row["needed_by"], row["follows"]) == (f"fetch {each['feeds']}", f"{side} of fetch {number}")
    assert {row["ready_ns"] for row in rows.values()} == {0, job.ready_ns}


def test_a_capture_without_steps_has_no_rows_and_a_large_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dependency_rows(build_capture(tmp_path / "a", files=["/d"], ops=[read(0, length=10)])) == []
    monkeypatch.setattr(explain, "MOST_OPERATIONS", 10)
    with pytest.raises(UsageError, match=r"up to 10 operations.*--part steps=10-19"):
        dependency_rows(capture_of(tmp_path / "b", Loader(), FAST))
