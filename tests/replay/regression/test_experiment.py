"""Real runs, small and few: what is run, in which order, what is left behind."""

from __future__ import annotations

import mmap
import re
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.replay.plan.pacing import Pace, Pacing, RunOptions
from dxt_replay.replay.ranks.mpi import Solo
from dxt_replay.replay.regression.comparison import BASELINE, CANDIDATE
from dxt_replay.replay.regression.experiment import (
    Experiment,
    check_room,
    default_pace,
    plan_staging,
    run_experiment,
    schedule,
    stage_all,
)
from dxt_replay.replay.regression.interval_verdict import Verdict
from dxt_replay.replay.run.feeder import Progress
from dxt_replay.replay.target.stage import check_staged
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import Span, build_capture, read, write


def source_of(folder: Path) -> Capture:
    ops = [read(0, start_ns=i * 1000, offset=4096 * i, length=4096) for i in range(20)]
    return build_capture(folder, ops=[*ops, write(1, start_ns=90_000, length=500)], files=["/a", "/out"], name="s")


def experiment(folder: Path, baseline: str = "old", candidate: str = "new", **choices: Any) -> Experiment:
    pacing = Pacing(pace=choices.pop("pace", Pace.NONE))
    for place in (baseline, candidate):
        (folder / place).mkdir(exist_ok=True)
    sides = {
        name: RunOptions(target=folder / place, pacing=pacing, cold=choices.get("cold", True))
        for name, place in (("baseline", baseline), ("candidate", candidate))
    }
    choices.pop("cold", None)
    return Experiment(**{**sides, "repeats": 2, **choices})


def ran(source: Capture, chosen: Experiment, **choices: Any) -> Any:
    stage_all(plan_staging(source, chosen))
    found = run_experiment(source, chosen, Solo(), **choices)
    assert found is not None
    return found


@pytest.mark.parametrize("repeats", [1, 2, 7, 10, 25])
def test_both_sides_run_in_every_pair_and_are_first_equally_often(repeats: int) -> None:
    order = schedule(repeats)
    assert order[:2] == [(0, BASELINE), (0, CANDIDATE)]
    counted = order[2:]
    assert [pair for pair, _ in counted] == [pair for pair in range(1, repeats + 1) for _ in (0, 1)]
    assert all({counted[i][1], counted[i + 1][1]} == {BASELINE, CANDIDATE} for i in range(0, len(counted), 2))
    first = Counter(side for _, side in counted[::2])
    assert abs(first[BASELINE] - first[CANDIDATE]) <= repeats % 2


def test_an_experiment_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    source = source_of(tmp_path)
    labels: list[str] = []
    found = ran(source, experiment(tmp_path), report=lambda label, progress: labels.append(label))
    assert not list(scratch.iterdir())
    assert [(run.pair, run.side) for run in found.runs] == schedule(2)
    assert found.verdict is Verdict.INCONCLUSIVE  # two pairs show nothing
    assert found.primary == "elapsed_s"
    assert all(run.operations == 21 and run.capture is None for run in found.runs)
    assert all(value > 0 for value in found.metrics["elapsed_s"].baseline)
    assert list(dict.fromkeys(labels))[:2] == ["run 1 of 6, baseline", "run 2 of 6, candidate"]


