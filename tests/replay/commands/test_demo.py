"""The main job end to end, as the README's first command runs it, and on every capture beside the checkout."""

import json
from dataclasses import asdict

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.replay.compare.verdict import THRESHOLDS
from dxt_replay.traces.store.reader import open_capture

EXACT = ("operations", "bytes", "files", "order")


def test_the_demo_replays_a_bundled_capture_exactly_and_removes_the_twin(tmp_path, capsys):
    target, output = tmp_path / "target", tmp_path / "out"
    target.mkdir()
    main(["demo", "imagenet", "--target", str(target), "-o", str(output), "--json"])
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    comparison = document["comparisons"]["imagenet"]
    assert {name: comparison["exact"][name] for name in EXACT} == dict.fromkeys(EXACT, True)
    assert comparison["similarity"]["workload_cosine"] == pytest.approx(1.0)
    assert comparison["thresholds"] == json.loads(json.dumps(asdict(THRESHOLDS))), "those of compare"
    assert "596 reads and writes" in printed.err
    assert not list(target.iterdir())
    assert document["output"] == str(output)
    assert document["reports"] == {"imagenet": str(output / "imagenet.html")}
    assert {path.name for path in output.iterdir()} == {
        "imagenet.capture",
        "imagenet-replay.capture",
        "imagenet.html",
    }


def test_the_demo_says_what_to_do_next_and_keeps_what_it_made_when_asked(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "dxt-replay-demo").mkdir()
    main(["demo", "cosmictagger", "--target", str(target)])
    printed = capsys.readouterr().out
    assert not list(target.iterdir())
    assert len(printed.splitlines()) <= 30
    for command in ("record", "summary", "stage", "run", "compare", "regress"):
        assert f"dxt-replay {command} " in printed[printed.index("Next, your own job") :]
    assert not list((tmp_path / "dxt-replay-demo").iterdir()), "an earlier directory is left alone"
    kept = tmp_path / "dxt-replay-demo-2"
    assert (kept / "cosmictagger.html").stat().st_size > 0
    source, replay = (open_capture(kept / name) for name in ("cosmictagger.capture", "cosmictagger-replay.capture"))
    # 48,359 were traced, the others are reconstructed.
    assert source.operation_count() == replay.operation_count() == 48_359 + 106
    assert replay.info.made_by["result"]["failed"] == 0
