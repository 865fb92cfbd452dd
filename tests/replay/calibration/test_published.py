"""Results of DLIO in, the times of steps out: the folders are made from known steps."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import numpy as np
import pytest
import yaml

from dxt_replay.replay.calibration.published import is_published, published_results
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.simulation.model import document_of, model_of, read_storage_model
from dxt_replay.traces.errors import UsageError
from tests.schemas import check

BATCH, READERS, RECORD, STDEV, COMPUTE_S = 4, 8, 1_000_000, 400_000, 0.2


def write_run(folder, ranks, first_s, later_s, *, epochs=3, steps=50, loader="pytorch", **changed):
    """A run whose first epoch has a first step that is 5 s longer, as those of real runs are."""
    begin, document, shares = datetime(2026, 1, 1), {}, []
    for epoch in range(1, epochs + 1):
        lasts = first_s + 5 * (epoch == 1) + (steps - 1) * later_s
        block = {"start": begin.isoformat(), "end": (begin + timedelta(seconds=lasts)).isoformat(), "duration": "0.00"}
        document[str(epoch)] = {"start": begin.isoformat(), "block1": block}
        shares.append(100 * COMPUTE_S / later_s)
        begin += timedelta(seconds=lasts + 1)
    files = steps * ranks * BATCH
    workload = {
        "model": "made",
        "framework": loader,
        "dataset": {
            "format": "npz",
            "num_files_train": files,
            "record_length": RECORD,
            "record_length_stdev": STDEV,
            "data_folder": "d",
        },
        "reader": {"data_loader": loader, "batch_size": BATCH, "read_threads": READERS},
        "train": {"epochs": epochs, "computation_time": COMPUTE_S},
    }
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "config.yaml").write_text(yaml.safe_dump({"workload": workload}))
    (folder / "per_epoch_stats.json").write_text(json.dumps(document))
    summary = {"num_accelerators": ranks, "host_cpu_count": [64], "metric": {"train_au_percentage": shares}, **changed}
    (folder / "summary.json").write_text(json.dumps(summary))


def test_times_of_steps_costs_and_bounds_follow_from_the_summary(tmp_path):
    for run in (1, 2):
        write_run(tmp_path / f"one-{run}", 1, 2.0, 0.204)
        write_run(tmp_path / f"eight-{run}", 8, 2.5, 0.210)
    assert is_published(tmp_path)
    found = published_results(tmp_path)
    assert (found.workload, found.compute_ms, found.batch_bytes) == ("made", 200.0, BATCH * RECORD)
    one, eight = found.by_ranks
    assert (one.ranks, one.runs, one.epochs, one.steps) == (1, 2, 4, 50)
    assert [one.first_step_ms, one.later_step_ms, one.cost_ms] == pytest.approx([2000, 204, 4])
    assert eight.cost_ms == pytest.approx(10)
    assert eight.steady_bytes_per_s == pytest.approx(8 * BATCH * RECORD / 0.210)
    assert eight.first_bytes_per_s == pytest.approx(8 * READERS * BATCH * RECORD / 2.5)
    assert one.storage_limits is eight.storage_limits is False  # above 95 %: the storage can do at least that
    model = found.model("made")
    assert model.client.step_ns == pytest.approx(4e6)
    assert model.client.meeting_at(8) == pytest.approx(6e6)
    assert model.client.meeting_at(64) == pytest.approx(12e6)  # 2 ms for each doubling
    assert not model.limits
    # A sample takes a reader (2 s - 204 ms) / 4; 64 readers of 8 ranks wait for the largest of
    # 8 batches, which deviate by 400,000 / sqrt(2) / sqrt(4) B a record: 1.43 of them more than a mean one.
    assert one.sample_ms == pytest.approx((2000 - 204) / 4)
    assert eight.sample_ms == pytest.approx((2500 - 210) / 4 / (1 + 1.434 * 0.4 / 2**1.5), rel=1e-3)
    assert model.client.sample_ns(np.array([RECORD, 2 * RECORD])) == pytest.approx([449e6, 898e6])
    assert (model.client.processors, model.ranks_per_node) == (64, 0)
    assert model_of(document_of(model)) == model


@pytest.mark.parametrize(("first_s", "limits"), [(2.4, True), (1.0, None)])
def test_bounds_that_agree_are_a_limit_and_others_say_nothing(tmp_path, first_s, limits):
    write_run(tmp_path, 8, first_s, 0.3)  # later steps take in 107 MB/s, a first step of 2.4 s as much
    found = published_results(tmp_path)
    assert found.by_ranks[0].storage_limits is limits
    model = found.model("made")
    assert [limit.per_s for limit in model.limits] == (pytest.approx([64 * BATCH * RECORD / first_s]) if limits else [])
    assert (model.client.step_ns == 0) is bool(limits)
    # With one number of ranks, the slowest rank costs 8 % of a step more with each doubling.
    assert model.client.meeting_at(32) == pytest.approx(0 if limits else 2 * 0.08 * 100e6)


def test_hosts_and_processors_of_a_result_are_those_of_its_model(tmp_path):
    """A first step of more readers than processors says nothing of what a sample needs."""
    for processors, sample in ((32, True), (31, False)):
        write_run(tmp_path / str(processors), 8, 2.5, 0.21, num_hosts=2, host_cpu_count=[64, processors])
        model = published_results(tmp_path / str(processors)).model("made")
        assert (model.ranks_per_node, model.client.processors) == (4, processors * sample)
        assert (model.client.sample is not None) is sample


def test_readers_of_tf_data_do_not_start_at_once(tmp_path):
    write_run(tmp_path, 1, 0.01, 0.3, loader="tensorflow")
    found = published_results(tmp_path)
    assert found.by_ranks[0].first_bytes_per_s is found.by_ranks[0].sample_ms is None
    assert found.model("made").client.sample is None


def test_what_is_no_result_is_refused_with_its_place(tmp_path):
    write_run(tmp_path / "a", 1, 2.0, 0.204)
    write_run(tmp_path / "b", 1, 2.0, 0.204, metric={})
    assert list(published_results(tmp_path).left_out.values()) == ["it did not train"]
    with pytest.raises(UsageError, match="b has no results of a run that trained: it did not train"):
        published_results(tmp_path / "b")
    write_run(tmp_path / "c", 1, 2.0, 0.204, metric={"train_au_percentage": [90.0]})
    with pytest.raises(UsageError, match="3 blocks, 1 utilisations"):
        published_results(tmp_path / "c")
    (tmp_path / "c" / "summary.json").write_text("[")
    with pytest.raises(UsageError, match="cannot be read as JSON"):
        published_results(tmp_path)


def test_the_command_reads_results_in_place_of_measuring(tmp_path, capsys):
    write_run(tmp_path / "runs" / "one", 1, 2.0, 0.204)
    write_run(tmp_path / "runs" / "eight", 8, 2.5, 0.210)
    command = ["calibrate", "--target", str(tmp_path / "runs"), "-o", str(tmp_path / "model.json")]
    assert main(command) == 0
    assert "later steps of made compute for 200 ms and last up to 10 ms longer" in capsys.readouterr().out
    assert main([*command, "--force", "--json"]) == 0
    check("calibrate-results", json.loads(capsys.readouterr().out))
    assert read_storage_model(tmp_path / "model.json").client.meeting_at(8) == pytest.approx(6e6)
