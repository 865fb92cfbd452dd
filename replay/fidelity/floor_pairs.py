"""Checks pairs of runs of one job, and compares them for their noise."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from dxt_replay.replay.fidelity.compare import compare
from dxt_replay.replay.fidelity.noise_floor import NoiseFloor, worst
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.records import replay_record
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.relation import Relation, relation_of

_LEAST_COMMON_PATHS, _LEAST_COMMON_NAMES = 0.5, 0.9
"""Shares of the operations that two runs of one job have in common at least: by the paths of their files, or, where the
data lie in another place, by their names; any number in a name counts as the same."""

_NUMBER = re.compile(r"\d+")


def noise_floor(pairs: Sequence[tuple[Capture, Capture]], source: Capture | None = None) -> NoiseFloor:
    """The differences of two runs of one job; the worst of all pairs counts.

    `source`: a capture of that job, which the floor is used for.
    Raises: UsageError for captures that are not different runs of one job; CaptureError.
    """
    if not pairs:
        raise UsageError("a noise floor needs two runs of the same job: give --floor A B")
    found = []
    for first, second in pairs:
        relation = _check_pair(first, second)
        if source is not None:
            for run in (first, second):
                _check_job(source, run)
        names = (str(first.named), str(second.named))
        found.append((names, compare(first, second, relation=relation)))
    return worst(found)


def check_paces(floor: Sequence[tuple[Capture, Capture]], replay: Capture) -> None:
    """Replays at another pace or speed say nothing about the noise of this one. Raises: UsageError; CaptureError."""
    for pair in floor:
        for run in pair:
            if None not in (_pace(run), _pace(replay)) and _pace(run) != _pace(replay):
                raise UsageError(
                    f"{run.named} was replayed with {_pace(run)}, {replay.named} with {_pace(replay)}: a noise floor "
                    "needs replays that were made alike"
                )


def _check_pair(first: Capture, second: Capture) -> Relation:
    """The relation of the two runs. Raises: UsageError when they are not two runs of one job."""
    relation = relation_of(first, second)
    if relation is Relation.SAME:
        raise UsageError(f"{second.named} is the same run as {first.named}: a noise floor needs two runs")
    if relation in (Relation.REPLAY, Relation.REVERSED):
        replay, run = (second, first) if relation is Relation.REPLAY else (first, second)
        raise UsageError(
            f"{replay.named} replays {run.named}, so the two do not show noise: give two runs of the application, or "
            "two replays"
        )
    check_paces([(first, first)], second)
    if _pace(first) != _pace(second):
        replay, run = (first, second) if _pace(second) is None else (second, first)
        raise UsageError(f"{replay.named} is a replay and {run.named} is not: a noise floor needs two of a kind")
    _check_job(first, second)
    return relation


def _pace(capture: Capture) -> str | None:
    """Pace and speed of a replay as text; None for a recording."""
    record = replay_record(capture.info, capture.path / "capture.json")
    return None if record is None else f"--pace {record.pace} --speed {record.speed:g}"


def _check_job(first: Capture, second: Capture) -> None:
    """Raises: UsageError when the two are not runs of one job."""
    if relation_of(first, second) is not Relation.DIFFERENT:
        return
    remedy = "a noise floor needs runs of the same job"
    if first.ranks != second.ranks:
        counts = " and ".join(f"{run.named} has {len(run.ranks)} ranks" for run in (first, second))
        raise UsageError(f"{counts}: {remedy}")
    paths, names = (_common(_operations(first, by), _operations(second, by)) for by in (_whole_path, _file_name))
    if paths < _LEAST_COMMON_PATHS and names < _LEAST_COMMON_NAMES:
        share = f"{100 * names:.0f} %"
        raise UsageError(
            f"{first.named} and {second.named} have {share} of their operations on files of the same names: {remedy}"
        )


def _common(operations: Counter[str], others: Counter[str]) -> float:
    """Share of the operations of the larger side that both have, 0 to 1."""
    most = max(operations.total(), others.total())
    return (operations & others).total() / most if most else 0.0


def _whole_path(path: str) -> str:
    return _NUMBER.sub("0", path)


def _file_name(path: str) -> str:
    return _NUMBER.sub("0", path.rsplit("/", 1)[-1])


def _operations(capture: Capture, name_of: Callable[[str], str]) -> Counter[str]:
    """Operations by the name that is given to the path of their file."""
    found: Counter[str] = Counter()
    names = [name_of(path) for path in capture.paths()]
    for rank in capture.ranks:
        usage = capture.usage(rank)
        totals = usage.group_by("file_id").aggregate([("operations", "sum")])
        for each in totals.to_pylist():
            found[names[each["file_id"]]] += each["operations_sum"]
    return found
