"""Explains the causal model: the output of `dxt-replay run --explain`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dxt_replay.replay.causal.held_out import held_out
from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.causal.paced_ranks import Steps, expected_elapsed_ns
from dxt_replay.replay.plan.pacing import Pacing
from dxt_replay.replay.show.section import Section, prose
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import (
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    format_bytes,
    format_count,
    format_duration,
    format_signed,
    ns_to_seconds,
)

MAX_RANKS_SHOWN = 16

PREDICTS_PCT = 10.0
"""Largest error, +- per cent, of a part of the steps that the others predict with which the model predicts this run."""

_FEED_NOTE = (
    "Steps ahead: how many batches are fetched between a read and the fetch of its own batch. Gap: how long a reader "
    "pauses between two reads of a batch. In input waits: the share of reads during which the loop waits for input."
)


def explanation(capture: Capture, steps: Steps, pacing: Pacing) -> dict[str, Any]:
    """The models of all ranks as the object that `dxt-replay run --explain --json` prints.

    `held_out`: each quarter of the steps as the other quarters predict it (`replay.causal.held_out`); empty for too
    few steps or too many operations.
    `check`: the run time by the models, with the recorded duration of each operation, beside the recorded time. If
    they agree, the model is consistent; that does not prove that it predicts well.
    `at_speed`: the same at the speeds of `pacing`; null at the recorded speeds.
    `check` and `at_speed` are null for more than `replay.causal.paced_ranks.MAX_CHECKED_OPERATIONS` operations.
    """
    begin, end = capture.time_span_ns
    modelled = expected_elapsed_ns(capture, steps)
    faster = not (pacing.of_compute == pacing.of_io == 1)
    at_speed = expected_elapsed_ns(capture, steps, pacing) if faster else None
    cost = steps.meetings.cost_ns
    return {
        "pace": "steps",
        "ranks": {str(rank): rank_model(model) for rank, model in steps.models.items()},
        "meetings": {
            "ranks": steps.meetings.ranks,
            "count": len(cost),
            "cost_median_ms": float(np.median(cost)) / NS_PER_MS if len(cost) else None,
        },
        "held_out": [
            {
                "first_step": part.first,
                "last_step": part.last,
                "recorded_s": ns_to_seconds(part.recorded_ns),
                "predicted_s": ns_to_seconds(part.predicted_ns),
                "error_pct": part.error_pct,
            }
            for part in held_out(capture, steps)
        ],
        "check": None
        if modelled is None
        else {
            "model_s": ns_to_seconds(modelled),
            "recorded_s": ns_to_seconds(end - begin),
            "error_pct": 100.0 * (modelled / (end - begin) - 1.0) if end > begin else None,
        },
        "at_speed": None
        if at_speed is None
        else {"model_s": ns_to_seconds(at_speed), "compute_speed": pacing.of_compute, "io_speed": pacing.of_io},
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
        "evaluations": len(loop.blocking) - len(loop.checkpoints),
        "feed_rule": _feed_rule(model),
        "data_loader": _data_loader(model),
        "step_bytes": model.step_bytes or None,
        "mean_bytes_per_batch": model.loop_bytes / len(fetches) if len(fetches) else None,
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
    if not model.step_bytes:
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
    return float(np.median(np.concatenate([deal.ready_ns for deal in model.dealing.lanes.values()])))


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
        "clocks_corrected_ms": max(deal.late_ns for deal in model.dealing.lanes.values()) / NS_PER_MS,
    }


def _depth(model: LoopModel) -> dict[str, float] | None:
    """Number of batches fetched between a read and the fetch that it feeds."""
    if model.synchronous and model.dealing is None:
        return {"p50": 0.0, "p90": 0.0, "max": 0.0}
    if model.production is not None or not model.depth.count:
        return None
    return {name: model.depth.quantile(share) for name, share in (("p50", 0.5), ("p90", 0.9), ("max", 1.0))}


def model_sections(explained: Mapping[str, Any]) -> list[Section]:
    """The tables of `dxt-replay run --explain`, from its JSON object."""
    ranks = explained["ranks"]
    shown = list(ranks.items())[:MAX_RANKS_SHOWN]
    more = len(ranks) - len(shown)
    notes = (f"and {format_count(more)} more ranks (--json has all)",) if more else ()
    sections = [
        prose("", [_held_out_sentence(explained["held_out"], explained["ranks"])]),
        Section(
            title="Training loop",
            columns=("rank", "steps", "mean step", "time before it", "batch fetches", "collectives", "checkpoints"),
            rows=tuple(_loop_row(rank, model) for rank, model in shown),
            notes=notes,
        ),
        Section(
            title="Reads that feed steps",
            columns=(
                "rank",
                "reads",
                "bytes a step",
                "steps ahead, median",
                "at most",
                "gap to the next read",
                "preparation of a batch",
                "in input waits",
            ),
            rows=tuple(_feed_row(rank, model) for rank, model in shown),
            notes=(
                *dict.fromkeys(f"Which reads feed which step: {model['feed_rule']}" for model in ranks.values()),
                _FEED_NOTE,
            ),
        ),
        Section(title="Between the ranks", rows=_meeting_rows(explained["meetings"])),
    ]
    at_speed = explained["at_speed"]
    if at_speed is not None:
        label = f"model at compute speed {at_speed['compute_speed']:g}, I/O speed {at_speed['io_speed']:g}"
        sections.append(Section(title="At these speeds", rows=((label, f"{at_speed['model_s']:.3f} s"),)))
    if explained["warnings"]:
        sections.append(Section(title="Warnings", rows=tuple((text,) for text in explained["warnings"]), prose=True))
    return sections


def _held_out_sentence(parts: Sequence[Mapping[str, Any]], ranks: Mapping[str, Any]) -> str:
    """Say how well the model predicts steps that it was not derived from."""
    doubts = [rank["evidence"]["doubt"] for rank in ranks.values() if rank["evidence"]["doubt"]]
    if doubts:
        return f"How long this training takes on other storage is not known: {doubts[0]}."
    if not parts:
        return "How well the model behind --pace steps predicts this run is not known: it has too few steps or reads."
    errors = [part["error_pct"] for part in parts]
    found = (
        "The model behind --pace steps predicts each quarter of the steps from its reads and from the other quarters: "
        f"{format_signed(min(errors), 1)} to {format_signed(max(errors), 1)} % off."
    )
    if max(map(abs, errors)) <= PREDICTS_PCT:
        return found
    return f"{found} The input waits of this run do not follow from its reads, so a prediction may be as far off."


def _loop_row(rank: str, model: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        rank,
        format_count(model["steps"]),
        format_duration(model["step_mean_ms"] * NS_PER_MS),
        format_duration(model["load_s"] * NS_PER_S),
        format_count(model["batch_fetches"]),
        format_count(model["collectives"]),
        format_count(model["checkpoints"]),
    )


def _feed_row(rank: str, model: Mapping[str, Any]) -> tuple[str, ...]:
    depth, step_bytes = model["depth_steps"], model["step_bytes"] or model["mean_bytes_per_batch"]
    return (
        rank,
        format_count(model["evidence"]["loop_reads"]),
        format_bytes(step_bytes) if step_bytes else "-",
        f"{depth['p50']:.0f}" if depth else "-",
        f"{depth['max']:.0f}" if depth else "-",
        format_duration(model["think_us"]["within_batch"] * NS_PER_US),
        format_duration(model["ready_ms"] * NS_PER_MS) if model["ready_ms"] is not None else "-",
        f"{model['evidence']['inside_input_wait_pct']:.0f} %",
    )


def _meeting_rows(meetings: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    if not meetings["count"]:
        return (("collectives", "none at which ranks wait for each other"),)
    return (
        ("collectives", f"{format_count(meetings['count'])} of {format_count(meetings['ranks'])} ranks"),
        ("their own cost, median", format_duration(meetings["cost_median_ms"] * NS_PER_MS)),
    )
