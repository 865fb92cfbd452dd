"""Makes spans from profile events: steps, input wait, compute, collectives, checkpoints, pipeline work. Pure.

One module per framework knows its names; both are used through this one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np

from dxt_replay.profiler_merge.profiles import tensorflow_spans, torch_spans
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns
from dxt_replay.traces.schema import NO_STEP

__all__ = ["SpanColumns", "main_line", "profile_spans"]


def main_line(profile: Profile) -> int:
    """Row of `profile.lines` of the training loop: the one with most step marks."""
    return (tensorflow_spans if profile.torch is None else torch_spans).main_line(profile)


def profile_spans(profile: Profile) -> SpanColumns:
    """All spans of one rank's profile. The framework's own module defines the kinds.

    If step numbers begin again in a later phase, they are continued.
    """
    if profile.phases:
        return reduce(_continued, map(profile_spans, profile.phases))
    return (tensorflow_spans if profile.torch is None else torch_spans).profile_spans(profile)


def _continued(first: SpanColumns, later: SpanColumns) -> SpanColumns:
    """The spans of two phases, in the order of their start."""
    numbered = later.step != NO_STEP
    begins, reached = later.step[numbered].min(initial=np.iinfo(np.int32).max), first.step.max(initial=NO_STEP)
    shift = max(int(reached) + 1 - int(begins), 0)
    moved = replace(later, name=later.name + len(first.vocabulary), step=later.step + shift * numbered)
    columns = {
        name: np.concatenate((getattr(first, name), getattr(moved, name))).astype(getattr(first, name).dtype)
        for name in ("thread", "kind", "name", "step", "start_ns", "end_ns", "fetched_ns")
    }
    order = np.argsort(columns["start_ns"], kind="stable")
    return SpanColumns(
        vocabulary=(*first.vocabulary, *later.vocabulary), **{name: column[order] for name, column in columns.items()}
    )
