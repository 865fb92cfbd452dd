"""Explains the causal model: the tables model and dependencies of `dxt-replay summary`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from dxt_replay.replay.causal.loop import CHECKPOINT, COLLECTIVE, ENTRY, EVALUATION, FETCH, STEP, TrainingLoop
from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.causal.ranks import Steps, expected_elapsed_ns, rank_rows, steps_of
from dxt_replay.replay.causal.storage_limit import doubt_of_capture, held_out
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_MS, NS_PER_US, format_count, ns_to_seconds

MOST_OPERATIONS = 2_000_000
"""Operations up to which the table dependencies is made: about 60 bytes of memory each, and up to a row each."""

_NAMES = {FETCH: "fetch", CHECKPOINT: "checkpoint", COLLECTIVE: "collective", EVALUATION: "evaluation"}


def explanation(capture: Capture) -> dict[str, Any] | None:
    """The models of all ranks as the key `model` of `dxt-replay summary --json`; None without training steps.

    `check`: the run time by the models, with the recorded duration of each operation, beside the recorded time. If
    they agree, the model is consistent; that does not prove that it predicts well. None for more than
    `replay.causal.ranks.MAX_CHECKED_OPERATIONS` operations.
    """
    if STEP not in codes(capture.spans, "kind"):
        return None
    steps = steps_of(capture)
    begin, end = capture.time_span_ns
    modelled = expected_elapsed_ns(capture, steps)
    cost = steps.meetings.cost_ns
    return {
        "doubt": asdict(doubt_of_capture(capture, steps)),
        "ranks": {str(rank): rank_model(model) for rank, model in steps.models.items()},
        "meetings": {
            "ranks": steps.meetings.ranks,
            "count": len(cost),
            "cost_median_ms": float(np.median(cost)) / NS_PER_MS if len(cost) else None,
        },
        "held_out": held_out(capture, steps),
        "check": None
        if modelled is None
        else {
            "model_s": ns_to_seconds(modelled),
            "recorded_s": ns_to_seconds(end - begin),
            "error_pct": 100.0 * (modelled / (end - begin) - 1.0) if end > begin else None,
        },
        "warnings": list(steps.warnings),
    }


def rank_model(model: LoopModel) -> dict[str, Any]:
    """The model of one rank in numbers: how reads feed steps, how far they ran ahead, and the evidence."""
    loop, fetches = model.loop, model.loop.fetches
    durations = loop.step_end_ns - loop.step_begin_ns
    residual = model.residual_ns[fetches]
    return {
        "steps": len(durations),
        "step_mean_ms": float(durations.mean()) / NS_PER_MS,
        "batch_fetches": len(fetches),
        "collectives": len(loop.collectives),
        "checkpoints": len(loop.checkpoints),
        "evaluations": len(loop.events(EVALUATION)),
        "feed_rule": _feed_rule(model),
        "data_loader": _data_loader(model),
        "step_bytes": model.feed.step_bytes or None,
        "mean_bytes_per_batch": model.feed.loop_bytes / len(fetches) if len(fetches) else None,
        "depth_steps": _depth(model),
        "think_us": {"within_batch": model.think_ns[0] / NS_PER_US, "between_batches": model.think_ns[1] / NS_PER_US},
        "ready_ms": _ready_ns(model) / NS_PER_MS if len(fetches) else None,
        "fetch_beyond_reads_ms": float(np.median(residual)) / NS_PER_MS if len(fetches) else None,
        "load_s": ns_to_seconds(loop.entry_ns - int(loop.begin_ns[0])),
        "evidence": {
            "loop_reads": model.reads,
            "inside_input_wait_pct": 100.0 * model.inside_share,
            "loop_files": int(model.loop_files.sum()),
            "input_waits": loop.input_waits,
            "dependencies": "inferred" if model.known is None else "known",
            "doubt": model.doubt or None,
        },
    }


def _feed_rule(model: LoopModel) -> str:
    if not model.reads:
        return "the loop reads nothing"
    if model.known is not None:
        return "known: the capture names, for each operation, the batch fetch that waits for it and what it waits for"
    if model.production is not None:
        return "the profile's tf.data events say which batch used what was read"
    if model.dealing is not None:
        dealing = model.dealing
        workers = "1 worker" if dealing.workers == 1 else f"{dealing.workers} workers in turn"
        kept = "the same workers in each pass" if dealing.persistent else "new workers for each pass"
        return (
            f"a DataLoader deals batches to {workers}, {dealing.prefetch} to each at a time (prefetch_factor); "
            f"passes: {dealing.passes}, {kept if dealing.passes > 1 else 'the loop reads its data once'}"
        )
    if model.loop.loader.any() and model.synchronous:
        return "a DataLoader without workers (num_workers=0): the training thread reads what the step needs"
    if model.synchronous:
        return "depth 0: the training thread reads what the step needs"
    if not model.feed.step_bytes:
        return "by time: a read feeds the first step that fetched its batch after the read"
    if model.turns:
        return f"ahead of the loop, {len(model.turns)} readers take turns, a batch each"
    return "ahead of the loop, in order, as many bytes as a step takes"


def _ready_ns(model: LoopModel) -> float:
    """How long a batch usually is made ready after its reads."""
    if model.production is not None:
        return float(np.median(model.production.head_ns + model.production.tail_ns))
    if model.known is not None:
        return model.known.quantile(0.5) if model.known.count else 0.0
    if model.dealing is None:
        return float(np.median(model.ready_ns[model.loop.fetches]))
    return float(np.median(np.concatenate([deal["ready_ns"] for deal in model.dealing.lanes.values()])))


def _data_loader(model: LoopModel) -> dict[str, Any] | None:
    """The workers of a DataLoader; null if the loop has none, or the reads contradict it."""
    if model.dealing is None:
        return None
    return {
        "workers": model.dealing.workers,
        "prefetch_factor": model.dealing.prefetch,
        "passes": model.dealing.passes,
        "persistent_workers": model.dealing.persistent,
        "read_before_fetched_pct": 100.0 * model.dealing.consistent,
        "clocks_corrected_ms": max(model.dealing.late_ns.values()) / NS_PER_MS,
    }


def _depth(model: LoopModel) -> dict[str, float] | None:
    """Number of batches fetched between a read and the fetch that it feeds."""
    if model.synchronous and model.dealing is None:
        return {"p50": 0.0, "p90": 0.0, "max": 0.0}
    if model.production is not None or not model.depth.count:
        return None
    return {name: model.depth.quantile(share) for name, share in (("p50", 0.5), ("p90", 0.9), ("max", 1.0))}


def dependency_rows(capture: Capture) -> list[dict[str, Any]]:
    """The rows of the table dependencies. Consecutive operations of a lane that feed the same event and follow the same
    moment share a row. Empty for a capture without training steps.

    Raises: UsageError for more than MOST_OPERATIONS; CaptureError when the capture is damaged or contradicts itself.
    """
    if STEP not in codes(capture.spans, "kind"):
        return []
    if capture.operation_count() > MOST_OPERATIONS:
        raise UsageError(
            f"the table dependencies holds up to {format_count(MOST_OPERATIONS)} operations, and {capture.named} has "
            f"{format_count(capture.operation_count())}: choose a part, such as --part steps=10-19"
        )
    steps = steps_of(capture)
    return [row for rank in capture.ranks for row in _of_rank(capture, steps, rank)]


def _of_rank(capture: Capture, steps: Steps, rank: int) -> Iterator[dict[str, Any]]:
    columns, parts = steps.columns(rank), dict[int, list[tuple[np.ndarray, ...]]]()
    for _, _, batch in rank_rows(capture, rank, steps.surveys[rank].layers):
        for lane, mine, found in columns.lanes(batch):
            parts.setdefault(lane, []).append((batch.start_ns[mine], batch.length[mine], found[:-1], found[-1:]))
    model = steps.models[rank]
    moments, events = moment_names(model), [*event_names(model.loop), None]
    for lane, made in sorted(parts.items()):
        start_ns, length, found, ends = (np.concatenate(each) for each in zip(*made, strict=True))
        need, follows = found["need"], found["follows"]
        first = np.flatnonzero((np.diff(need, prepend=-2) != 0) | (np.diff(follows, prepend=-2) != 0))
        stretches = {
            "calls": np.diff(np.append(first, len(need))),
            "bytes": np.add.reduceat(length, first),
            "start_ns": start_ns[first],
            "think_ns": np.add.reduceat(found["before_ns"] + found["after_ns"], first),
            # The time that keeps the lane busy after an operation is stored before the next one.
            "ready_ns": np.add.reduceat(np.append(found["busy_ns"][1:], ends["busy_ns"][-1]), first),
        }
        names = zip((events[each] for each in need[first]), (moments[each] for each in follows[first]), strict=True)
        values = zip(*(each.tolist() for each in stretches.values()), strict=True)
        for (needed_by, moment), each in zip(names, values, strict=True):
            yield {
                "rank": rank,
                "lane": lane,
                "needed_by": needed_by,
                "follows": moment,
                **dict(zip(stretches, each, strict=True)),
            }


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
