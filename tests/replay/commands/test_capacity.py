"""`capacity` on storage and machines of which the answer is known."""

from __future__ import annotations

import dataclasses
import mmap
from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.replay import capacity as module
from dxt_replay.replay.capacity import MACHINE, MEMORY, NOTHING, STORAGE, LoadRun, Search, searched
from dxt_replay.replay.commands import capacities
from dxt_replay.replay.commands.capacities import _loads
from dxt_replay.replay.show.predict import capacity_headline
from dxt_replay.traces.errors import ReplayError, TargetError, UsageError
from dxt_replay.traces.measures.span_times import computed_in_loops
from tests import simulated_application as application
from tests.capture_builder import build_capture

WORKLOAD = """\
framework: pytorch
workflow: {generate_data: false, train: true, checkpoint: false}
dataset: {data_folder: data, format: npz, num_files_train: 16, num_samples_per_file: 1, record_length: 2048}
reader: {data_loader: pytorch, batch_size: 4, read_threads: 1, prefetch_size: 2}
train: {epochs: 1, computation_time: 0.02}
"""


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(WORKLOAD)
    (tmp_path / "target").mkdir()
    return path


def run_of(ranks: int, utilisation_pct: float, *, storage: bool = True) -> LoadRun:
    return LoadRun(
        ranks=ranks, utilisation_pct=utilisation_pct, training_s=1.0, mib_s=1.0, latency_us=None, processors_pct=None,
        storage=storage,
    )  # fmt: skip


class Made:
    """Measures a made storage that carries `carried` ranks, on a machine that keeps up with `machine` of them."""

    def __init__(self, carried: int, machine: int) -> None:
        self.carried, self.machine, self.free_pct, self.in_memory = carried, machine, 99.0, False

    def __call__(self, ranks: int, *, storage: bool = True) -> LoadRun:
        fits = ranks <= min(self.machine, self.carried if storage else ranks)
        return run_of(ranks, 95.0 if fits else 60.0, storage=storage)


@pytest.mark.parametrize(
    ("carried", "machine", "found", "limited_by"),
    [(5, 100, 5, STORAGE), (100, 100, 16, NOTHING), (100, 6, 6, MACHINE), (3, 3, 3, MACHINE), (0, 9, 0, STORAGE)],
)
def test_the_storage_is_told_from_the_machine(carried: int, machine: int, found: int, limited_by: str) -> None:
    search, runs = Search(limit_pct=90.0, most=16), []
    assert searched(search, Made(carried, machine), runs) == limited_by  # type: ignore[arg-type]
    assert search.sustained == found
    assert [run.storage for run in runs].count(False) == (limited_by != NOTHING)


def test_a_machine_that_takes_most_of_what_was_lost_is_the_limit() -> None:
    class Half(Made):
        def __call__(self, ranks: int, *, storage: bool = True) -> LoadRun:
            return run_of(ranks, 99.0 - 10.0 * (ranks > 2) if storage else 92.0, storage=storage)

    assert searched(Search(limit_pct=90.0, most=4), Half(2, 9), []) == MACHINE  # type: ignore[arg-type]


@pytest.mark.parametrize(("processors_pct", "limited_by"), [(95.0, MACHINE), (60.0, STORAGE)])
def test_processors_that_copying_keeps_busy_are_the_limit(processors_pct: float, limited_by: str) -> None:
    """The run without I/O copies nothing and keeps up."""

    class Copying(Made):
        def __call__(self, ranks: int, *, storage: bool = True) -> LoadRun:
            busy = processors_pct if storage and ranks > 3 else 5.0
            return dataclasses.replace(super().__call__(ranks, storage=storage), processors_pct=busy)

    search = Search(limit_pct=90.0, most=8)
    assert searched(search, Copying(3, 100), []) == limited_by  # type: ignore[arg-type]
    assert search.interval == (3, 3)