def test_replays_are_kept_where_it_is_wished(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    found = ran(source_of(tmp_path), experiment(tmp_path, keep=tmp_path / "kept/runs", repeats=1))
    names = sorted(path.name for path in (tmp_path / "kept/runs").iterdir())
    assert names == [
        "pair-001-baseline.capture",
        "pair-001-candidate.capture",
        "warmup-001-baseline.capture",
        "warmup-002-candidate.capture",
    ]
    for run in found.runs:
        assert open_capture(run.capture).operation_count() == 21
    targets = {run.side: open_capture(run.capture).info.made_by["result"] for run in found.runs}
    assert set(targets) == {BASELINE, CANDIDATE}


def test_a_target_compared_with_itself_is_staged_once(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    same = experiment(tmp_path, "twin", "twin", repeats=1)
    assert len(plan_staging(source, same)) == 1
    found = ran(source, same)
    assert len(found.runs) == 4
    assert plan_staging(source, same) == []


def test_what_is_staged_already_is_not_planned(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    chosen = experiment(tmp_path)
    stage_all(plan_staging(source, chosen)[:1])
    (plan,) = plan_staging(source, chosen)
    assert plan.target == (tmp_path / "new").resolve()
    stage_all([plan])
    for name in ("old", "new"):
        assert check_staged(source, tmp_path / name)


def test_two_targets_of_one_file_system_must_fit_together(tmp_path: Path) -> None:
    plans = plan_staging(source_of(tmp_path), experiment(tmp_path))
    one, other = (replace(plan, room=replace(plan.room, free_bytes=plan.bytes_on_disk * 3 // 2)) for plan in plans)
    with pytest.raises(TargetError, match="share a file system"):
        check_room([one, other])
    check_room([one])
    with pytest.raises(TargetError, match="short"):
        check_room([replace(one, room=replace(one.room, free_bytes=one.bytes_on_disk - 1))])
    assert not list((tmp_path / "old").iterdir())


def test_without_staging_a_target_that_lacks_the_twin_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="dxt-replay stage"):
        run_experiment(source_of(tmp_path), experiment(tmp_path), Solo())


def test_other_work_on_one_side_forbids_a_verdict(tmp_path: Path) -> None:
    source, chosen = source_of(tmp_path), experiment(tmp_path, repeats=6)
    stage_all(plan_staging(source, chosen))
    blocked = tmp_path / "new/dxt-replay-twin/out"

    class Blocking(Solo):
        """A directory is in the place of the candidate's output from before its operations until after them."""

        def barrier(self) -> None:
            blocked.rmdir() if blocked.is_dir() else blocked.mkdir()

    blocked.mkdir()
    found = run_experiment(source, chosen, Blocking())
    assert found is not None
    assert [run.failed for run in found.runs if run.side == CANDIDATE] == [1] * 7
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "not valid" in found.reason
    assert any("failed operations from 0 to 1" in text for text in found.health.obstacles)


def test_a_signal_ends_the_experiment_with_what_it_has(tmp_path: Path) -> None:
    ops = [read(0, start_ns=at, length=9) for at in (0, 60 * 10**9)]
    source = build_capture(tmp_path, ops=ops, files=["/a"], name="s")
    chosen = experiment(tmp_path, pace=Pace.TIMED)

    def interrupt(label: str, progress: Progress) -> None:
        if progress.done:
            signal.raise_signal(signal.SIGTERM)

    found = ran(source, chosen, report=interrupt)
    assert [run.stopped for run in found.runs] == [True]
    assert found.as_json()["stopped"] is True
    assert found.verdict is Verdict.INCONCLUSIVE


def dirty_kib(path: Path) -> int:
    """How much of a file is written to its pages and not to its disk."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as pages:
        assert pages[0] == pages[-1] == 1
        maps = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
        (found,) = re.findall(
            rf" {re.escape(str(path))}\n(?:.+\n)*?Shared_Dirty: +(\d+) kB\nPrivate_Clean.+\nPrivate_Dirty: +(\d+) kB",
            maps,
        )
    return sum(map(int, found))


def test_the_storage_comes_to_rest_between_runs(tmp_path: Path) -> None:
    """What is written to a target during a run is on its disk when the next run begins."""
    source, chosen = source_of(tmp_path), experiment(tmp_path, repeats=2, cold=False)
    stage_all(plan_staging(source, chosen))
    written = []

    def leave() -> int:
        """Write a new file to the target, without fsync; KiB of it that are not on the disk.

        Once more where they are: another program may just have synced the file system.
        """
        for _ in range(20):
            written.append(tmp_path / f"new/left-{len(written)}")
            written[-1].write_bytes(bytes([1]) * 8192)
            if left := dirty_kib(written[-1]):
                return left
        return 0

    if not leave():
        pytest.skip("this file system writes at once")
    found: list[tuple[int, int]] = []

    def note(label: str, progress: Progress) -> None:
        if label.startswith(f"run {len(found) + 1} "):
            found.append((dirty_kib(written[-1]), leave()))

    run_experiment(source, chosen, Solo(), note)
    assert found == [(0, 8)] * 6


@pytest.mark.parametrize("kind", ["step", "compute"])
def test_the_pace_follows_the_steps_where_there_are_any(tmp_path: Path, kind: str) -> None:
    source = build_capture(tmp_path, ops=[read(0, length=9)], files=["/a"], spans=[Span(kind, 0, 9, step=0)])
    assert default_pace(source) is (Pace.STEPS if kind == "step" else Pace.THINK)
