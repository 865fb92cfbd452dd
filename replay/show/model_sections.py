"""Prints a causal model as tables: the table model of `dxt-replay summary`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dxt_replay.replay.show.section import Section, prose
from dxt_replay.traces.storage_limit import Doubt
from dxt_replay.traces.units import (
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    format_bytes,
    format_count,
    format_duration,
    format_signed,
)

MAX_RANKS_SHOWN = 16

_FEED_NOTE = (
    "Steps ahead: how many batches are fetched between a read and the fetch of its own batch. Gap: how long a reader "
    "pauses between two reads of a batch. In input waits: the share of reads during which the loop waits for input."
)


def model_sections(explained: Mapping[str, Any]) -> list[Section]:
    """The tables of a model, from its JSON object."""
    ranks = explained["ranks"]
    shown = list(ranks.items())[:MAX_RANKS_SHOWN]
    more = len(ranks) - len(shown)
    notes = (f"and {format_count(more)} more ranks (--json has all)",) if more else ()
    sections = [
        prose("", [*Doubt(**explained["doubt"]).sentences, _held_out_sentence(explained["held_out"])]),
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
    if explained["warnings"]:
        sections.append(Section(title="Warnings", rows=tuple((text,) for text in explained["warnings"]), prose=True))
    return sections


def _held_out_sentence(parts: Sequence[Mapping[str, Any]]) -> str:
    """Say how well the model predicts steps that it was not derived from."""
    if not parts:
        return "How well the model behind --pace steps predicts this run is not known: it has too few steps or reads."
    errors = [part["error_pct"] for part in parts]
    return (
        "The model behind --pace steps predicts each quarter of the steps from its reads and from the other quarters: "
        f"{format_signed(min(errors), 1)} to {format_signed(max(errors), 1)} % off."
    )


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
