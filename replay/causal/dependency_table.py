"""A causal model as a table of the dependencies of each lane's operations. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dxt_replay.replay.causal.dependency_pass import LaneDependencies
from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.causal.paced_ranks import Steps, rank_batches, steps_of
from dxt_replay.replay.causal.training_loop import CHECKPOINT, COLLECTIVE, ENTRY, EVALUATION, FETCH, TrainingLoop
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_count

MOST_OPERATIONS = 2_000_000
"""Operations up to which a model is shown: about 60 bytes of memory each, and up to a row each."""

_NAMES = {FETCH: "fetch", CHECKPOINT: "checkpoint", COLLECTIVE: "collective", EVALUATION: "evaluation"}


def dependency_rows(capture: Capture) -> list[dict[str, Any]]:
    """The rows of the table dependencies. Consecutive operations of a lane that feed the same event and follow the same
    moment share a row. Empty for a capture without training steps.

    Raises: UsageError for more than MOST_OPERATIONS; CaptureError when the capture is damaged or contradicts itself.
    """
    if not (capture.spans["kind"].cast("string").to_numpy() == "step").any():
        return []
    if capture.operation_count() > MOST_OPERATIONS:
        raise UsageError(
            f"the table dependencies holds up to {format_count(MOST_OPERATIONS)} operations, and {capture.named} has "
            f"{format_count(capture.operation_count())}: choose a part, such as --steps 10-19"
        )
    steps = steps_of(capture)
    return [row for rank in capture.ranks for row in _of_rank(capture, steps, rank)]


@dataclass(slots=True)
class _Lane:
    """The operations of a lane, in parts."""

    start_ns: list[np.ndarray] = field(default_factory=list)
    length: list[np.ndarray] = field(default_factory=list)
    found: list[LaneDependencies] = field(default_factory=list)


def _of_rank(capture: Capture, steps: Steps, rank: int) -> Iterator[dict[str, Any]]:
    dependencies, lanes = steps.dependencies(rank), dict[int, _Lane]()
    for batch in rank_batches(capture, rank, steps.surveys[rank].layers):
        for number, mine, found in dependencies.lanes(batch):
            lane = lanes.setdefault(number, _Lane())
            lane.start_ns.append(batch.start_ns[mine])
            lane.length.append(batch.length[mine])
            lane.found.append(found)
    model = steps.models[rank]
    moments = moment_names(model)
    events = [*event_names(model.loop), None]
    for number, lane in sorted(lanes.items()):
        for row in _stretches(lane):
            need, follows = events[row.pop("need")], moments[row.pop("follows")]
            yield {"rank": rank, "lane": number, "needed_by": need, "follows": follows, **row}


def _stretches(lane: _Lane) -> Iterator[dict[str, Any]]:
    """The rows of a lane, with numbers for `needed_by` (`need`) and `follows`."""
    need, follows, think = (
        np.concatenate(parts)
        for parts in zip(
            *((each.need, each.follows, each.before_ns + each.after_ns) for each in lane.found), strict=True
        )
    )
    # The time that keeps the lane busy after an operation is stored before the next one.
    busy = np.concatenate([*(each.busy_ns[:-1] for each in lane.found), lane.found[-1].busy_ns[-1:]])[1:]
    first = np.flatnonzero((np.diff(need, prepend=-2) != 0) | (np.diff(follows, prepend=-2) != 0))
    columns = {
        "need": need[first],
        "follows": follows[first],
        "calls": np.diff(np.append(first, len(need))),
        "bytes": np.add.reduceat(np.concatenate(lane.length), first),
        "start_ns": np.concatenate(lane.start_ns)[first],
        "think_ns": np.add.reduceat(think, first),
        "ready_ns": np.add.reduceat(busy, first),
    }
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        yield dict(zip(columns, values, strict=True))


def event_names(loop: TrainingLoop) -> list[str]:
    """Names of the events of a training thread: kind, and number among the events of this kind, from 0."""
    found, seen = [], dict.fromkeys(_NAMES, 0)
    for kind in loop.kind.tolist():
        if kind == ENTRY:
            found.append("loading")
            continue
        found.append(f"{_NAMES[kind]} {seen[kind]}")
        seen[kind] += 1
    return found


def moment_names(model: LoopModel) -> list[str | None]:
    """Names of the moments of a model; None for the last, which is NO_MOMENT."""
    training = [f"{side} of {event}" for event in event_names(model.loop) for side in ("begin", "end")]
    batches = 0 if model.production is None else len(model.production.begin_ns)
    made = [f"{side} of making batch {number}" for number in range(batches) for side in ("begin", "end")]
    return [*training, "end of the loop", *made, None]
