"""What two runs of a job differ by is noise: no limit is stricter than that, and pairs of another job are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dxt_replay
from dxt_replay.replay.compare.comparison import compare, noise_floor
from dxt_replay.replay.compare.noise import check_paces, measured, worst_of
from dxt_replay.replay.compare.verdict import Thresholds
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import Job
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, build_capture
from tests.replay.compare.comparing import FILES, info, recorded, replay_of, replayed_ops, source_fixture, spans  # noqa: F401


def stretched(ops: list[Op], scale: float) -> list[Op]:
    """The operations at times that are `scale` times as late."""
    return [replace(op, start_ns=int(op.start_ns * scale), end_ns=int((op.end_ns or 0) * scale)) for op in ops]


def another_run(tmp_path: Path, scale: float = 1.0, *, name: str = "again", **choices: Any) -> Capture:
    """A second run of the application, `scale` times as long."""
    files, ops = choices.get("files", FILES), choices.get("ops", recorded())
    about = replace(info(), job=Job(nprocs=2, run_time_s=9))
    return build_capture(tmp_path, files=files, ops=stretched(ops, scale), spans=spans(scale), info=about, name=name)


def slow_replay(tmp_path: Path, scale: float = 1.03) -> Capture:
    ops = [replace(op, due_ns=None) for op in stretched(replayed_ops(), scale)]
    return replay_of(tmp_path, ops, span_list=spans(scale))


def test_a_limit_is_relaxed_to_what_two_runs_reach(source: Capture, tmp_path: Path) -> None:
    """A replay 3 % too slow fails by the limit of 1 %, and passes where two runs are 5 % apart."""
    replay = slow_replay(tmp_path)
    assert compare(source, replay).verdict.timing == "fail"
    floor = noise_floor([(source, another_run(tmp_path, 1.05))], source)
    found = compare(source, replay, floor=floor)
    assert (found.verdict.timing, found.passed) == ("pass", True), found.verdict.reasons
    assert found.floor is not None
    relaxed = {each.limit: (each.asked, each.allowed) for each in found.floor.relaxed}
    assert relaxed["elapsed_error_pct"] == (1.0, pytest.approx(5, abs=0.1))
    assert relaxed["drift_ppm"] == (20.0, pytest.approx(50_000, rel=0.01))
    assert found.thresholds.elapsed_error_pct == relaxed["elapsed_error_pct"][1], "what was judged by"
    elapsed = found.floor.measures["timing.elapsed_error_pct"]
    assert (elapsed.value, elapsed.within) == (pytest.approx(3, abs=0.1), True)


def test_a_replay_beyond_the_floor_fails_still_and_the_worst_of_several_pairs_counts(
    source: Capture, tmp_path: Path
) -> None:
    runs = [another_run(tmp_path, scale, name=f"run{k}") for k, scale in enumerate((1.02, 1.01))]
    floor = noise_floor([(source, run) for run in runs], source)
    assert floor.measures == worst_of([noise_floor([(source, run)]).measures for run in runs])
    assert len(floor.pairs) == 2
    found = compare(source, slow_replay(tmp_path), floor=floor)
    assert (found.verdict.timing, found.passed) == ("fail", False)
    assert found.floor is not None
    assert found.floor.measures["timing.elapsed_error_pct"].within is False
    known = {"similarity.cosine": 0.9, "timing.drift_ppm": 3.0}
    assert worst_of([known, {"similarity.cosine": 0.8, "timing.drift_ppm": None}]) == {
        **known,
        "similarity.cosine": 0.8,
    }


def test_the_similarity_is_not_asked_to_be_above_the_floor(source: Capture, tmp_path: Path) -> None:
    longer = [replace(op, end_ns=(op.end_ns or 0) + 40_000_000) for op in recorded()]
    floor = noise_floor([(source, another_run(tmp_path, ops=longer))], source)
    replay = replay_of(tmp_path, [replace(op, end_ns=(op.end_ns or 0) + 10_000_000) for op in replayed_ops()])
    strict = Thresholds(fail_under=0.99)
    assert compare(source, replay, strict).verdict.similarity == "fail"
    found = compare(source, replay, strict, floor=floor)
    assert found.verdict.similarity == "pass"
    assert found.thresholds.fail_under == floor.measures["similarity.cosine"] != 0.99


def test_work_that_two_runs_do_in_another_order_may_come_in_another_order(source: Capture, tmp_path: Path) -> None:
    """Two operations of a lane that change places; in the second run of the application, two others did."""

    def swapped(ops: list[Op], first: int) -> list[Op]:
        one, other = ops[first], ops[first + 2]
        changed = replace(one, offset=other.offset), replace(other, offset=one.offset)
        return [*ops[:first], changed[0], ops[first + 1], changed[1], *ops[first + 3 :]]

    floor = noise_floor([(source, another_run(tmp_path, ops=swapped(recorded(), 0)))], source)
    replay = replay_of(tmp_path, swapped(replayed_ops(), 6))
    assert compare(source, replay).verdict.exact == "fail"
    found = compare(source, replay, floor=floor)
    assert (found.verdict.exact, found.exact.order) == ("pass", False), found.headline
    assert found.floor is not None
    assert found.floor.excused == ("order",)
    assert "order differ, but no more than between two runs" in found.headline
    both = replay_of(tmp_path / "more", [op for op in swapped(replayed_ops(), 6) if op.file_id != 1])
    assert compare(source, both, floor=floor).verdict.exact == "fail", "operations that are left out are no noise"


def test_failed_operations_are_never_noise(source: Capture, tmp_path: Path) -> None:
    floor = noise_floor([(source, another_run(tmp_path, ops=recorded()[:-5]))], source)
    ops = replayed_ops()
    lost = replay_of(tmp_path, ops[:-1])
    assert compare(source, lost, floor=floor).verdict.exact == "pass"
    failed = replay_of(tmp_path / "more", [*ops[:-1], replace(ops[-1], result=-5)])
    assert compare(source, failed, floor=floor).verdict.exact == "fail"


def test_every_measure_stands_beside_its_floor(source: Capture, tmp_path: Path) -> None:
    floor = noise_floor([(source, another_run(tmp_path, 1.05))], source)
    found = compare(source, replay_of(tmp_path, replayed_ops()), floor=floor)
    assert found.floor is not None
    assert found.floor.measures.keys() == floor.measures.keys() == measured(found).keys()
    known = {name: each for name, each in found.floor.measures.items() if each.value is not None}
    assert len(known) > 30
    assert all(each.within is not None for each in known.values())
    assert found.floor.pairs == ((str(source.path), str(tmp_path / "again.capture")),)


def test_two_replays_of_one_source_are_a_pair(source: Capture, tmp_path: Path) -> None:
    one, other, third = (
        build_capture(
            tmp_path,
            files=FILES,
            ops=replayed_ops(late),
            spans=spans(),
            info=info(pace="timed", speed=1.0, result={"late": late}),
            name=f"replay{late}",
            replay_of=source,
        )
        for late in (20_000, 30_000, 40_000)
    )
    floor = noise_floor([(one, other)], source)
    check_paces([(one, other)], third)
    assert floor.measures["exact.operations_pct"] == 0
    assert compare(source, third, floor=floor).passed


def test_pairs_that_show_no_noise_of_this_job_are_refused(source: Capture, tmp_path: Path) -> None:
    timed, fast = (
        build_capture(
            tmp_path,
            files=FILES,
            ops=replayed_ops(),
            spans=spans(),
            info=info(pace=pace, speed=1.0),
            name=pace,
            replay_of=source,
        )
        for pace in ("timed", "none")
    )
    other = another_run(tmp_path, files=("/x/image.npz", "/x/list", "/y/model"), name="other")
    one_rank = build_capture(tmp_path, files=FILES, ops=[op for op in recorded() if op.rank == 0], name="one_rank")
    for first, second, words in (
        (source, source, "is the same run as"),
        (source, timed, "replays"),
        (timed, source, "replays"),
        (timed, fast, "replays that were made alike"),
        (source, other, "0 % of their operations on files of the same names"),
        (timed, other, "is a replay and"),
        (source, one_rank, "has 2 ranks and .* has 1 ranks"),
    ):
        with pytest.raises(UsageError, match=words):
            noise_floor([(first, second)])
    elsewhere = another_run(tmp_path, files=("/x/a", "/x/b", "/y/c"), name="elsewhere")
    noise_floor([(source, elsewhere)])
    half = [op for op in recorded() if op.start_ns < 5_000_000_000]
    shorter = another_run(tmp_path, files=("/x/a", "/x/b", "/y/c"), ops=half, name="shorter")
    with pytest.raises(UsageError, match=r"6\d % of their operations"):
        noise_floor([(source, shorter)])
    with pytest.raises(UsageError, match="of their operations"):
        noise_floor([(other, another_run(tmp_path, files=("/x/image.npz", "/x/list", "/y/model")))], source)
    with pytest.raises(UsageError, match="made alike"):
        check_paces([(timed, timed)], fast)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A capture that comes with the package, and two real replays of it, as fast as they go."""
    folder = tmp_path_factory.mktemp("sampled")
    sources = dxt_replay.sample("imagenet")
    capture = folder / "run.capture"
    dxt_replay.merge(sources.log, capture, profiles=sources.profiles)
    (folder / "twin").mkdir(exist_ok=True)
    dxt_replay.stage(capture, folder / "twin")
    replays = folder / "one.capture", folder / "other.capture"
    for replay in replays:
        dxt_replay.run(capture, folder / "twin", replay, pace="none")
    return capture, *replays


def test_two_real_replays_say_how_much_is_noise(sampled: tuple[Path, Path, Path]) -> None:
    capture, one, other = sampled
    floor = dxt_replay.noise_floor((one, other))
    assert floor.measures["similarity.workload_cosine"] == pytest.approx(1, abs=0.05)
    assert {floor.measures[f"exact.{name}_pct"] for name in ("operations", "bytes", "files", "order")} == {0}
    assert (floor.measures["storage.io_time_s"] or 0) > 0, "the time of reads is never twice the same"
    found = dxt_replay.compare(capture, one, floor=[(one, other)])
    assert found.passed, found.headline
    assert found.thresholds.storage_pct == max(5.0, floor.measures["storage.io_time_s"] or 0)
