"""`merge` makes rows from counters unless it is told not to, and says how many."""

import json

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.samples import sample
from dxt_replay.traces.store.reader import open_capture


def test_merge_says_how_many_rows_are_reconstructed_and_leaves_them_out_on_demand(tmp_path, capsys):
    log = str(sample("imagenet").log)
    counts = {}
    for option in ((), ("--no-reconstruct",)):
        output = tmp_path / f"{len(option)}.capture"
        assert main(["merge", log, "-o", str(output), "--json", *option]) == 0
        counts[option] = json.loads(capsys.readouterr().out)["operations"]
        assert open_capture(output).operation_count() == sum(counts[option].values())
    assert counts == {
        (): {"traced": 596, "reconstructed": 104},
        ("--no-reconstruct",): {"traced": 596, "reconstructed": 0},
    }


def test_workers_of_one_job_are_named_as_of_no_use(tmp_path, capsys):
    assert main(["merge", str(sample("imagenet").log), "-o", str(tmp_path / "a.capture"), "--workers", "2"]) == 0
    assert "one process merges a job: --workers shares the jobs of --each alone" in capsys.readouterr().err
