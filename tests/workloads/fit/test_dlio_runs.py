"""What `fit` says of DLIO's own code, beside the arithmetic of that code as its sources have it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dxt_replay
from dxt_replay.workloads.fit.dlio_runs import DlioRun, dlio_runs
from tests.workloads.fit.loops import record_loop


def values(files: int, per_file: int, batch: int, epochs: int = 1, limit: int | None = None) -> dict[str, Any]:
    return {
        "framework": "pytorch",
        "workflow": {"train": True},
        "dataset": {"format": "npz", "num_files_train": files, "num_samples_per_file": per_file, "data_folder": "/d"},
        "reader": {"data_loader": "pytorch", "batch_size": batch, "read_threads": 1},
        "train": {"epochs": epochs} | ({} if limit is None else {"total_training_steps": limit}),
    }


def head_steps(files: int, per_file: int, batch: int, ranks: int, epochs: int, limit: int | None) -> int | None:
    """Steps of a rank as main.py and statscounter.py at commit e1919d7 come to them; None where they exit."""
    max_steps = per_file * files // batch // ranks
    if limit is not None and limit > max_steps:
        return None  # statscounter.py, "Only have enough data for ... steps": before files are trimmed
    samples_per_step = per_file * batch * ranks
    files = files // samples_per_step * samples_per_step  # main.py, initialize
    max_steps = per_file * files // batch // ranks  # main.py, _train
    return epochs * (max_steps if limit is None else min(max_steps, limit))


def v2_rank_steps(files: int, per_file: int, batch: int, ranks: int) -> list[int]:
    """Batches of each rank's sampler at v2.0: ceil(samples / ranks) each, the last ones what is left; drop_last."""
    samples = files * per_file
    each = -(-samples // ranks)
    return [max(min(each, samples - rank * each), 0) // batch for rank in range(ranks)]


def run_of(runs: tuple[DlioRun, ...], reading: str) -> DlioRun:
    return next(run for run in runs if run.reading == reading)


@given(
    files=st.integers(1, 60),
    per_file=st.integers(1, 6),
    batch=st.integers(1, 6),
    ranks=st.integers(1, 5),
    epochs=st.integers(1, 3),
    limit=st.none() | st.integers(1, 20),
)
def test_the_steps_are_those_of_dlios_code(
    files: int, per_file: int, batch: int, ranks: int, epochs: int, limit: int | None
) -> None:
    epochs = 1 if limit is not None else epochs  # as fit writes them
    wanted = files * per_file // (batch * ranks)
    if wanted == 0:
        return
    runs = dlio_runs(values(files, per_file, batch, epochs, limit), ranks)
    head, steps = run_of(runs, "head"), head_steps(files, per_file, batch, ranks, epochs, limit)
    assert head.steps == (steps or 0)
    asked = epochs * (wanted if limit is None else min(limit, wanted))
    assert (head.trouble == "") == (steps == asked)
    assert head.trouble.startswith("it stops") == (steps is None)
    if head.remedy:
        keys = {name: int(value) for name, value in re.findall(r"(\S+)=(\d+)", head.remedy)}
        more, cap = keys["dataset.num_files_train"], keys.get("train.total_training_steps")
        assert head_steps(more, per_file, batch, ranks, epochs, limit if cap is None else cap) == asked
    older = run_of(runs, "v2.0")
    if steps is not None:
        reached = min(v2_rank_steps(files, per_file, batch, ranks))
        each = wanted if limit is None else min(limit, wanted)
        assert ("wait for it for ever" in older.trouble) == (reached < each)
        assert older.steps == (reached if reached < each else asked)


def test_the_note_names_what_the_main_branch_needs() -> None:
    head = run_of(dlio_runs(values(8, 40, 4, epochs=2), 1), "head")
    assert (head.files, head.steps, head.all_files, head.all_steps) == (0, 0, 8, 160)
    assert head.remedy.startswith("dataset.num_files_train=160 train.total_training_steps=80 (")
    assert "160, so 0 of 8: 0 of 80 steps of an epoch" in head.sentence


@pytest.mark.parametrize(("files", "per_file", "runs"), [(40, 1, True), (4, 40, False)])
def test_the_file_and_the_json_say_whether_dlio_runs_it(tmp_path, files, per_file, runs):
    capture = record_loop(tmp_path, files=files, per_file=per_file, batch=2, open_each=True, steps=60)
    fitted = dxt_replay.fit(capture, tmp_path / "run.yaml", check=False)
    head = fitted.as_json()["dlio"][0]
    assert (head["reading"], head["steps"] == head["all_steps"]) == ("head", runs)
    text = " ".join((tmp_path / "run.yaml").read_text().replace("\n# ", " ").split())
    assert ("DLIO's main branch of June 2026 runs this as it is" in text) == runs
    assert ("does not run this as it is on as many ranks: of training files it uses multiples" in text) == (not runs)
