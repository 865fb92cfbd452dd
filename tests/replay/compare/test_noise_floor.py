"""What two runs of a job differ by is noise: no limit is stricter than that, and pairs of another job are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.replay.compare.comparison import compare, noise_floor
from dxt_replay.replay.compare.noise import check_paces, measured, worst_of
from dxt_replay.replay.compare.verdict import Thresholds
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import Job
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, build_capture
from tests.replay.compare.comparing import FILES, MS, info, recorded, replay_of, replayed_ops, source_fixture, spans  # noqa: F401

Change = Callable[[list[Op]], list[Op]]


def stretched(scale: float) -> Change:
    """The operations at times that are `scale` times as late."""
    times = lambda op: (int(op.start_ns * scale), int((op.end_ns or 0) * scale))  # noqa: E731
    return lambda ops: [replace(op, start_ns=times(op)[0], end_ns=times(op)[1], due_ns=None) for op in ops]


def longer(by_ms: int) -> Change:
    return lambda ops: [replace(op, end_ns=(op.end_ns or 0) + by_ms * MS) for op in ops]


def swapped(first: int) -> Change:
    """Two operations of a lane change places."""

    def change(ops: list[Op]) -> list[Op]:
        one, other = ops[first], ops[first + 2]
        changed = replace(one, offset=other.offset), replace(other, offset=one.offset)
        return [*ops[:first], changed[0], ops[first + 1], changed[1], *ops[first + 3 :]]

    return change


def without(*places: int) -> Change:
    return lambda ops: [op for place, op in enumerate(ops) if place - len(ops) not in places]


def failed(ops: list[Op]) -> list[Op]:
    return [*ops[:-1], replace(ops[-1], result=-5)]


def another_run(tmp_path: Path, change: Change = lambda ops: ops, scale: float = 1.0, **choices: Any) -> Capture:
    """A second run of the application."""
    about = replace(info(), job=Job(nprocs=2, run_time_s=9))
    given = {"files": FILES, "ops": change(recorded()), "spans": spans(scale), "name": "again", **choices}
    return build_capture(tmp_path, info=about, **given)


@pytest.mark.parametrize(
    ("again", "change", "scale", "limits", "passes", "excused"),
    [
        # A replay 3 % too slow passes where two runs are 5 % apart, and fails where they are 2 % apart.
        (stretched(1.05), stretched(1.03), (1.05, 1.03), {}, True, ()),
        (stretched(1.02), stretched(1.03), (1.02, 1.03), {}, False, ()),
        (longer(40), longer(10), (1, 1), {"fail_under": 0.99}, True, ()),
        # What two runs do in another order may come in another order; operations that are left out are no noise.
        (swapped(0), swapped(6), (1, 1), {}, True, ("order",)),
        (swapped(0), lambda ops: [op for op in swapped(6)(ops) if op.file_id != 1], (1, 1), {}, False, ("order",)),
        # Failed operations are never noise.
        (without(-1, -2, -3, -4, -5), without(-1), (1, 1), {}, True, ("operations", "bytes", "order")),
        (without(-1, -2, -3, -4, -5), failed, (1, 1), {}, False, ()),
    ],
)  # fmt: skip
def test_no_limit_is_stricter_than_what_two_runs_differ_by(
    source: Capture,
    tmp_path: Path,
    again: Change,
    change: Change,
    scale: tuple[float, float],
    limits: Any,
    passes: bool,
    excused: tuple[str, ...],
) -> None:
    floor = noise_floor([(source, another_run(tmp_path, again, scale[0]))], source)
    replay = replay_of(tmp_path, change(replayed_ops()), span_list=spans(scale[1]))
    asked = Thresholds(**limits)
    assert not compare(source, replay, asked).passed
    found = compare(source, replay, asked, floor=floor)
    assert found.passed is passes, found.headline
    assert found.floor is not None
    assert found.floor.excused == excused or not passes
    for each in found.floor.relaxed:
        assert getattr(found.thresholds, each.limit) == each.allowed != each.asked == getattr(asked, each.limit)
    assert found.floor.measures.keys() == floor.measures.keys() == measured(found).keys()
    assert len([each for each in found.floor.measures.values() if each.within is not None]) > 30


def test_the_worst_of_several_pairs_counts(source: Capture, tmp_path: Path) -> None:
    runs = [another_run(tmp_path, stretched(scale), scale, name=f"run{scale}") for scale in (1.02, 1.01)]
    floor = noise_floor([(source, run) for run in runs], source)
    assert floor.measures == worst_of([noise_floor([(source, run)]).measures for run in runs])
    assert floor.pairs == tuple((str(source.path), str(run.path)) for run in runs)
    name, alike = "timing.drift_ppm", "similarity.cosine"
    assert worst_of([{alike: 0.9, name: 3.0}, {alike: 0.8, name: None}]) == {alike: 0.8, name: 3.0}
    assert floor.allows(name, None) is None


def replays(folder: Path, source: Capture, **made: dict[str, Any]) -> list[Capture]:
    """Replays of the source, by name, each with what it was made by."""
    return [
        build_capture(
            folder, files=FILES, ops=replayed_ops(), spans=spans(), info=info(**by), name=name, replay_of=source
        )
        for name, by in made.items()
    ]


def test_two_replays_of_one_source_are_a_pair(source: Capture, tmp_path: Path) -> None:
    made = {name: {"pace": "timed", "speed": 1.0, "result": {"late": name}} for name in ("one", "other", "third")}
    one, other, third = replays(tmp_path, source, **made)
    check_paces([(one, other)], third)
    assert compare(source, third, floor=noise_floor([(one, other)], source)).passed


def test_pairs_that_show_no_noise_of_this_job_are_refused(source: Capture, tmp_path: Path) -> None:
    timed, fast = replays(tmp_path, source, timed={"pace": "timed", "speed": 1.0}, none={"pace": "none", "speed": 1.0})
    elsewhere = {"files": ("/x/a", "/x/b", "/y/c")}
    other = another_run(tmp_path, files=("/x/image.npz", "/x/list", "/y/model"), name="other")
    one_rank = build_capture(tmp_path, files=FILES, ops=[op for op in recorded() if op.rank == 0], name="one_rank")
    half = another_run(tmp_path, lambda ops: [op for op in ops if op.start_ns < 5000 * MS], name="half", **elsewhere)
    for first, second, words in (
        (source, source, "is the same run as"),
        (source, timed, "replays"),
        (timed, source, "replays"),
        (timed, fast, "replays that were made alike"),
        (source, other, "0 % of their operations on files of the same names"),
        (timed, other, "is a replay and"),
        (source, one_rank, "has 2 ranks and .* has 1 ranks"),
        (source, half, r"6\d % of their operations"),
    ):
        with pytest.raises(UsageError, match=words):
            noise_floor([(first, second)])
    noise_floor([(source, another_run(tmp_path, name="elsewhere", **elsewhere))])
    with pytest.raises(UsageError, match="of their operations"):
        noise_floor([(other, another_run(tmp_path, files=("/x/image.npz", "/x/list", "/y/model")))], source)
    with pytest.raises(UsageError, match="made alike"):
        check_paces([(timed, timed)], fast)