def test_files_that_another_process_keeps_in_memory_give_no_answer(
    workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel keeps pages that are mapped, whatever is asked of it."""
    held = []

    def staged(load: Path, place: Path) -> None:
        place.mkdir(exist_ok=True)
        dxt_replay.stage(load, place)
        for path in place.rglob("*.npz"):
            with path.open("rb") as file:
                held.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            sum(held[-1][::4096])

    monkeypatch.setattr(capacities, "stage", staged)
    found = dxt_replay.capacity(workload, tmp_path / "target", utilisation_pct=1.0, most=1)
    assert found.limited_by == MEMORY
    assert capacity_headline(found).startswith("Not known: files were in memory")
    assert any("stayed in the page cache" in each or "does not drop pages" in each for each in found.warnings)


@pytest.mark.parametrize("carried", [1, 3, 6])
def test_the_guess_of_a_storage_model_is_arithmetic(
    tmp_path: Path, carried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 20 ms that read four samples ahead: a pipe of B bytes/s carries B x 20 ms / 90 % of their bytes."""
    description = tmp_path / "w.yaml"
    description.write_text(WORKLOAD.replace("16,", "400,").replace("2048", "200000"))
    batch = 4 * 200_500
    model = tmp_path / "m.yaml"
    rate = round(batch / 0.02 * 0.9 * (carried + 0.5))
    model.write_text(f"storage_model: 1\nname: made\nlimits:\n  - {{each: system, rate: {rate}B/s}}\n")
    monkeypatch.setattr(module, "searched", lambda search, measure, runs: NOTHING)
    found = dxt_replay.capacity(description, tmp_path / "target", storage=model, most=8)
    assert found.simulated_ranks == carried


@pytest.mark.parametrize("stopped", [False, True])
def test_a_run_that_failed_says_nothing_of_the_storage(
    stopped: bool, workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads that fail end at once: they would pass for a fast storage."""
    replay = capacities.run

    def failing(*arguments, **choices):
        result = replay(*arguments, **choices)
        if not stopped:
            result.tally.errors[5] = result.tally.failed = 3
        result.tally.stopped = stopped
        return result

    monkeypatch.setattr(capacities, "run", failing)
    with pytest.raises(ReplayError, match="was stopped" if stopped else "operations of a run of 1 rank failed"):
        dxt_replay.capacity(workload, tmp_path / "target", utilisation_pct=1.0, most=1)


def test_utilisation_of_a_capture_is_its_recorded_compute(tmp_path: Path) -> None:
    recorded = application.run(application.Application(steps=6, depth=2), application.Storage(latency_ns=100_000))
    capture = build_capture(tmp_path, files=application.FILES, ops=recorded.ops, spans=recorded.spans)
    compute_ns, loops_ns = computed_in_loops(capture.spans)
    _, loads = _loads(capture, (), tmp_path)
    for ranks in (2, 3):
        copy = dxt_replay.open_capture(loads.of(ranks))
        assert loads.carried(copy, ranks) == (pytest.approx(100.0 * compute_ns / loops_ns), None)


def test_captures_of_another_search_are_never_used(workload: Path, tmp_path: Path) -> None:
    kept, target = tmp_path / "kept", tmp_path / "target"
    kept.mkdir()
    (kept / "1-ranks.capture").mkdir()
    with pytest.raises(TargetError, match="kept is not empty"):
        dxt_replay.capacity(workload, target, output=kept)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TargetError, match="Not a directory"):
        dxt_replay.capacity(workload, target, output=tmp_path / "file")


def test_a_job_that_no_storage_would_keep_busy_is_refused(tmp_path: Path) -> None:
    sample = dxt_replay.sample("cosmictagger")
    dxt_replay.merge(sample.log, tmp_path / "c.capture", profiles=sample.profiles)
    with pytest.raises(UsageError, match="no storage reaches 90 %"):
        dxt_replay.capacity(tmp_path / "c.capture", tmp_path / "t")
    assert not (tmp_path / "t").exists()
